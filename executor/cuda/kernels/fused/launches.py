"""Launches for many tensors: the casts, sums of squares and updates of all variables."""

from collections import defaultdict
from collections.abc import Sequence

from millrace.executor.cuda.calls import Calls, Operand
from millrace.executor.cuda.kernels.fused.operands import read_by, written_by
from millrace.executor.cuda.kernels.multi_tensor import moves, updates
from millrace.executor.cuda.kernels.unfused_parts import concatenated_calls, operand_at
from millrace.executor.kernels.context import FusedPart, KernelContext
from millrace.models.ops import kinds_where

Numbers = tuple[tuple[str, float], ...]
NUMBERS = {
    "adamw": ("beta1", "beta2", "epsilon", "weight_decay", "clip_norm"),
    "sgd": ("momentum", "weight_decay", "clip_norm"),
}

MANY = kinds_where(lambda row: row.launched_together)


def many_tensors(context: KernelContext) -> Calls | None:
    """Calls of an actor whose parts do one thing to many tensors; None: another actor.

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
    if kind == "accumulate":
        return moves.accumulate(pairs, context.parts[0].context.output_hold)
    if kind == "squared_sum":
        return moves.squared_sum(pairs)
    rows: dict[Numbers, list[FusedPart]] = defaultdict(list)
    for part in context.parts:
        rows[_numbers(part.context)].append(part)
    return concatenated_calls([_update(context, parts, numbers) for numbers, parts in rows.items()])


def _numbers(context: KernelContext) -> Numbers:
    """Numbers of an update that all variables of one launch share, where the op says them."""
    given = (name for name in NUMBERS[context.kind] if name in context.attributes)
    return tuple((name, context.number(name, 0.0)) for name in given)


def _update(context: KernelContext, parts: Sequence[FusedPart], numbers: Numbers) -> Calls:
    """Update of variables whose numbers are the same."""
    first = parts[0]
    variables = [
        updates.UpdatedVariable(
            value=read_by(context, part, 0),
            gradient=read_by(context, part, 1),
            next_value=operand_at(context, part.outputs[0]),
            state=tuple(Operand("state", number) for number in part.state),
        )
        for part in parts
    ]
    totals, rate = read_by(context, first, 2), read_by(context, first, 3)
    update = updates.sgd if first.context.kind == "sgd" else updates.adamw
    return update(variables, totals, rate, **dict(numbers))
