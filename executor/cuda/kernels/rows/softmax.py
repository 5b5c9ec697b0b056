"""Softmax over the last dim, and its gradient: their calls; R rows, D columns."""

from math import ceil

import numpy as np

from millrace.executor.cuda.calls import PACK_BYTES, Calls, read, same_calls, write
from millrace.executor.cuda.kernels.rows.vectorized_rows import (
    over_rows,
    require_one_dtype,
    row_threads,
    rows_of,
    templated,
)
from millrace.executor.kernels.context import KernelContext, Shard
from millrace.models.graph import ITEMSIZE

SOURCE = "softmax"
PACKS_PER_THREAD = (1, 2, 4)  # numbers of packs that a thread may keep


def softmax(context: KernelContext) -> Calls:
    """Calls of exp(x − max) / Σ exp(x − max) of every row."""
    (x,) = context.inputs
    require_one_dtype(context, x, *context.outputs)
    return same_calls(
        over_rows(SOURCE, templated("softmax", (x,), packs_per_thread(x)), x, read(0), write(0))
    )


def softmax_grad(context: KernelContext) -> Calls:
    """Calls of y (dy − Σ y dy) of (y, dy)."""
    return scaled_grad(context, 1.0)


def scaled_grad(context: KernelContext, scale: float) -> Calls:
    """Calls of scale · y (dy − Σ y dy) of (y, dy)."""
    y, dy = context.inputs
    require_one_dtype(context, y, dy, *context.outputs)
    return same_calls(
        over_rows(
            SOURCE, templated("softmax_grad", (y,), packs_per_thread(y)), y,
            read(0), read(1), write(0), np.float64(scale),
        )
    )  # fmt: skip


def packs_per_thread(x: Shard) -> int:
    """Packs of a row that a thread keeps; 0: rows are longer than registers hold.

    A row that begins inside a pack touches one more than it fills.
    """
    columns = rows_of(x)[1]
    packs = ceil(columns * ITEMSIZE[x.dtype] / PACK_BYTES) + 1
    thread_packs = ceil(packs / row_threads(columns, PACK_BYTES // ITEMSIZE[x.dtype]))
    return next((count for count in PACKS_PER_THREAD if count >= thread_packs), 0)
