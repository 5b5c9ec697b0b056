"""Updates of many variables: AdamW and SGD, as `optimizer.py` has them for one."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from millrace.executor.cuda.calls import CONTROL, Calls, CallTensor, Operand, same_calls
from millrace.executor.cuda.kernels.multi_tensor.tensor_chunks import (
    LaunchBuilder,
    groups,
    types_of,
)
from millrace.executor.errors import ExecutorError


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdatedVariable:
    """One variable of an update.

    Parameters
    ----------
    value, gradient
        Tensors that are read; the gradient is the step's sum, in a dtype of its own.
    next_value
        Place of the next value, which may be where the value is.
    state
        The moments m and v of AdamW, or the velocity of SGD with momentum, in the value's dtype.
    """

    value: CallTensor
    gradient: CallTensor
    next_value: Operand
    state: tuple[Operand, ...] = ()


def adamw(
    variables: Sequence[UpdatedVariable],
    totals: CallTensor,
    rate: CallTensor,
    *,
    beta1: float = 0.9,
    beta2: float = 0.95,
    epsilon: float = 1e-8,
    weight_decay: float = 0.0,
    clip_norm: float = 0.0,
) -> Calls:
    """Calls of the next values of variables; numbers are those of `optimizer.adamw`.

    Parameters
    ----------
    variables
        Each with the two moments as its state.
    totals, rate
        Loss sum, token count and sum of squares of the step, and its learning rate.

    Raises
    ------
    ExecutorError
        A variable has another number of states, or its gradient another size.
    """
    values = (beta1, beta2, epsilon, weight_decay, clip_norm)
    return _update("adamw", variables, 2, totals, rate, values)


def sgd(
    variables: Sequence[UpdatedVariable],
    totals: CallTensor,
    rate: CallTensor,
    *,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    clip_norm: float = 0.0,
) -> Calls:
    """Calls of the next values of variables, as `adamw`; without momentum they have no state."""
    if not momentum:
        return _update("sgd", variables, 0, totals, rate, (weight_decay, clip_norm))
    values = (momentum, weight_decay, clip_norm)
    return _update("sgd_momentum", variables, 1, totals, rate, values)


def _update(
    kind: str,
    variables: Sequence[UpdatedVariable],
    states: int,
    totals: CallTensor,
    rate: CallTensor,
    values: Sequence[float],
) -> Calls:
    builder = LaunchBuilder()
    rows = [_row(kind, variable, states) for variable in variables]
    for group in groups(kind, rows):
        types = types_of(*group.dtypes[:2], totals.dtype, rate.dtype)
        numbers = (np.float64(value) for value in values)
        builder.add(
            group, f"{kind}_of_many", types, CONTROL, totals.operand, rate.operand, *numbers
        )  # fmt: skip
    return same_calls(*builder.launches, tables=tuple(builder.tables))


def _row(kind: str, variable: UpdatedVariable, states: int) -> tuple[CallTensor, ...]:
    """A variable's operands in the order of the kernel's columns."""
    if len(variable.state) != states:
        raise ExecutorError(
            f"{kind} of many tensors keeps {states} arrays of state of each, found "
            f"{len(variable.state)} ({variable.value.operand})"
        )
    written = (variable.next_value, *variable.state)
    value = variable.value
    return (value, variable.gradient, *(value._replace(operand=operand) for operand in written))
