"""Rounds of ring attention: one block of the keys at a time, joined to what the rounds before gave.

With o and l a query's output and logsumexp over some keys, and o', l' those over others, over all
of them l'' = log(exp l + exp l') and o'' = exp(l - l'') o + exp(l' - l'') o' (Dao 2022, section
3.1); a round whose keys a query does not see has l' = -inf and changes nothing. Shapes as in
`geometry.py`.
"""

from collections.abc import Sequence

import numpy as np

from millrace.executor.kernels.attention.backward import attention_grad
from millrace.executor.kernels.attention.forward import attention
from millrace.executor.kernels.context import Array, Kernel, KernelContext


def attention_round(context: KernelContext) -> Kernel:
    """Kernel of the output and logsumexp from (q, k, v, out, logsumexp)."""
    alone = attention(context)
    of_round, share = [np.empty(shard.shape, shard.dtype) for shard in context.outputs]

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        alone(firing, inputs, (of_round, share))
        out, logsumexp = outputs
        np.logaddexp(inputs[4], share, out=logsumexp)
        # A query that has seen no key so far has -inf on both sides, and zero for its output.
        finite = np.maximum(logsumexp, np.finfo(logsumexp.dtype).min)
        np.exp(np.subtract(share, finite, out=share), out=share)
        np.multiply(of_round, share[..., None], out=of_round)
        np.exp(np.subtract(inputs[4], finite, out=share), out=share)
        np.multiply(inputs[3], share[..., None], out=out)
        np.add(out, of_round, out=out)

    return kernel


def attention_grad_round(context: KernelContext) -> Kernel:
    """Kernel of dq so far, and dk and dv of the block, from (q, k, v, out, logsumexp, dout, dq)."""
    alone = attention_grad(context)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        alone(firing, inputs[:6], outputs)
        np.add(inputs[6], outputs[0], out=outputs[0])

    return kernel
