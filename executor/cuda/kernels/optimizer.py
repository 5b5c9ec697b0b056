"""Optimizer calls at a step's end: norms, totals, learning rate, AdamW, SGD, the step's count.

Gradients arrive as sums over the step's tokens times the loss scale of `Control`. The gradient that
is used is sum / (tokens · loss scale) · min(1, clip_norm / norm), where norm is that of
sum / (tokens · loss scale) over all variables. Where the totals' sum of squares is not finite no
variable and no moment changes.
"""

from collections.abc import Iterator
from itertools import groupby

import numpy as np

from millrace.executor.cuda.calls import (
    BLOCK_THREADS,
    CONTROL,
    POINTERS_MAX,
    WARP_THREADS,
    Call,
    Calls,
    Clear,
    Launch,
    Operand,
    Pointers,
    elementwise,
    read,
    same_calls,
    state,
    types,
    workspace,
    write,
)
from millrace.executor.cuda.kernels.context import CallsFactory
from millrace.executor.cuda.kernels.pieces import HostArray, in_pieces, offset_by
from millrace.executor.errors import ExecutorError
from millrace.executor.kernels.context import KernelContext
from millrace.models.graph import ITEMSIZE
from millrace.models.ops import state_of

SOURCE = "optimizer"
ONE_BLOCK = (BLOCK_THREADS, 1, 1)
ONE_WARP = (WARP_THREADS, 1, 1)
ONE_BLOCK_MAX = 16 * BLOCK_THREADS  # elements that one block adds up alone
PARTS_MAX = 1024  # blocks that share a longer sum
SCALARS = (1, 16, POINTERS_MAX)  # numbers of scalars that one launch of `add_scalars` takes
TOTALS = 3


def loss_scaled_fill(context: KernelContext) -> Calls:
    """Calls of the attribute `value` times the loss scale, for a `fill` with `loss_scaled`."""
    (y,) = context.outputs
    value = np.float64(context.number("value", 1.0))
    name = "loss_scaled_fill" + types(y.dtype)
    return same_calls(elementwise(SOURCE, name, y.size, CONTROL, write(0), value))


def squared_sum(context: KernelContext) -> Calls:
    """Calls of the sum of squares, added up in double in a fixed order."""
    (x,), (y,) = context.inputs, context.outputs
    size = np.int64(x.size)
    if x.size <= ONE_BLOCK_MAX:
        name = "squared_sum" + types(x.dtype, y.dtype)
        return same_calls(Launch(SOURCE, name, (1, 1, 1), ONE_BLOCK, (read(0), write(0), size)))
    parts = min(-(-x.size // ONE_BLOCK_MAX), PARTS_MAX)
    return same_calls(
        Launch(
            SOURCE, "squared_parts" + types(x.dtype), (parts, 1, 1), ONE_BLOCK,
            (read(0), workspace(), size),
        ),
        Launch(
            SOURCE, "sum_of_parts" + types(y.dtype), (1, 1, 1), ONE_BLOCK,
            (workspace(), write(0), np.int64(parts)),
        ),
        workspace_bytes=8 * parts,
    )  # fmt: skip


def step_totals(context: KernelContext) -> Calls:
    """Calls of (loss sum, token count, sum of squares), this rank's part of a sum over the world.

    Inputs are as the NumPy kernel's: the loss and the count unless `has_loss` is false, then
    squared sums. An input that is B on a mesh axis counts on the ranks at coordinate 0 of that axis
    only; elsewhere nothing reads it. Sums are kept in double until they are stored.
    """
    size_bytes = 8 * TOTALS
    calls: list[Call] = [Clear(workspace(), size_bytes)]
    for (total, dtype), group in groupby(_counted(context), key=lambda counted: counted[1:]):
        scalars = [read(number) for number, _, _ in group]
        for start in range(0, len(scalars), SCALARS[-1]):
            some = scalars[start : start + SCALARS[-1]]
            room = next(room for room in SCALARS if room >= len(some))
            pointers = Pointers((*some, *some[:1] * (room - len(some))))  # These are not read.
            name = f"add_scalars<{types(dtype)[1:-1]}, {room}>"
            args = (pointers, workspace(8 * total), np.int32(len(some)))
            calls.append(Launch(SOURCE, name, (1, 1, 1), ONE_WARP, args))
    name = "store_totals" + types(context.outputs[0].dtype)
    calls.append(Launch(SOURCE, name, (1, 1, 1), ONE_WARP, (workspace(), write(0))))
    return same_calls(*calls, workspace_bytes=size_bytes)


def _counted(context: KernelContext) -> Iterator[tuple[int, int, str]]:
    """Yield the number, the total and the dtype of every input that this rank counts."""
    squares_from = 2 if context.attributes.get("has_loss", True) else 0
    for number, shard in enumerate(context.inputs):
        sbp = context.input_sbp[number] if context.input_sbp else ()
        place = zip(sbp, context.coordinate, strict=True)
        if all(axis_sbp.kind != "B" or coordinate == 0 for axis_sbp, coordinate in place):
            yield number, min(number, 2) if squares_from else 2, shard.dtype


def learning_rate(context: KernelContext) -> Calls:
    """Calls of the learning rate of `Control.step`, as the NumPy kernel's `rate_at` says."""
    args = (
        np.float64(context.number("learning_rate", 1e-3)),
        np.float64(context.number("warmup_steps", 0)),
        np.float64(context.number("decay_steps", 0)),
        np.float64(context.number("final_fraction", 0.1)),
    )
    name = "learning_rate" + types(context.outputs[0].dtype)
    return same_calls(Launch(SOURCE, name, (1, 1, 1), ONE_WARP, (CONTROL, write(0), *args)))


def adamw(context: KernelContext) -> Calls:
    """Calls of the next value of a variable, of (w, gradient sum, totals, learning rate).

    Notes
    -----
    Loshchilov and Hutter 2019, algorithm 2. The bias is corrected by the count of updates, which
    leaves out skipped steps.
    """
    values = (
        np.float64(context.number("beta1", 0.9)),
        np.float64(context.number("beta2", 0.95)),
        np.float64(context.number("epsilon", 1e-8)),
        np.float64(context.number("weight_decay", 0.0)),
        np.float64(context.number("clip_norm", 0.0)),
    )
    return _update(context, "adamw", values)


def sgd(context: KernelContext) -> Calls:
    """Calls of the next value of a variable, of (w, gradient sum, totals, learning rate).

    With momentum the state is the velocity; without there is none.
    """
    momentum = context.number("momentum", 0.0)
    values = (
        np.float64(context.number("weight_decay", 0.0)),
        np.float64(context.number("clip_norm", 0.0)),
    )
    if not momentum:
        return _update(context, "sgd", values)
    return _update(context, "sgd_momentum", (np.float64(momentum), *values))


def _update(context: KernelContext, function: str, values: tuple[np.float64, ...]) -> Calls:
    """Calls of an optimizer: on all of a variable, or on pieces from host memory."""
    w, gradient, totals, rate = context.inputs
    if w.dtype != context.outputs[0].dtype:
        raise ExecutorError(
            f"{context.kind} writes the dtype that it reads, found {w.dtype} and "
            f"{context.outputs[0].dtype}",
            actor=context.name,
        )
    states = tuple(
        state(number) for number in range(len(state_of(context.kind, context.attributes)))
    )
    name = function + types(w.dtype, gradient.dtype, totals.dtype, rate.dtype)

    def launch(
        start: int, count: int, before: Operand, after: Operand, *state_operands: Operand
    ) -> Launch:
        slope = offset_by(read(1), start * ITEMSIZE[gradient.dtype])
        operands = (CONTROL, before, slope, read(2), read(3), after, *state_operands)
        return elementwise(SOURCE, name, count, *operands, *values)

    if not context.buffer_bytes:
        return same_calls(launch(0, w.size, read(0), write(0), *states))
    arrays = [HostArray(operand, ITEMSIZE[w.dtype], operand) for operand in states]
    if context.variable_in_host:
        arrays.append(HostArray(read(0), ITEMSIZE[w.dtype], write(0)))

    def work(start: int, count: int, places: tuple[Operand, ...]) -> tuple[Call, ...]:
        state_places = places[: len(states)]
        if context.variable_in_host:
            return (launch(start, count, places[-1], places[-1], *state_places),)
        offset = start * ITEMSIZE[w.dtype]
        return (
            launch(
                start, count, offset_by(read(0), offset), offset_by(write(0), offset), *state_places
            ),
        )

    return same_calls(*in_pieces(context.name, w.size, arrays, context.buffer_bytes, work))


OPTIMIZER: dict[str, CallsFactory] = {
    "adamw": adamw,
    "learning_rate": learning_rate,
    "sgd": sgd,
    "squared_sum": squared_sum,
    "step_totals": step_totals,
}
