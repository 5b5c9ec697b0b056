"""What every command buffer must satisfy before a host may issue it."""

from collections import Counter
from collections.abc import Sequence

from millrace.executor.errors import ExecutorError
from millrace.executor.streams.clocks import Clocks
from millrace.executor.streams.commands import Command, CommandBuffer, stream_of, streams_of
from millrace.executor.streams.versions import Firing, Versions
from millrace.planner.actors.graph import ActorGraph, Program


def validate(graph: ActorGraph, buffer: CommandBuffer) -> CommandBuffer:
    """Return the buffer itself once streams and waits keep the order of the graph's protocol.

    Raises
    ------
    ExecutorError
        A queue's firings are not issued in its order, slots are not those of the firing, a wait is
        for a command that comes later or records no event, members of a meeting are not issued one
        after the other, or a command may begin before one that it needs is complete.
    """
    for step, commands in enumerate(buffer.steps):
        _check_waits(graph, commands)
        _check_meetings(graph, commands)
        for rank, names in zip(buffer.ranks, buffer.streams, strict=True):
            _check_rank(graph, rank, names, step, commands)
    return buffer


def _named(graph: ActorGraph, command: Command) -> str:
    actor = graph.programs[graph.program_of(command.rank)].actors[command.actor]
    return f"`{actor.name}` firing {command.firing}"


def _failed(graph: ActorGraph, number: int, command: Command, cause: str) -> ExecutorError:
    actor = graph.programs[graph.program_of(command.rank)].actors[command.actor]
    return ExecutorError(
        f"command {number}, firing {command.firing}: {cause}", rank=command.rank, actor=actor.name
    )


def _check_waits(graph: ActorGraph, commands: Sequence[Command]) -> None:
    awaited = {other for command in commands for other in command.waits}
    for number, command in enumerate(commands):
        for other in command.waits:
            if not 0 <= other < number:
                raise _failed(graph, number, command, f"waits for command {other}, not issued yet")
            found = commands[other]
            if found.rank != command.rank or found.stream == command.stream:
                raise _failed(
                    graph,
                    number,
                    command,
                    f"expected waits for other streams of its rank, found one for command {other}, "
                    f"{_named(graph, found)}",
                )
        if command.records is not (number in awaited):
            waited = "waits" if number in awaited else "does not wait"
            raise _failed(
                graph,
                number,
                command,
                f"records is {command.records}, but another stream {waited} for it",
            )


def _check_meetings(graph: ActorGraph, commands: Sequence[Command]) -> None:
    here = {one.rank for one in commands}
    for number, command in enumerate(commands):
        actor = graph.programs[graph.program_of(command.rank)].actors[command.actor]
        if actor.meeting is None:
            expected: list[tuple[int, str, int]] = []
        else:
            members = graph.members(command.rank, actor.meeting)
            expected = [
                (rank, actor.meeting.key, command.firing) for rank in members if rank in here
            ]
        found = []
        for at in command.meets:
            one = commands[at]
            meeting = graph.programs[graph.program_of(one.rank)].actors[one.actor].meeting
            found.append((one.rank, meeting.key if meeting else "", one.firing))
        begin = min(command.meets, default=number)
        run = tuple(range(begin, begin + len(command.meets)))
        if found != expected or command.meets != run or (run and number not in run):
            raise _failed(
                graph,
                number,
                command,
                f"expected to meet {expected} (rank, key, firing), one after the other, "
                f"found {found} in commands {command.meets}",
            )


def _check_queues(program: Program, rank: int, issued: Sequence[int]) -> None:
    for index, queue in enumerate(program.queues):
        order = [actor for actor in issued if index in program.actors[actor].queues]
        if tuple(order) != queue.order:
            pairs = enumerate(zip(order, queue.order, strict=False))
            place = next((k for k, (a, b) in pairs if a != b), min(len(order), len(queue.order)))
            raise ExecutorError(
                f"queue `{queue.name}` is not issued in its order from its place {place} on: "
                f"expected {len(queue.order)} firings, found {len(order)}",
                rank=rank,
            )


def _check_rank(
    graph: ActorGraph, rank: int, names: Sequence[str], step: int, commands: Sequence[Command]
) -> None:
    program = graph.programs[graph.program_of(rank)]
    versions = Versions(program)
    mine = [(number, one) for number, one in enumerate(commands) if one.rank == rank]
    queues = [program.queues[queue].name for queue in streams_of(program)]
    if list(names) != queues:
        raise ExecutorError(f"expected the streams {queues}, found {list(names)}", rank=rank)
    _check_queues(program, rank, [one.actor for _, one in mine])
    fired: Counter[int] = Counter()
    clocks = Clocks(len(queues))
    numbers: dict[Firing, int] = {}
    for number, one in mine:
        at = Firing(one.actor, fired[one.actor])
        stream, slots = stream_of(program, one.actor), versions.slots(at, step)
        fired[one.actor] += 1
        expected, found = (stream, at.firing, *slots), (one.stream, *one[3:6])
        if expected != found:
            raise _failed(
                graph,
                number,
                one,
                f"expected (stream, firing, reads, writes) {expected}, found {found}",
            )
        clocks.issue(number, one.stream, one.waits)
        numbers[at] = number
        for need in versions.needs(at):
            other = numbers.get(need)
            if other is None or not clocks.before(other, number):
                name = program.actors[need.actor].name
                raise _failed(
                    graph,
                    number,
                    one,
                    f"may begin before `{name}` firing {need.firing}, which it needs, is complete: "
                    f"neither its stream nor a wait orders them",
                )
