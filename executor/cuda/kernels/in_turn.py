"""Parts of a fused actor one after the other, what passes between them in scratch.

The workspace holds what is inner first, then the scratch of the parts, which take turns in it.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from millrace.executor.cuda.binding import Place, bound
from millrace.executor.cuda.calls import Call, Calls, Operand, read, table, workspace, write
from millrace.executor.kernels.context import FusedPart, KernelContext, Shard

ALIGNMENT_BYTES = 256  # what cudaMalloc aligns to, and more than any load needs


def in_turn(context: KernelContext, parts: Sequence[Calls]) -> Calls:
    """Return the calls of a fused actor, made of those of its parts alone."""
    end = sum(map(_room, context.inner))
    made = one_after_another(
        [
            placed(calls, _place(context, part, end))
            for part, calls in zip(context.parts, parts, strict=True)
        ]
    )
    return replace(made, workspace_bytes=end + made.workspace_bytes)


def one_after_another(several: Sequence[Calls]) -> Calls:
    """Return all calls of several as those of one actor; their scratch is one and the same."""
    firsts = list(accumulate((len(calls.tables) for calls in several), initial=0))

    def moved(first: int) -> Place:
        return lambda one: (
            table(first + one.number) if one.role == "table" else one._replace(offset_bytes=0)
        )

    rows = [placed(calls, moved(first)) for calls, first in zip(several, firsts, strict=False)]
    return Calls(
        of=lambda firing: tuple(call for calls in rows for call in calls.of(firing)),
        tables=tuple(one for calls in several for one in calls.tables),
        workspace_bytes=max((calls.workspace_bytes for calls in several), default=0),
    )


def placed(calls: Calls, place: Place) -> Calls:
    """Return the same calls on other operands."""

    def further(operand: Operand) -> Operand:
        found = place(operand)
        return found._replace(offset_bytes=found.offset_bytes + operand.offset_bytes)

    def of(firing: int) -> tuple[Call, ...]:
        return tuple(bound(call, further) for call in calls.of(firing))

    return replace(calls, of=of)


def operand_at(context: KernelContext, number: int) -> Operand:
    """Return the operand of a fused actor that has this number."""
    inputs, outputs = len(context.inputs), len(context.outputs)
    if number < inputs:
        return read(number)
    if number < inputs + outputs:
        return write(number - inputs)
    return workspace(sum(map(_room, context.inner[: number - inputs - outputs])))


def is_inner(context: KernelContext, number: int) -> bool:
    """Whether an operand of a fused actor passes between its parts alone."""
    return number >= len(context.inputs) + len(context.outputs)


def _place(context: KernelContext, part: FusedPart, scratch: int) -> Place:
    """Where what a part names begins, as the actor names it."""

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
    return -(-shard.size * shard.itemsize // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
