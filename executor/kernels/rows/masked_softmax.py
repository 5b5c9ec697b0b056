"""Masked softmax: attention's probabilities out of its scores, kept whole, and their gradient.

N heads of all samples, T queries here (from the shard's offset on), S keys (all of them); a head at
a time, whose scores stay in the cache where the sequence is short.
"""

from collections.abc import Sequence
from math import prod

import numpy as np

from millrace.executor.kernels.attention.scores import alibi_slopes
from millrace.executor.kernels.context import Array, Kernel, KernelContext


def masked_softmax(context: KernelContext) -> Kernel:
    """Kernel of softmax over keys of scale · x, less what ALiBi takes away, where not hidden.

    A head's sink, where it has one, is a score more.
    """
    samples, *heads, queries, keys = context.inputs[0].shape
    count = prod(heads)
    scale = context.number("scale", 1.0)
    behind = context.inputs[0].offsets[-2] + np.subtract.outer(np.arange(queries), np.arange(keys))
    mask = _mask(context, behind)
    slopes = _slopes(context)
    distances = np.abs(behind).astype(context.inputs[0].dtype)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        x, y = (a.reshape(samples * count, queries, keys) for a in (inputs[0], outputs[0]))
        for head in range(samples * count):
            row = y[head]
            np.multiply(x[head], scale, out=row)
            if slopes is not None:
                np.subtract(row, slopes[head % count] * distances, out=row)
            if mask is not None:
                np.add(row, mask, out=row)
            largest = np.maximum.reduce(row, axis=1)
            sink = inputs[1].reshape(-1)[head % count] if inputs[1:] else np.finfo(row.dtype).min
            np.maximum(largest, sink, out=largest)
            np.subtract(row, largest[:, None], out=row)
            np.exp(row, out=row)
            total = np.add.reduce(row, axis=1)
            if inputs[1:]:
                total += np.exp(sink - largest)
            # The largest term of a sum is one: only that of a query without keys is less.
            np.maximum(total, 1, out=total)
            np.divide(row, total[:, None], out=row)

    return kernel


def masked_softmax_grad(context: KernelContext) -> Kernel:
    """Kernel of scale · y (dy − Σ y dy) from (y, dy)."""
    *heads, queries, keys = context.inputs[0].shape
    count = prod(heads)
    scale = context.number("scale", 1.0)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        y, dy, dx = (a.reshape(count, queries, keys) for a in (*inputs, *outputs))
        for head in range(count):
            along = np.vecdot(y[head], dy[head])
            np.subtract(dy[head], along[:, None], out=dx[head])
            np.multiply(dx[head], y[head], out=dx[head])
            np.multiply(dx[head], scale, out=dx[head])

    return kernel


def masked_softmax_grad_sink(context: KernelContext) -> Kernel:
    """Kernel of dsink from (y, dy): what is left of one is the sink's probability."""
    samples, *heads, queries, keys = context.inputs[0].shape
    count = prod(heads)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        y, dy = (a.reshape(samples, count, queries, keys) for a in inputs)
        along = np.vecdot(y, dy) * (np.add.reduce(y, axis=3) - 1)
        np.add.reduce(along, axis=(0, 2), out=outputs[0].reshape(count))

    return kernel


def _mask(context: KernelContext, behind: Array) -> Array | None:
    """Mask of minus infinity where a query does not see a key, else zero; None: it sees all."""
    window = int(context.attributes.get("window", 0))
    hidden = np.zeros(behind.shape, bool)
    if context.attributes.get("causal", True):
        hidden |= behind < 0
    if window:
        hidden |= np.abs(behind) >= window
    return np.where(hidden, -np.inf, 0).astype(context.inputs[0].dtype) if hidden.any() else None


def _slopes(context: KernelContext) -> Array | None:
    """Slopes of this rank's heads, one after the other; None without `alibi`."""
    exponent = context.number("alibi", 0.0)
    if not exponent:
        return None
    scores = context.inputs[0]
    global_heads, first, here = (
        dims[1:-2] for dims in (scores.global_shape, scores.offsets, scores.shape)
    )
    slopes = alibi_slopes(prod(global_heads), exponent).reshape(global_heads)
    rank_slopes = slopes[
        tuple(slice(start, start + n) for start, n in zip(first, here, strict=True))
    ]
    return rank_slopes.reshape(-1).astype(scores.dtype)
