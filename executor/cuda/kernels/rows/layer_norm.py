"""Calls of layer norm and its gradients; R rows (all leading dims), D features (the last dim)."""

import numpy as np

from executor.cuda.calls import Calls, always, by_row, read, types, write
from executor.kernels.context import KernelContext

SOURCE = "layer_norm"


def layer_norm(context: KernelContext) -> Calls:
    """Return y, mean and rstd of (x, gamma, beta)."""
    x, gamma, _ = context.inputs
    columns = x.shape[-1]
    return always(
        by_row(
            SOURCE,
            "layer_norm" + types(x.dtype, gamma.dtype, context.outputs[1].dtype),
            x.size // columns,
            columns,
            read(0), read(1), read(2), write(0), write(1), write(2),
            np.float64(context.number("epsilon", 1e-5)),
        )
    )  # fmt: skip
