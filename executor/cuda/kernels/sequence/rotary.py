"""Calls of rotary positions, seen as [outer, T, heads, D]."""

from dataclasses import replace
from functools import lru_cache

import numpy as np

from executor.cuda.calls import TYPES, Calls, always, by_row, read, table, write
from executor.kernels.context import Array, KernelContext
from executor.kernels.sequence.rotary import Turning, shape_and_turning
from models.inference import widened


def rotary(context: KernelContext) -> Calls:
    """Return every pair (x, y) as (x cos - y sin, y cos + x sin), times `amplitude`.

    Raises
    ------
    ExecutorError
        The features that turn are no pairs, or there is no label of positions.
    """
    (outer, positions, heads, features), turning = shape_and_turning(context)
    x, y = context.inputs[0], context.outputs[0]
    form = "true" if context.attributes["interleaved"] else "false"
    return always(
        by_row(
            "rotary",
            f"rotary<{TYPES[x.dtype]}, {TYPES[y.dtype]}, {form}>",
            outer * positions,
            heads * features,
            read(0), write(0), table(0), np.int64(positions), np.int32(features),
            np.int32(turning.dims // 2), np.int32(-1 if turning.is_inverse else 1),
        ),
        tables=(_table(replace(turning, is_inverse=False, dtype=widened(x.dtype))),),
    )  # fmt: skip


@lru_cache(maxsize=32)
def _table(turning: Turning) -> Array:
    """Return cosines and sines [2, T, pairs]; ops that agree, either way round, share one array."""
    cosines, sines = turning.tables()
    return np.stack((cosines[:, 0], sines[:, 0])).astype(turning.dtype)
