"""Parts of a fused actor one after the other, what passes between them in scratch.

The workspace holds what is inner first, then the scratch of the parts, which take turns in it.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from millrace.executor.cuda.binding import Place, bind
from millrace.executor.cuda.calls import (
    Call,
    Calls,
    Operand,
    aligned,
    read,
    table,
    workspace,
    write,
)
from millrace.executor.kernels.context import FusedPart, KernelContext, Shard


def unfused_calls(context: KernelContext, parts: Sequence[Calls]) -> Calls:
    """Calls of a fused actor, made of those of its parts alone."""
    end = sum(map(_room, context.inner))
    part_calls = concatenated_calls(
        [
            placed(calls, _place(context, part, end))
            for part, calls in zip(context.parts, parts, strict=True)
        ]
    )
    return replace(part_calls, workspace_bytes=end + part_calls.workspace_bytes)


def concatenated_calls(several: Sequence[Calls]) -> Calls:
    """Calls of one actor that makes those of all `several` in turn, in one scratch."""
    firsts = list(accumulate((len(calls.tables) for calls in several), initial=0))

    def moved(first: int) -> Place:
        return lambda operand: (
            table(first + operand.number)
            if operand.role == "table"
            else operand._replace(offset_bytes=0)
        )

    rows = [placed(calls, moved(first)) for calls, first in zip(several, firsts, strict=False)]
    return Calls(
        of=lambda firing: tuple(call for calls in rows for call in calls.of(firing)),
        tables=tuple(array for calls in several for array in calls.tables),
        workspace_bytes=max((calls.workspace_bytes for calls in several), default=0),
    )


def placed(calls: Calls, place: Place) -> Calls:
    """Calls with every operand moved to where `place` puts it."""

    def further(operand: Operand) -> Operand:
        base = place(operand)
        return base._replace(offset_bytes=base.offset_bytes + operand.offset_bytes)

    def of(firing: int) -> tuple[Call, ...]:
        return tuple(bind(call, further) for call in calls.of(firing))

    return replace(calls, of=of)


def operand_at(context: KernelContext, number: int) -> Operand:
    """Operand of a fused actor by number: inputs come first, then outputs, then inner ones."""
    inputs, outputs = len(context.inputs), len(context.outputs)
    if number < inputs:
        return read(number)
    if number < inputs + outputs:
        return write(number - inputs)
    return workspace(sum(map(_room, context.inner[: number - inputs - outputs])))


def is_inner(context: KernelContext, number: int) -> bool:
    """True if an operand of a fused actor passes between its parts alone."""
    return number >= len(context.inputs) + len(context.outputs)


def _place(context: KernelContext, part: FusedPart, scratch: int) -> Place:
    """Function from an operand of a part to the actor's operand at which it begins."""

    def place(operand: Operand) -> Operand:
        match operand.role:
            case "read":
                return operand_at(context, part.inputs[operand.number])
            case "write":
                return operand_at(context, part.outputs[operand.number])
            case "state":
                return Operand("state", part.state[operand.number])
            case "workspace":
                return workspace(scratch)
        return operand._replace(offset_bytes=0)

    return place


def _room(shard: Shard) -> int:
    return aligned(shard.size * shard.itemsize)
