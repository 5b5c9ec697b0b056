"""Layer norm and its two gradients; R rows (all leading dims), D features (the last dim).

With x̂ = (x − mean) · rstd, the forward pass keeps mean and rstd of every row, so that the
gradients need one pass over x to find x̂ again. Rows go in chunks that stay in the cache.
"""

from collections.abc import Sequence

import numpy as np

from millrace.executor.kernels.chunks import chunks, rows_of
from millrace.executor.kernels.context import Array, Kernel, KernelContext


def layer_norm(context: KernelContext) -> Kernel:
    """Kernel of y, mean and rstd from (x, gamma, beta)."""
    rows, columns, step = rows_of(context)
    epsilon = context.number("epsilon", 1e-5)
    averages = np.full(columns, 1 / columns, context.inputs[0].dtype)
    centred_rows = np.empty((step, columns), context.inputs[0].dtype)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        x, gamma, beta = inputs[0].reshape(rows, columns), inputs[1], inputs[2]
        y = outputs[0].reshape(rows, columns)
        mean, rstd = outputs[1].reshape(rows), outputs[2].reshape(rows)
        for part in chunks(rows, step):
            centred = centred_rows[: part.stop - part.start]
            np.matmul(x[part], averages, out=mean[part])
            np.subtract(x[part], mean[part, None], out=centred)
            rstd[part] = 1 / np.sqrt(np.vecdot(centred, centred) / columns + epsilon)
            np.multiply(centred, rstd[part, None], out=centred)
            np.multiply(centred, gamma, out=centred)
            np.add(centred, beta, out=y[part])

    return kernel


def layer_norm_grad_input(context: KernelContext) -> Kernel:
    """Kernel of dx from (dy, x, gamma, mean, rstd).

    With g = dy · gamma: dx = rstd · (g − mean(g) − x̂ · mean(g · x̂)); the factors rstd inside x̂
    join the row's scalar, which saves a pass.
    """
    rows, columns, step = rows_of(context)
    dtype = context.inputs[0].dtype
    averages = np.full(columns, 1 / columns, dtype)
    scaled_rows, centred_rows = (np.empty((step, columns), dtype) for _ in range(2))

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        dy, x = inputs[0].reshape(rows, columns), inputs[1].reshape(rows, columns)
        gamma, mean, rstd = inputs[2], inputs[3].reshape(rows), inputs[4].reshape(rows)
        dx = outputs[0].reshape(rows, columns)
        for part in chunks(rows, step):
            count = part.stop - part.start
            scaled, centred = scaled_rows[:count], centred_rows[:count]
            np.subtract(x[part], mean[part, None], out=centred)
            np.multiply(dy[part], gamma, out=scaled)
            along = np.vecdot(scaled, centred) * rstd[part] ** 2 / columns
            np.multiply(centred, along[:, None], out=centred)
            average = np.matmul(scaled, averages)
            np.subtract(scaled, centred, out=scaled)
            np.subtract(scaled, average[:, None], out=scaled)
            np.multiply(scaled, rstd[part, None], out=dx[part])

    return kernel


def layer_norm_grad_weight(context: KernelContext) -> Kernel:
    """Kernel of dgamma = Σ dy · x̂ and dbeta = Σ dy from (dy, x, mean, rstd), sums over rows."""
    rows, columns, step = rows_of(context)
    dtype = context.outputs[0].dtype
    ones = np.ones(step, dtype)
    products = np.empty((step, columns), dtype)
    partial = np.empty(columns, dtype)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        dy, x = inputs[0].reshape(rows, columns), inputs[1].reshape(rows, columns)
        mean, rstd = inputs[2].reshape(rows), inputs[3].reshape(rows)
        dgamma, dbeta = outputs
        dgamma.fill(0)
        dbeta.fill(0)
        for part in chunks(rows, step):
            count = part.stop - part.start
            product = products[:count]
            np.subtract(x[part], mean[part, None], out=product)
            np.multiply(product, dy[part], out=product)
            # rstd joins in the sum over rows, which saves a pass
            np.add(dgamma, np.matmul(rstd[part], product, out=partial), out=dgamma)
            np.add(dbeta, np.matmul(ones[:count], dy[part], out=partial), out=dbeta)

    return kernel
