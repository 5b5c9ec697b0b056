"""RMS norm with its two gradients, and rows brought to length one; R rows, D columns.

Zhang and Sennrich, "Root mean square layer normalization", 2019: y = x · rstd · gamma with rstd =
1 / √(mean(x²) + epsilon), which the forward pass keeps per row.
"""

from collections.abc import Sequence

import numpy as np

from millrace.executor.kernels.chunks import chunks, rows_of
from millrace.executor.kernels.context import Array, Kernel, KernelContext


def rms_norm(context: KernelContext) -> Kernel:
    """Kernel of y and rstd from (x, gamma)."""
    rows, columns, step = rows_of(context)
    epsilon = context.number("epsilon", 1e-5)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        x, gamma = inputs[0].reshape(rows, columns), inputs[1]
        y, rstd = outputs[0].reshape(rows, columns), outputs[1].reshape(rows)
        for part in chunks(rows, step):
            rstd[part] = 1 / np.sqrt(np.vecdot(x[part], x[part]) / columns + epsilon)
            np.multiply(x[part], rstd[part, None], out=y[part])
            np.multiply(y[part], gamma, out=y[part])

    return kernel


def rms_norm_grad_input(context: KernelContext) -> Kernel:
    """Kernel of dx from (dy, x, gamma, rstd).

    With g = dy · gamma: dx = rstd · (g − x · rstd² · mean(g · x)).
    """
    rows, columns, step = rows_of(context)
    scaled_rows, moved_rows = (np.empty((step, columns), context.inputs[0].dtype) for _ in range(2))

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        dy, x = inputs[0].reshape(rows, columns), inputs[1].reshape(rows, columns)
        gamma, rstd = inputs[2], inputs[3].reshape(rows)
        dx = outputs[0].reshape(rows, columns)
        for part in chunks(rows, step):
            scaled, moved = (a[: part.stop - part.start] for a in (scaled_rows, moved_rows))
            np.multiply(dy[part], gamma, out=scaled)
            along = np.vecdot(scaled, x[part]) * rstd[part] ** 2 / columns
            np.multiply(x[part], along[:, None], out=moved)
            np.subtract(scaled, moved, out=scaled)
            np.multiply(scaled, rstd[part, None], out=dx[part])

    return kernel


def rms_norm_grad_weight(context: KernelContext) -> Kernel:
    """Kernel of dgamma = Σ dy · x · rstd from (dy, x, rstd), a sum over rows."""
    rows, columns, step = rows_of(context)
    dtype = context.outputs[0].dtype
    products = np.empty((step, columns), dtype)
    partial = np.empty(columns, dtype)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        dy, x = inputs[0].reshape(rows, columns), inputs[1].reshape(rows, columns)
        rstd, dgamma = inputs[2].reshape(rows), outputs[0]
        dgamma.fill(0)
        for part in chunks(rows, step):
            product = products[: part.stop - part.start]
            np.multiply(x[part], dy[part], out=product)
            # rstd joins in the sum over rows, which saves a pass
            np.add(dgamma, np.matmul(rstd[part], product, out=partial), out=dgamma)

    return kernel


def l2_normalize(context: KernelContext) -> Kernel:
    """Kernel of rows of length one, and one over the length they had (at least `epsilon`)."""
    rows, columns, step = rows_of(context)
    epsilon = context.number("epsilon", 1e-12)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        x, y = inputs[0].reshape(rows, columns), outputs[0].reshape(rows, columns)
        rnorm = outputs[1].reshape(rows)
        for part in chunks(rows, step):
            length = np.sqrt(np.vecdot(x[part], x[part]))
            np.divide(1, np.maximum(length, epsilon), out=rnorm[part])
            np.multiply(x[part], rnorm[part, None], out=y[part])

    return kernel


def l2_normalize_grad(context: KernelContext) -> Kernel:
    """Kernel of dx = rnorm · (dy − y · Σ dy · y) from (dy, y, rnorm)."""
    rows, columns, step = rows_of(context)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        dy, y, dx = (a.reshape(rows, columns) for a in (*inputs[:2], *outputs))
        rnorm = inputs[2].reshape(rows)
        for part in chunks(rows, step):
            along = np.vecdot(dy[part], y[part])
            np.multiply(y[part], along[:, None], out=dx[part])
            np.subtract(dy[part], dx[part], out=dx[part])
            np.multiply(dx[part], rnorm[part, None], out=dx[part])

    return kernel
