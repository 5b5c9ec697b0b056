"""Softmax over the last dim, and its gradient; R rows, D columns."""

from collections.abc import Sequence

import numpy as np

from millrace.executor.kernels.chunks import chunks, rows_of
from millrace.executor.kernels.context import Array, Kernel, KernelContext


def softmax(context: KernelContext) -> Kernel:
    """Kernel of exp(x − max) / Σ exp(x − max) of every row."""
    rows, columns, step = rows_of(context)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        x, y = inputs[0].reshape(rows, columns), outputs[0].reshape(rows, columns)
        for part in chunks(rows, step):
            largest = np.maximum.reduce(x[part], axis=1)
            np.subtract(x[part], largest[:, None], out=y[part])
            np.exp(y[part], out=y[part])
            total = np.add.reduce(y[part], axis=1)
            np.multiply(y[part], (1 / total)[:, None], out=y[part])

    return kernel


def softmax_grad(context: KernelContext) -> Kernel:
    """Kernel of y (dy − Σ y dy) from (y, dy)."""
    rows, columns, step = rows_of(context)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        y, dy, dx = (a.reshape(rows, columns) for a in (*inputs, *outputs))
        for part in chunks(rows, step):
            along = np.vecdot(y[part], dy[part])
            np.subtract(dy[part], along[:, None], out=dx[part])
            np.multiply(dx[part], y[part], out=dx[part])

    return kernel
