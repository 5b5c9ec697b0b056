"""Calls of softmax over the last dim, and of its gradient; R rows, D columns."""

import numpy as np

from executor.cuda.calls import Calls, always, read, write
from executor.cuda.kernels.rows.packs import over_rows, require_one_dtype, templated
from executor.kernels.context import KernelContext

SOURCE = "softmax"


def softmax(context: KernelContext) -> Calls:
    """Return exp(x − max) / Σ exp(x − max) of every row."""
    (x,) = context.inputs
    require_one_dtype(context, x, *context.outputs)
    return always(over_rows(SOURCE, templated("softmax", (x,)), x, read(0), write(0)))


def softmax_grad(context: KernelContext) -> Calls:
    """Return y (dy − Σ y dy) of (y, dy)."""
    return scaled_grad(context, 1.0)


def scaled_grad(context: KernelContext, scale: float) -> Calls:
    """Return scale · y (dy − Σ y dy) of (y, dy)."""
    y, dy = context.inputs
    require_one_dtype(context, y, dy, *context.outputs)
    return always(
        over_rows(
            SOURCE, templated("softmax_grad", (y,)), y,
            read(0), read(1), write(0), np.float64(scale),
        )
    )  # fmt: skip
