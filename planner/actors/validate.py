"""`validate`: checks that every actor graph passes before a driver may run it."""

from collections import Counter

from millrace.planner.actors.graph import Actor, ActorGraph, Leave, Meeting, Program
from millrace.planner.errors import ProtocolError


def validate(graph: ActorGraph) -> ActorGraph:
    """The graph itself, once it is structurally sound.

    Raises
    ------
    ProtocolError
        A register has two producers, or none and nothing before the first step, rates do not match,
        an actor is in no lane, a queue's order does not hold every firing, slots overlap in the
        arena, parts of a collective are no pairs of inputs and outputs, or an end of a transfer is
        missing or there twice.
    """
    for program in graph.programs:
        _check_registers(program)
        _check_queues(program)
    _check_meetings(graph)
    return graph


def _check_registers(program: Program) -> None:
    versions: dict[int, int] = {}
    for actor in program.actors:
        for port in (*actor.inputs, *actor.outputs):
            if not 0 <= port.register < len(program.registers):
                raise ProtocolError(f"actor `{actor.name}` ({program.name}): no such register")
            if port.hold < 1 or actor.firings % port.hold:
                raise ProtocolError(
                    f"actor `{actor.name}` ({program.name}) holds "
                    f"`{program.registers[port.register].name}` for {port.hold} of "
                    f"{actor.firings} firings: the hold must divide the firings of a step"
                )
        for port in actor.outputs:
            if port.register in versions:
                name = program.registers[port.register].name
                raise ProtocolError(f"register `{name}` ({program.name}) has two producers")
            versions[port.register] = actor.firings // port.hold
    for actor in program.actors:
        for port in actor.inputs:
            register = program.registers[port.register]
            if port.register not in versions:
                if register.initial == register.slots == 1:
                    continue
                raise ProtocolError(
                    f"register `{register.name}` ({program.name}), read by `{actor.name}`, "
                    f"has no producer"
                )
            if versions[port.register] != actor.firings // port.hold:
                raise ProtocolError(
                    f"register `{register.name}` ({program.name}) is produced "
                    f"{versions[port.register]} times a step, but `{actor.name}` reads "
                    f"{actor.firings // port.hold} versions"
                )
    for register in program.registers:
        if register.slots < max(1, register.initial):
            raise ProtocolError(
                f"register `{register.name}` ({program.name}) has {register.slots} slots"
            )


def _check_queues(program: Program) -> None:
    for index, queue in enumerate(program.queues):
        counts = Counter(queue.order)
        for actor_index, actor in enumerate(program.actors):
            expected = actor.firings if index in actor.queues else 0
            if counts[actor_index] != expected:
                raise ProtocolError(
                    f"queue `{queue.name}` ({program.name}) lists `{actor.name}` "
                    f"{counts[actor_index]} times a step, expected {expected}"
                )
    for actor in program.actors:
        if not any(program.queues[q].leave is Leave.COMPLETED for q in actor.queues):
            raise ProtocolError(
                f"actor `{actor.name}` ({program.name}) is in no queue that waits for completion"
            )


def _check_parts(program: Program, actor: Actor, meeting: Meeting) -> None:
    """Raise ProtocolError unless every part of a collective is an input that makes an output."""
    if meeting.parts < 1 or (meeting.peer is not None and meeting.parts > 1):
        raise ProtocolError(f"`{actor.name}` ({program.name}) has {meeting.parts} parts")
    if meeting.parts > 1 and not (
        len(actor.outputs) == meeting.parts <= len(actor.inputs)
        and len({program.registers[port.register].dtype for port in actor.read}) == 1
    ):
        raise ProtocolError(
            f"`{actor.name}` ({program.name}) has {meeting.parts} parts of one dtype, but "
            f"{len(actor.inputs)} inputs and {len(actor.outputs)} outputs"
        )


def _check_meetings(graph: ActorGraph) -> None:
    ends: dict[tuple[str, int, int], str] = {}
    for index, program in enumerate(graph.programs):
        for actor in program.actors:
            meeting = actor.meeting
            if meeting is not None:
                _check_parts(program, actor, meeting)
            if meeting is not None and meeting.peer is not None:
                if other := ends.get((meeting.key, index, meeting.peer)):
                    raise ProtocolError(
                        f"`{other}` and `{actor.name}` ({program.name}) are the same end of "
                        f"`{meeting.key}`"
                    )
                ends[meeting.key, index, meeting.peer] = actor.name
    for (key, here, there), name in ends.items():
        if (key, there, here) not in ends:
            raise ProtocolError(
                f"`{name}` ({graph.programs[here].name}) meets nobody: "
                f"{graph.programs[there].name} has no other end of `{key}`"
            )
