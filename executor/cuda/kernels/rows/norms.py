"""Norms with the ops next to them in a transformer: launches of layer norm and RMS norm.

What they are given is plain, not a context: the op factories of `layer_norm.py` and `rms_norm.py`
call them, and so does whoever makes one pass over memory of several ops. What several ops would
have stored between them is rounded as they would have stored it, so that values are the same.
"""

from dataclasses import dataclass

import numpy as np

from millrace.executor.cuda.calls import TYPES, Calls, CallTensor, Launch, Operand
from millrace.executor.cuda.kernels.column_sums import (
    NOTHING,
    ColumnSums,
    added_up,
    packs_of,
    summed_in_slabs,
)
from millrace.executor.cuda.kernels.rows.row_partition import team_of
from millrace.models.type_inference import at_least_float32


@dataclass(frozen=True, slots=True, kw_only=True)
class NormResidual:
    """Tensor that is added to a norm's input before it, and place of the sum."""

    other: Operand
    total: Operand


def norm(
    x: CallTensor,
    gamma: CallTensor,
    y: Operand,
    rstd: CallTensor,
    *,
    columns: int,
    epsilon: float,
    beta: Operand | None = None,
    mean: Operand | None = None,
    residual: NormResidual | None = None,
) -> Launch:
    """Launch of y and rstd of (x, gamma): layer norm where there is a beta, else RMS.

    Parameters
    ----------
    x, gamma, rstd
        Tensors with their dtypes: beta has gamma's, y and a residual x's, the mean that of rstd.
    y, mean
        Places of the outputs.
    columns, epsilon
        Features of a row, and what is added to the variance.
    residual
        The norm is of x + other, which goes to `total`.
    """
    pack = packs_of(columns, x.dtype, gamma.dtype)
    rows = x.size // max(columns, 1)
    team = team_of(rows, columns, pack)
    kind = "rms_norm" if beta is None else "layer_norm"
    types = (TYPES[x.dtype], TYPES[gamma.dtype], TYPES[rstd.dtype])
    flags = (str(pack), *team.arguments, _flag(residual is not None))
    other, total = (residual.other, residual.total) if residual else (x.operand, y)
    weights = (gamma.operand,) if beta is None else (gamma.operand, beta)
    statistics = (rstd.operand,) if mean is None else (mean, rstd.operand)
    return team.launch(
        kind, f"{kind}<{', '.join((*types, *flags))}>", rows, columns,
        x.operand, other, *weights, total, y, *statistics, np.float64(epsilon),
    )  # fmt: skip


def norm_grad_input(
    dy: CallTensor,
    x: CallTensor,
    gamma: CallTensor,
    rstd: CallTensor,
    dx: Operand,
    *,
    columns: int,
    mean: Operand | None = None,
    other: Operand | None = None,
    weights: ColumnSums | None = None,
) -> Calls:
    """Calls of dx of (dy, x, gamma, rstd): of layer norm where there is a mean, else of RMS norm.

    Parameters
    ----------
    dy, x, gamma, rstd
        Tensors with their dtypes: dx and `other` have dy's, the mean that of rstd.
    other
        Tensor that is added to dx, as the gradient of what goes around a norm is.
    weights
        Places of the gradients of gamma (and of beta): then dy and x are read once for all three.
        Where rows are longer than registers hold, a pass of its own adds these up.
    """
    pack = packs_of(columns, dy.dtype, x.dtype, gamma.dtype)
    rows = x.size // max(columns, 1)
    team = team_of(rows, columns, pack)
    kind = "rms_norm" if mean is None else "layer_norm"
    # Two sums for every feature that a thread has: four packs of them are more than it can keep.
    together = weights is not None and (team.by_warp or team.packs == 2)
    dtypes = (dy.dtype, x.dtype, gamma.dtype, rstd.dtype)
    flags = (str(pack), *team.arguments, _flag(other is not None), _flag(together))
    statistics = (rstd.operand,) if mean is None else (mean, rstd.operand)
    sums = weights.scratch if weights is not None and together else NOTHING
    launch = team.launch(
        kind,
        f"{kind}_grad_input<{', '.join((*(TYPES[dtype] for dtype in dtypes), *flags))}>",
        rows, columns,
        dy.operand, x.operand, gamma.operand, *statistics, dx if other is None else other, dx, sums,
        **({"blocks_max": team.slab_blocks} if together else {}),
    )  # fmt: skip
    if weights is None:
        return Calls(of=lambda firing: (launch,))
    if not together:
        rest = norm_grad_weight(dy, x, rstd, weights, columns=columns, mean=mean)
        return Calls(
            of=lambda firing: (*rest.of(firing), launch), workspace_bytes=rest.workspace_bytes
        )
    return added_up(weights, at_least_float32(rstd.dtype), launch.grid[0], columns, launch)


def norm_grad_weight(
    dy: CallTensor,
    x: CallTensor,
    rstd: CallTensor,
    weights: ColumnSums,
    *,
    columns: int,
    mean: Operand | None = None,
) -> Calls:
    """Calls of the gradients of gamma, and with a mean of beta: sums over rows."""
    pack = packs_of(columns, dy.dtype, x.dtype)
    kind = "rms_norm" if mean is None else "layer_norm"
    types = (TYPES[dy.dtype], TYPES[x.dtype], TYPES[rstd.dtype], str(pack))
    statistics = (rstd.operand,) if mean is None else (mean, rstd.operand)
    return summed_in_slabs(
        kind, f"{kind}_grad_weight<{', '.join(types)}>", x.size // max(columns, 1), columns, pack,
        weights, at_least_float32(rstd.dtype), dy.operand, x.operand, *statistics,
    )  # fmt: skip


def _flag(on: bool) -> str:
    return str(on).lower()
