"""Masked softmax: calls of attention's probabilities out of its scores, and of their gradient.

N heads of all samples, T queries here (from the shard's offset on), S keys (all of them).
"""

from math import prod

import numpy as np

from millrace.executor.cuda.calls import (
    BLOCK_THREADS,
    TYPES,
    Calls,
    Launch,
    read,
    same_calls,
    table,
    types,
    write,
)
from millrace.executor.cuda.kernels.rows.softmax import SOURCE, scaled_grad
from millrace.executor.cuda.kernels.rows.vectorized_rows import (
    over_rows,
    require_one_dtype,
    templated,
)
from millrace.executor.kernels.attention.scores import alibi_slopes
from millrace.executor.kernels.context import Array, KernelContext


def masked_softmax(context: KernelContext) -> Calls:
    """Calls of the softmax over keys of scale · x, less what ALiBi takes away, where not hidden.

    A head's sink, where it has one, is a score more.
    """
    x, *sinks = context.inputs
    sink_type = TYPES[sinks[0].dtype] if sinks else "none"
    require_one_dtype(context, x, *context.outputs)
    heads, queries = x.shape[1:-2], x.shape[-2]
    behind, ahead = reach(context)
    return same_calls(
        over_rows(
            SOURCE, templated("masked_softmax", (x,), sink_type), x,
            read(0), read(len(sinks)), table(0), write(0), np.float64(context.number("scale", 1.0)),
            np.int64(x.offsets[-2]), np.int64(behind), np.int64(ahead),
            np.int64(prod(heads)), np.int64(queries),
        ),
        tables=(head_slopes(context),),
    )  # fmt: skip


def masked_softmax_grad(context: KernelContext) -> Calls:
    """Calls of scale · y (dy − Σ y dy) of (y, dy)."""
    return scaled_grad(context, context.number("scale", 1.0))


def masked_softmax_grad_sink(context: KernelContext) -> Calls:
    """Calls of dsink of (y, dy): what is left of one is the sink's probability."""
    y, dy = context.inputs
    require_one_dtype(context, y, dy)
    samples, *_, queries, keys = y.shape
    heads = context.outputs[0].size
    launch = Launch(
        SOURCE,
        "masked_softmax_grad_sink" + types(y.dtype, context.outputs[0].dtype),
        (heads, 1, 1),
        (BLOCK_THREADS, 1, 1),
        (read(0), read(1), write(0), *(np.int64(size) for size in (samples, queries, keys))),
    )
    return same_calls(*((launch,) if heads else ()))


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
