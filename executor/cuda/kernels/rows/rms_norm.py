"""Calls of RMS norm with its gradients, and of rows brought to length one; R rows, D columns."""

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

SOURCE = "rms_norm"


def rms_norm(context: KernelContext) -> Calls:
    """Return y and rstd of (x, gamma)."""
    x, gamma = context.inputs
    y, rstd = context.outputs
    require_one_dtype(context, x, y)
    pack = pack_of(x, gamma)
    return always(
        by_pack(
            SOURCE, templated("rms_norm", (x, gamma, rstd), pack), *rows_of(x), pack,
            read(0), read(1), write(0), write(1), np.float64(context.number("epsilon", 1e-5)),
        )
    )  # fmt: skip


def rms_norm_grad_input(context: KernelContext) -> Calls:
    """Return dx of (dy, x, gamma, rstd)."""
    dy, x, gamma, rstd = context.inputs
    require_one_dtype(context, dy, context.outputs[0])
    pack = pack_of(dy, x, gamma)
    return always(
        by_pack(
            SOURCE, templated("rms_norm_grad_input", (dy, x, gamma, rstd), pack), *rows_of(x),
            pack, read(0), read(1), read(2), read(3), write(0),
        )
    )  # fmt: skip


def rms_norm_grad_weight(context: KernelContext) -> Calls:
    """Return dgamma = Σ dy · x · rstd of (dy, x, rstd), a sum over rows."""
    dy, x, rstd = context.inputs
    pack = pack_of(dy, x)
    return summed_over_rows(
        SOURCE, templated("rms_norm_grad_weight", (dy, x, rstd), pack), context, pack,
        read(0), read(1), read(2),
    )  # fmt: skip


def l2_normalize(context: KernelContext) -> Calls:
    """Return rows of length one, and one over the length they had (at least `epsilon`)."""
    (x,), (y, rnorm) = context.inputs, context.outputs
    require_one_dtype(context, x, y)
    pack = pack_of(x)
    return always(
        by_pack(
            SOURCE, templated("l2_normalize", (x, rnorm), pack), *rows_of(x), pack,
            read(0), write(0), write(1), np.float64(context.number("epsilon", 1e-12)),
        )
    )  # fmt: skip


def l2_normalize_grad(context: KernelContext) -> Calls:
    """Return dx = rnorm · (dy − y · Σ dy · y) of (dy, y, rnorm)."""
    dy, y, rnorm = context.inputs
    require_one_dtype(context, dy, context.outputs[0])
    pack = pack_of(dy, y)
    return always(
        by_pack(
            SOURCE, templated("l2_normalize_grad", (dy, y, rnorm), pack), *rows_of(y), pack,
            read(0), read(1), read(2), write(0),
        )
    )  # fmt: skip
