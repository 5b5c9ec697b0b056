"""Forward pass of attention, in blocks of queries with scores in cache; see `geometry.py`."""

from collections.abc import Sequence

import numpy as np

from millrace.executor.kernels.attention.geometry import geometry
from millrace.executor.kernels.attention.scores import additions, hide, rooms, score
from millrace.executor.kernels.context import Array, Kernel, KernelContext


def attention(context: KernelContext) -> Kernel:
    """Kernel of the output and the logsumexp of the scores of every query, from (q, k, v)."""
    return _forward(context, None)


def biased_attention(context: KernelContext) -> Kernel:
    """Kernel of output and logsumexp from (q, k, v, bias); bias is added to scores before masks."""
    return _forward(context, 3)


def _forward(context: KernelContext, bias: int | None) -> Kernel:
    sizes = geometry(context)
    adders, parts = additions(context, sizes, bias), rooms(sizes)
    ones = np.ones((1, sizes.keys), sizes.dtype)
    heads, rows_of_heads = sizes.heads, (*sizes.heads, -1)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        queries = inputs[0].reshape(rows_of_heads).transpose(0, 2, 3, 1, 4)
        results = outputs[0].reshape(rows_of_heads).transpose(0, 2, 3, 1, 4)
        logsumexps = outputs[1].reshape(heads).transpose(0, 2, 3, 1)
        for sample in range(sizes.samples):
            q, out, logsumexp = queries[sample], results[sample], logsumexps[sample]
            key = inputs[1][sample].transpose(1, 0, 2)
            value = inputs[2][sample].transpose(1, 0, 2)[:, None]
            for room in parts:
                block, scores = room.block, room.scores
                if not block.keys:
                    out[:, :, block.rows], logsumexp[:, :, block.rows] = 0, -np.inf
                    continue
                np.multiply(q[:, :, block.rows], sizes.scale, out=room.query_apart)
                score(room, key)
                for add in adders:
                    add(room, sample, inputs)
                hide(room)
                largest = np.maximum.reduce(scores, axis=1)
                if block.blind:
                    np.maximum(largest, np.finfo(sizes.dtype).min, out=largest)
                np.subtract(scores, largest[:, None, :], out=scores)
                np.exp(scores, out=scores)
                mixed = out[:, :, block.rows]
                total = np.matmul(ones[:, : block.keys], scores).reshape(mixed.shape[:3])
                weights = room.scores_apart.transpose(0, 2, 3, 1)
                np.matmul(weights, value[:, :, block.columns], out=mixed)
                # The largest term of a sum is one: only that of a query without keys is less.
                shares = np.maximum(total, 1) if block.blind else total
                np.divide(mixed, shares[..., None], out=mixed)
                with np.errstate(divide="ignore" if block.blind else "warn"):
                    np.log(total, out=total)
                np.add(total, largest.reshape(total.shape), out=logsumexp[:, :, block.rows])

    return kernel
