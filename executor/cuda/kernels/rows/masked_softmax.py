"""Masked softmax: calls of attention's probabilities out of its scores, and of their gradient.

N heads of all samples, T queries here (from the shard's offset on), S keys (all of them).
"""

from math import prod

import numpy as np

from millrace.executor.cuda.calls import Calls, read, same_calls, table, write
from millrace.executor.cuda.kernels.rows.softmax import SOURCE, scaled_grad
from millrace.executor.cuda.kernels.rows.vectorized_rows import (
    over_rows,
    require_one_dtype,
    templated,
)
from millrace.executor.kernels.attention.scores import alibi_slopes
from millrace.executor.kernels.context import Array, KernelContext


def masked_softmax(context: KernelContext) -> Calls:
    """Calls of the softmax over keys of scale · x, less what ALiBi takes away, where not hidden."""
    (x,) = context.inputs
    require_one_dtype(context, x, *context.outputs)
    heads, queries = x.shape[1:-2], x.shape[-2]
    behind, ahead = reach(context)
    return same_calls(
        over_rows(
            SOURCE, templated("masked_softmax", (x,)), x,
            read(0), table(0), write(0), np.float64(context.number("scale", 1.0)),
            np.int64(x.offsets[-2]), np.int64(behind), np.int64(ahead),
            np.int64(prod(heads)), np.int64(queries),
        ),
        tables=(head_slopes(context),),
    )  # fmt: skip


def masked_softmax_grad(context: KernelContext) -> Calls:
    """Calls of scale · y (dy − Σ y dy) of (y, dy)."""
    return scaled_grad(context, context.number("scale", 1.0))


def reach(context: KernelContext) -> tuple[int, int]:
    """Distances before its own place, and after it, at which a query still sees keys."""
    *_, queries, keys = context.inputs[0].global_shape
    everything = queries + keys
    window = int(context.attributes.get("window", 0))
    behind = window - 1 if window else everything
    return behind, 0 if context.attributes.get("causal", True) else behind


def head_slopes(context: KernelContext) -> Array:
    """ALiBi's slopes of this rank's heads, one after the other; zeros without `alibi`."""
    scores = context.inputs[0]
    dtype = "float64" if scores.dtype == "float64" else "float32"
    all_heads, first, here = (x[1:-2] for x in (scores.global_shape, scores.offsets, scores.shape))
    exponent = context.number("alibi", 0.0)
    if not exponent:
        return np.zeros(prod(here), dtype)
    slopes = alibi_slopes(prod(all_heads), exponent).reshape(all_heads)
    shard_slopes = slopes[
        tuple(slice(start, start + n) for start, n in zip(first, here, strict=True))
    ]
    return shard_slopes.reshape(-1).astype(dtype)
