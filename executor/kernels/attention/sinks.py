"""Sinks: a score more per head that no key has, joined to what attention made.

With o and l a query's output and logsumexp over its keys and k its head's sink, over both
l' = log(exp l + exp k) and o' = exp(l - l') o. The gradient of the sink is minus its probability,
exp(k - l'), times Σ_u dout · o'. Shapes as in `geometry.py`.

Notes
-----
OpenAI, "gpt-oss-120b & gpt-oss-20b model card", arXiv 2508.10925 (2025), section 2.1; Xiao et al.,
"Efficient streaming language models with attention sinks", arXiv 2309.17453 (2023).
"""

from collections.abc import Sequence

import numpy as np

from millrace.executor.kernels.context import Array, Kernel, KernelContext


def attention_sink(context: KernelContext) -> Kernel:
    """Kernel of output and logsumexp with the sink, from (out, logsumexp, sink)."""
    share = np.empty(context.inputs[1].shape, context.outputs[1].dtype)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        out, logsumexp, sink = inputs
        np.logaddexp(logsumexp, sink, out=outputs[1])
        np.exp(np.subtract(logsumexp, outputs[1], out=share), out=share)
        np.multiply(out, share[..., None], out=outputs[0])

    return kernel


def attention_sink_grad(context: KernelContext) -> Kernel:
    """Kernel of dsink from (out, logsumexp, sink, dout)."""
    before = tuple(range(len(context.inputs[1].shape) - len(context.inputs[2].shape)))

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        out, logsumexp, sink, dout = inputs
        along = np.vecdot(out, dout) * np.exp(sink - logsumexp)
        np.negative(np.add.reduce(along, axis=before), out=outputs[0])

    return kernel
