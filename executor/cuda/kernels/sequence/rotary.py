"""Rotary positions: their calls, on operands seen as [outer, T, heads, D]."""

from dataclasses import replace
from functools import lru_cache
from math import ceil, gcd

import numpy as np

from millrace.executor.cuda.calls import (
    BLOCK_THREADS,
    TYPES,
    WARP_THREADS,
    Calls,
    Launch,
    read,
    same_calls,
    table,
    write,
)
from millrace.executor.cuda.kernels.column_sums import packs_of
from millrace.executor.kernels.context import Array, KernelContext
from millrace.executor.kernels.sequence.rotary import RotaryAngles, shape_and_turning
from millrace.models.type_inference import at_least_float32


def rotary(context: KernelContext) -> Calls:
    """Calls that write every pair (x, y) as (x cos - y sin, y cos + x sin), times `amplitude`.

    Raises
    ------
    ExecutorError
        The features that turn are no pairs, or there is no label of positions.
    """
    (outer, positions, heads, features), turning = shape_and_turning(context)
    x, y = context.inputs[0], context.outputs[0]
    form = "true" if context.attributes["interleaved"] else "false"
    pairs = turning.dims // 2
    pack = packs_of(gcd(pairs, features - 2 * pairs), x.dtype, y.dtype)
    warps = ceil(heads * (features - pairs) / pack / WARP_THREADS)
    return same_calls(
        Launch(
            "rotary",
            f"rotary<{TYPES[x.dtype]}, {TYPES[y.dtype]}, {form}, {pack}>",
            (max(1, min(outer * positions, 2**31 - 1)), 1, 1),
            (max(1, min(warps, BLOCK_THREADS // WARP_THREADS)) * WARP_THREADS, 1, 1),
            (read(0), write(0), table(0), np.int64(positions), np.int32(features),
            np.int32(pairs), np.int32(-1 if turning.is_inverse else 1),
            np.int64(outer * positions), np.int64(heads * features)),
        ),
        tables=(_table(replace(turning, is_inverse=False, dtype=at_least_float32(x.dtype))),),
    )  # fmt: skip


@lru_cache(maxsize=32)
def _table(turning: RotaryAngles) -> Array:
    """Cosines and sines [2, T, pairs]; ops that agree, either way round, share one array."""
    cosines, sines = turning.tables()
    return np.stack((cosines[:, 0], sines[:, 0])).astype(turning.dtype)
