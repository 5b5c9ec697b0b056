"""Calls of layer norm and its gradients; R rows (all leading dims), D features (the last dim)."""

import numpy as np

from executor.cuda.calls import Calls, always, read, write
from executor.cuda.kernels.rows.packs import (
    by_pack,
    pack_of,
    require_one_dtype,
    rows_of,
    summed_over_rows,
    templated,
)
from executor.kernels.context import KernelContext

SOURCE = "layer_norm"


def layer_norm(context: KernelContext) -> Calls:
    """Return y, mean and rstd of (x, gamma, beta)."""
    x, gamma, beta = context.inputs
    y, mean, rstd = context.outputs
    require_one_dtype(context, x, y)
    require_one_dtype(context, gamma, beta)
    require_one_dtype(context, mean, rstd)
    pack = pack_of(x, gamma)
    return always(
        by_pack(
            SOURCE, templated("layer_norm", (x, gamma, mean), pack), *rows_of(x), pack,
            read(0), read(1), read(2), write(0), write(1), write(2),
            np.float64(context.number("epsilon", 1e-5)),
        )
    )  # fmt: skip


def layer_norm_grad_input(context: KernelContext) -> Calls:
    """Return dx of (dy, x, gamma, mean, rstd)."""
    dy, x, gamma, mean, rstd = context.inputs
    require_one_dtype(context, dy, context.outputs[0])
    require_one_dtype(context, mean, rstd)
    pack = pack_of(dy, x, gamma)
    return always(
        by_pack(
            SOURCE, templated("layer_norm_grad_input", (dy, x, gamma, mean), pack), *rows_of(x),
            pack, read(0), read(1), read(2), read(3), read(4), write(0),
        )
    )  # fmt: skip


def layer_norm_grad_weight(context: KernelContext) -> Calls:
    """Return dgamma = Σ dy · x̂ and dbeta = Σ dy of (dy, x, mean, rstd), sums over rows."""
    dy, x, mean, rstd = context.inputs
    require_one_dtype(context, mean, rstd)
    require_one_dtype(context, *context.outputs)
    pack = pack_of(dy, x)
    return summed_over_rows(
        SOURCE, templated("layer_norm_grad_weight", (dy, x, rstd), pack), context, pack,
        read(0), read(1), read(2), read(3),
    )  # fmt: skip
