"""Calls of a fused actor whose parts run one after the other, what passes between in scratch.

The workspace holds what is inner first, then the scratch of the parts, which take turns in it.
"""

from collections.abc import Sequence
from itertools import accumulate

from executor.cuda.binding import Place, bound
from executor.cuda.calls import Call, Calls, Operand, read, table, workspace, write
from executor.kernels.context import FusedPart, KernelContext, Shard

ALIGNMENT_BYTES = 256  # what cudaMalloc aligns to, and more than any load needs


def in_turn(context: KernelContext, parts: Sequence[Calls]) -> Calls:
    """Return the calls of a fused actor, made of those of its parts alone.

    Parameters
    ----------
    context
        The actor's.
    parts
        The calls of every part.
    """
    end = sum(map(_room, context.inner))
    tables = list(accumulate((len(calls.tables) for calls in parts), initial=0))
    place_of = [_placed(context, part, end, tables[at]) for at, part in enumerate(context.parts)]

    def of(firing: int) -> tuple[Call, ...]:
        return tuple(
            bound(call, place)
            for calls, place in zip(parts, place_of, strict=True)
            for call in calls.of(firing)
        )

    return Calls(
        of=of,
        tables=tuple(one for calls in parts for one in calls.tables),
        workspace_bytes=end + max(calls.workspace_bytes for calls in parts),
    )


def operand_at(context: KernelContext, number: int) -> Operand:
    """Return the operand of a fused actor that has this number."""
    inputs, outputs = len(context.inputs), len(context.outputs)
    if number < inputs:
        return read(number)
    if number < inputs + outputs:
        return write(number - inputs)
    return workspace(sum(map(_room, context.inner[: number - inputs - outputs])))


def _placed(context: KernelContext, part: FusedPart, scratch: int, tables: int) -> Place:
    """Where what a part names lies, as the actor names it."""

    def place(operand: Operand) -> Operand:
        match operand.role:
            case "read":
                found = operand_at(context, part.inputs[operand.number])
            case "write":
                found = operand_at(context, part.outputs[operand.number])
            case "state":
                found = Operand("state", part.state[operand.number])
            case "workspace":
                found = workspace(scratch)
            case "table":
                found = table(tables + operand.number)
            case _:
                return operand
        return found._replace(offset_bytes=found.offset_bytes + operand.offset_bytes)

    return place


def _room(shard: Shard) -> int:
    return -(-shard.size * shard.itemsize // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
