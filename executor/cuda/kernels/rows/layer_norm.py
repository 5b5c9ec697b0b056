"""Layer norm and its gradients: their calls; R rows (all leading dims), D features (the last)."""

from millrace.executor.cuda.calls import Calls, read, same_calls, write
from millrace.executor.cuda.kernels.column_sums import ColumnSums
from millrace.executor.cuda.kernels.rows.norms import norm, norm_grad_input, norm_grad_weight
from millrace.executor.cuda.kernels.rows.vectorized_rows import (
    read_at,
    require_one_dtype,
    rows_of,
    write_at,
)
from millrace.executor.kernels.context import KernelContext


def layer_norm(context: KernelContext) -> Calls:
    """Calls of y, mean and rstd of (x, gamma, beta)."""
    x, gamma, beta = context.inputs
    y, mean, rstd = context.outputs
    require_one_dtype(context, x, y)
    require_one_dtype(context, gamma, beta)
    require_one_dtype(context, mean, rstd)
    return same_calls(
        norm(
            read_at(context, 0), read_at(context, 1), write(0), write_at(context, 2),
            columns=rows_of(x)[1], epsilon=context.number("epsilon", 1e-5), beta=read(2),
            mean=write(1),
        )
    )  # fmt: skip


def layer_norm_grad_input(context: KernelContext) -> Calls:
    """Calls of dx of (dy, x, gamma, mean, rstd)."""
    require_one_dtype(context, context.inputs[0], context.outputs[0])
    require_one_dtype(context, *context.inputs[3:])
    dy, x, gamma, rstd = (read_at(context, number) for number in (0, 1, 2, 4))
    columns = rows_of(context.inputs[1])[1]
    return norm_grad_input(dy, x, gamma, rstd, write(0), columns=columns, mean=read(3))


def layer_norm_grad_weight(context: KernelContext) -> Calls:
    """Calls of dgamma = Σ dy · x̂ and dbeta = Σ dy of (dy, x, mean, rstd), sums over rows."""
    _, x, mean, rstd = context.inputs
    require_one_dtype(context, mean, rstd)
    require_one_dtype(context, *context.outputs)
    sums = ColumnSums(outputs=(write_at(context, 0), write_at(context, 1)))
    dy, x_tensor, rstd_tensor = (read_at(context, number) for number in (0, 1, 3))
    return norm_grad_weight(dy, x_tensor, rstd_tensor, sums, columns=rows_of(x)[1], mean=read(2))
