"""RMS norm, its gradients, and rows brought to length one: their calls; R rows, D columns."""

import numpy as np

from millrace.executor.cuda.calls import Calls, read, same_calls, write
from millrace.executor.cuda.kernels.column_sums import ColumnSums
from millrace.executor.cuda.kernels.rows.norms import norm, norm_grad_input, norm_grad_weight
from millrace.executor.cuda.kernels.rows.row_partition import team_of
from millrace.executor.cuda.kernels.rows.vectorized_rows import (
    pack_of,
    read_at,
    require_one_dtype,
    rows_of,
    templated,
    write_at,
)
from millrace.executor.kernels.context import KernelContext

SOURCE = "rms_norm"


def rms_norm(context: KernelContext) -> Calls:
    """Calls of y and rstd of (x, gamma)."""
    x, _ = context.inputs
    require_one_dtype(context, x, context.outputs[0])
    return same_calls(
        norm(
            read_at(context, 0), read_at(context, 1), write(0), write_at(context, 1),
            columns=rows_of(x)[1], epsilon=context.number("epsilon", 1e-5),
        )
    )  # fmt: skip


def rms_norm_grad_input(context: KernelContext) -> Calls:
    """Calls of dx of (dy, x, gamma, rstd)."""
    require_one_dtype(context, context.inputs[0], context.outputs[0])
    dy, x, gamma, rstd = (read_at(context, number) for number in range(4))
    columns = rows_of(context.inputs[1])[1]
    return norm_grad_input(dy, x, gamma, rstd, write(0), columns=columns)


def rms_norm_grad_weight(context: KernelContext) -> Calls:
    """Calls of dgamma = Σ dy · x · rstd of (dy, x, rstd), a sum over rows."""
    dy, x, rstd = (read_at(context, number) for number in range(3))
    sums = ColumnSums(outputs=(write_at(context, 0),))
    return norm_grad_weight(dy, x, rstd, sums, columns=rows_of(context.inputs[1])[1])


def l2_normalize(context: KernelContext) -> Calls:
    """Calls of rows of length one, and of one over the length they had (at least `epsilon`)."""
    (x,), (y, rnorm) = context.inputs, context.outputs
    require_one_dtype(context, x, y)
    pack, (rows, columns) = pack_of(x), rows_of(x)
    team = team_of(rows, columns, pack)
    return same_calls(
        team.launch(
            SOURCE, templated("l2_normalize", (x, rnorm), pack, *team.arguments), rows, columns,
            read(0), write(0), write(1), np.float64(context.number("epsilon", 1e-12)),
        )
    )  # fmt: skip


def l2_normalize_grad(context: KernelContext) -> Calls:
    """Calls of dx = rnorm · (dy − y · Σ dy · y) of (dy, y, rnorm)."""
    dy, y, rnorm = context.inputs
    require_one_dtype(context, dy, context.outputs[0])
    pack, (rows, columns) = pack_of(dy, y), rows_of(y)
    team = team_of(rows, columns, pack)
    return same_calls(
        team.launch(
            SOURCE, templated("l2_normalize_grad", (dy, y, rnorm), pack, *team.arguments),
            rows, columns, read(0), read(1), read(2), write(0),
        )
    )  # fmt: skip
