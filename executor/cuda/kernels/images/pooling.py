"""Pooling: calls of the largest or the mean of every window, and of the gradients."""

from math import prod

import numpy as np

from millrace.executor.cuda.calls import (
    TYPES,
    Calls,
    Launch,
    Operand,
    by_row,
    elementwise,
    read,
    same_calls,
    table,
    types,
    workspace,
    write,
)
from millrace.executor.cuda.kernels.images.windows import Dim, dim_of_windows
from millrace.executor.cuda.kernels.strides import index_type
from millrace.executor.kernels.context import Array, KernelContext, Shard
from millrace.executor.kernels.images.order import rows_of_pooling
from millrace.models.graph import ITEMSIZE

SOURCE = "pooling"
PIECE_BYTES = 16
"""Bytes of neighbouring channels that a thread takes at once, where they come last."""
BYTE_NUMBERS = 255  # taps that a byte tells apart beside `none`


def max_pool(context: KernelContext) -> Calls:
    """Calls of the largest of every window."""
    x, y = context.inputs[0], context.outputs[0]
    dims = _dims(context, x, y)
    launch = _by_piece(context, "max_pool", y, _places(dims), "", read(0), write(0))
    return same_calls(launch, tables=_tables(dims))


def max_pool_grad(context: KernelContext) -> Calls:
    """Calls of dx of (x, dy): dy goes to the first of a window's largest, row by row.

    The first of two passes leaves the number of that tap in the workspace, so that a window is
    looked through once, and not again by every input that it holds.
    """
    x, dy = context.inputs
    dims = _dims(context, x, dy)
    is_byte = prod(dim.reach for dim in dims) <= BYTE_NUMBERS
    number = "unsigned char" if is_byte else "int"
    return same_calls(
        _by_piece(context, "largest_taps", dy, _places(dims), number, read(0), workspace()),
        _by_piece(
            context, "max_pool_grad", x, _cells(dims), number, read(1), workspace(), write(0)
        ),
        tables=_tables(dims),
        workspace_bytes=dy.size * (1 if is_byte else 4),
    )


def avg_pool(context: KernelContext) -> Calls:
    """Calls of the mean of every window, its padding counted as zeros."""
    x, y = context.inputs[0], context.outputs[0]
    dims = _dims(context, x, y)
    is_global = all(
        (dim.output_size, dim.size, dim.pad, dim.dilation) == (1, dim.input_size, 0, 1)
        for dim in dims
    )
    if is_global and rows_of_pooling(context) == 2:
        size = dims[0].input_size * dims[1].input_size
        name = "plane_means" + types(x.dtype)
        return same_calls(by_row(SOURCE, name, y.size, size, read(0), write(0)))
    launch = _by_piece(context, "avg_pool", y, _places(dims), "", read(0), write(0))
    return same_calls(launch, tables=_tables(dims))


def avg_pool_grad(context: KernelContext) -> Calls:
    """Calls of dx of dy: every window's share at each of its places."""
    dy, dx = context.inputs[0], context.outputs[0]
    dims = _dims(context, dx, dy)
    launch = _by_piece(context, "avg_pool_grad", dx, _cells(dims), "", read(0), write(0))
    return same_calls(launch, tables=_tables(dims))


def _dims(context: KernelContext, image: Shard, out: Shard) -> tuple[Dim, Dim]:
    """Dims y and x of the windows."""
    rows = rows_of_pooling(context)
    y, x = (
        dim_of_windows(
            context, dim, image.shape[axis], out.shape[axis], int(context.attributes[f"size_{dim}"])
        )
        for axis, dim in ((rows, "y"), (rows + 1, "x"))
    )
    return y, x


def _places(dims: tuple[Dim, Dim]) -> int:
    """Number of windows of a plane."""
    return prod(dim.output_size for dim in dims)


def _cells(dims: tuple[Dim, Dim]) -> int:
    """Number of cells of a plane."""
    return prod(dim.cells for dim in dims)


def _tables(dims: tuple[Dim, Dim]) -> tuple[Array, ...]:
    """Table of the windows' dims: `Pooling` of the source."""
    return (np.array(dims, np.int32),)


def _by_piece(
    context: KernelContext, name: str, out: Shard, places: int, number: str, *operands: Operand
) -> Launch:
    """Launch with a thread per piece of `places` to a plane.

    `out` is what it writes, or has its planes; `number` is the type of numbers of taps, if any.
    """
    rows = rows_of_pooling(context)
    planes, beside = prod(out.shape[:rows]), prod(out.shape[rows + 2 :])
    width = PIECE_BYTES // ITEMSIZE[out.dtype]
    if beside % width:
        width = 1
    count = planes * places * beside
    index = index_type(count, *(shard.size for shard in (*context.inputs, *context.outputs)))
    chosen = (TYPES[out.dtype], str(width), number, index)
    return elementwise(
        SOURCE, f"{name}<{', '.join(filter(None, chosen))}>", count // width, *operands, table(0),
        np.int64(beside),
    )  # fmt: skip
