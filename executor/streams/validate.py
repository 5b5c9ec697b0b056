"""`validate`: conditions that every command buffer satisfies before a host may issue it."""

from collections import Counter
from collections.abc import Sequence

from millrace.executor.errors import ExecutorError
from millrace.executor.streams.commands import Command, CommandBuffer, stream_of, streams_of
from millrace.executor.streams.vector_clocks import Clocks
from millrace.executor.streams.versions import Firing, Versions
from millrace.planner.actors.graph import ActorGraph, Program


def validate(graph: ActorGraph, buffer: CommandBuffer) -> CommandBuffer:
    """The buffer itself, once streams and waits keep the order of the graph's protocol.

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
            awaited_command = commands[other]
            if awaited_command.rank != command.rank or awaited_command.stream == command.stream:
                raise _failed(
                    graph,
                    number,
                    command,
                    f"expected waits for other streams of its rank, found one for command {other}, "
                    f"{_named(graph, awaited_command)}",
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
    here = {command.rank for command in commands}
    for number, command in enumerate(commands):
        actor = graph.programs[graph.program_of(command.rank)].actors[command.actor]
        if actor.meeting is None:
            expected: list[tuple[int, str, int]] = []
        else:
            members = graph.members(command.rank, actor.meeting)
            expected = [
                (rank, actor.meeting.key, command.firing) for rank in members if rank in here
            ]
        met = []
        for member_number in command.meets:
            member = commands[member_number]
            meeting = graph.programs[graph.program_of(member.rank)].actors[member.actor].meeting
            met.append((member.rank, meeting.key if meeting else "", member.firing))
        begin = min(command.meets, default=number)
        run = tuple(range(begin, begin + len(command.meets)))
        if met != expected or command.meets != run or (run and number not in run):
            raise _failed(
                graph,
                number,
                command,
                f"expected to meet {expected} (rank, key, firing), one after the other, "
                f"found {met} in commands {command.meets}",
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
    numbered_commands = [
        (number, command) for number, command in enumerate(commands) if command.rank == rank
    ]
    queues = [program.queues[queue].name for queue in streams_of(program)]
    if list(names) != queues:
        raise ExecutorError(f"expected the streams {queues}, found {list(names)}", rank=rank)
    _check_queues(program, rank, [command.actor for _, command in numbered_commands])
    fired: Counter[int] = Counter()
    clocks = Clocks(len(queues))
    numbers: dict[Firing, int] = {}
    for number, command in numbered_commands:
        firing = Firing(command.actor, fired[command.actor])
        stream, slots = stream_of(program, command.actor), versions.slots(firing, step)
        fired[command.actor] += 1
        expected, actual = (stream, firing.firing, *slots), (command.stream, *command[3:6])
        if expected != actual:
            raise _failed(
                graph,
                number,
                command,
                f"expected (stream, firing, reads, writes) {expected}, found {actual}",
            )
        clocks.issue(number, command.stream, command.waits)
        numbers[firing] = number
        for need in versions.needs(firing):
            other = numbers.get(need)
            if other is None or not clocks.before(other, number):
                name = program.actors[need.actor].name
                raise _failed(
                    graph,
                    number,
                    command,
                    f"may begin before `{name}` firing {need.firing}, which it needs, is complete: "
                    f"neither its stream nor a wait orders them",
                )
