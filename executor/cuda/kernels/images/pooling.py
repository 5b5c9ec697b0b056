"""Calls of pooling: the largest or the mean of every window, and the gradients."""

import numpy as np

from executor.cuda.calls import (
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
from executor.kernels.context import KernelContext, Shard

SOURCE = "pooling"


def max_pool(context: KernelContext) -> Calls:
    """Return the largest of every window."""
    x, y = context.inputs[0], context.outputs[0]
    return _by_element(context, _dims(context, x, y), read(0), write(0))


def max_pool_grad(context: KernelContext) -> Calls:
    """Return dx of (x, dy): dy goes to the first of a window's largest, row by row."""
    x, dy = context.inputs
    return _by_element(context, _dims(context, x, dy), read(0), read(1), write(0))


def avg_pool(context: KernelContext) -> Calls:
    """Return the mean of every window, its padding counted as zeros."""
    x, y = context.inputs[0], context.outputs[0]
    dims = _dims(context, x, y)
    if all((dim.made, dim.size, dim.pad, dim.dilation) == (1, dim.given, 0, 1) for dim in dims):
        size = dims[0].given * dims[1].given
        name = "plane_means" + types(x.dtype)
        return always(by_row(SOURCE, name, y.size, size, read(0), write(0)))
    return _by_element(context, dims, read(0), write(0))


def avg_pool_grad(context: KernelContext) -> Calls:
    """Return dx of dy: every window's share at each of its places."""
    dy, dx = context.inputs[0], context.outputs[0]
    return _by_element(context, _dims(context, dx, dy), read(0), write(0))


def _dims(context: KernelContext, image: Shard, made: Shard) -> tuple[Dim, Dim]:
    """Return y and x."""
    y, x = (
        dim_of_windows(
            context, dim, image.shape[at], made.shape[at], int(context.attributes[f"size_{dim}"])
        )
        for at, dim in ((2, "y"), (3, "x"))
    )
    return y, x


def _by_element(context: KernelContext, dims: tuple[Dim, Dim], *operands: Operand) -> Calls:
    """Return a launch of the kernel named like the op, with a thread per element it makes."""
    out = context.outputs[0]
    name = context.kind + types(out.dtype)
    launch = elementwise(SOURCE, name, out.size, *operands, table(0))
    return always(launch, tables=(np.array(dims, np.int64),))
