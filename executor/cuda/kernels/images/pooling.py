"""Calls of pooling: the largest or the mean of every window, and the gradients."""

from math import prod

import numpy as np

from executor.cuda.calls import (
    TYPES,
    Calls,
    Operand,
    always,
    by_row,
    elementwise,
    read,
    table,
    types,
    write,
)
from executor.cuda.kernels.images.windows import Dim, dim_of_windows
from executor.cuda.kernels.strides import index_type
from executor.kernels.context import KernelContext, Shard
from executor.kernels.images.order import rows_of_pooling
from models.graph import ITEMSIZE

SOURCE = "pooling"
PIECE_BYTES = 16
"""Bytes of neighbouring channels that a thread takes at once, where they come last."""


def max_pool(context: KernelContext) -> Calls:
    """Return the largest of every window."""
    x, y = context.inputs[0], context.outputs[0]
    return _by_piece(context, _dims(context, x, y), read(0), write(0))


def max_pool_grad(context: KernelContext) -> Calls:
    """Return dx of (x, dy): dy goes to the first of a window's largest, row by row."""
    x, dy = context.inputs
    return _by_piece(context, _dims(context, x, dy), read(0), read(1), write(0))


def avg_pool(context: KernelContext) -> Calls:
    """Return the mean of every window, its padding counted as zeros."""
    x, y = context.inputs[0], context.outputs[0]
    dims = _dims(context, x, y)
    is_global = all(
        (dim.made, dim.size, dim.pad, dim.dilation) == (1, dim.given, 0, 1) for dim in dims
    )
    if is_global and rows_of_pooling(context) == 2:
        size = dims[0].given * dims[1].given
        name = "plane_means" + types(x.dtype)
        return always(by_row(SOURCE, name, y.size, size, read(0), write(0)))
    return _by_piece(context, dims, read(0), write(0))


def avg_pool_grad(context: KernelContext) -> Calls:
    """Return dx of dy: every window's share at each of its places."""
    dy, dx = context.inputs[0], context.outputs[0]
    return _by_piece(context, _dims(context, dx, dy), read(0), write(0))


def _dims(context: KernelContext, image: Shard, made: Shard) -> tuple[Dim, Dim]:
    """Return y and x."""
    rows = rows_of_pooling(context)
    y, x = (
        dim_of_windows(
            context, dim, image.shape[at], made.shape[at], int(context.attributes[f"size_{dim}"])
        )
        for at, dim in ((rows, "y"), (rows + 1, "x"))
    )
    return y, x


def _by_piece(context: KernelContext, dims: tuple[Dim, Dim], *operands: Operand) -> Calls:
    """Return a launch of the kernel named like the op, with a thread per piece that it makes."""
    out = context.outputs[0]
    beside = prod(out.shape[rows_of_pooling(context) + 2 :])
    width = PIECE_BYTES // ITEMSIZE[out.dtype]
    if beside % width:
        width = 1
    chosen = f"{TYPES[out.dtype]}, {width}, {index_type(out.size)}"
    launch = elementwise(
        SOURCE, f"{context.kind}<{chosen}>", out.size // width, *operands, table(0),
        np.int64(beside),
    )  # fmt: skip
    return always(launch, tables=(np.array(dims, np.int64),))
