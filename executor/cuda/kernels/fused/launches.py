"""Launches for many tensors: the casts, sums of squares and updates of all variables."""

from collections import defaultdict
from collections.abc import Sequence

from executor.cuda.calls import Calls, Operand
from executor.cuda.kernels.fused.operands import read_by, written_by
from executor.cuda.kernels.in_turn import one_after_another, operand_at
from executor.cuda.kernels.multi_tensor import moves, updates
from executor.kernels.context import FusedPart, KernelContext

MANY = ("cast", "squared_sum", "adamw", "sgd")


def many_tensors(context: KernelContext) -> Calls | None:
    """Return the calls of an actor whose parts do one thing to many tensors; None: another actor.

    Raises
    ------
    ExecutorError
        The operands of a part differ in size.
    """
    kinds = {part.context.kind for part in context.parts}
    if len(kinds) > 1 or kinds.isdisjoint(MANY):
        return None
    (kind,) = kinds
    pairs = [(read_by(context, part, 0), written_by(context, part, 0)) for part in context.parts]
    if kind == "cast":
        return moves.cast(pairs)
    if kind == "squared_sum":
        return moves.squared_sum(pairs)
    rows: dict[tuple[float, ...], list[FusedPart]] = defaultdict(list)
    for part in context.parts:
        rows[_numbers(part.context)].append(part)
    return one_after_another([_update(context, parts) for parts in rows.values()])


def _numbers(context: KernelContext) -> tuple[float, ...]:
    """What one launch has one value of."""
    names = ("beta1", "beta2", "epsilon", "momentum", "weight_decay", "clip_norm")
    return tuple(context.number(name, 0.0) for name in names)


def _update(context: KernelContext, parts: Sequence[FusedPart]) -> Calls:
    """The update of variables whose numbers are the same."""
    first = parts[0]
    beta1, beta2, epsilon, momentum, weight_decay, clip_norm = _numbers(first.context)
    variables = [
        updates.Variable(
            value=read_by(context, part, 0),
            gradient=read_by(context, part, 1),
            next_value=operand_at(context, part.outputs[0]),
            state=tuple(Operand("state", at) for at in part.state),
        )
        for part in parts
    ]
    totals, rate = read_by(context, first, 2), read_by(context, first, 3)
    if first.context.kind == "sgd":
        return updates.sgd(
            variables,
            totals,
            rate,
            momentum=momentum,
            weight_decay=weight_decay,
            clip_norm=clip_norm,
        )
    return updates.adamw(
        variables,
        totals,
        rate,
        beta1=beta1,
        beta2=beta2,
        epsilon=epsilon,
        weight_decay=weight_decay,
        clip_norm=clip_norm,
    )
