"""Command buffers: one run of the protocol, written down as work for in-order streams.

Every queue that actors leave at `completed` becomes a stream. A host issues the commands of a
buffer in their order, and each stream carries out its own, one after the other; where a command
needs one of another stream, its stream waits for the event that was recorded behind that one.

Notes
-----
The order is the protocol's. A firing begins once (1) the one before it in each queue left at
`completed` is complete, (2) the makers of what it reads are, and (3) so are the readers of what was
in the slots it writes. A queue of (1) is a stream, and a wait stands for every pair of (2) and (3)
that streams and other waits do not order already; nothing else is added. So whatever the protocol
orders by completion, streams order too, and whoever shares bytes of the arena because of that
order (the area of temporary registers, places lent or taken in turns) goes on to. What remains is
(4), a queue left at `issued`: it says in which order a rank comes to its meetings, and that is the
order in which the host issues them. On a device a later meeting may then begin while an earlier one
still waits for its input, which the protocol does not let happen. The compiler lays out the arena
by compute queues, makers and readers and never by that order, so nothing depends on it:
`find_races` proves it plan by plan.

A step begins and ends with nothing in flight, for the host joins all streams behind it, so that
waits stay within a step. Where a register has versions when a step starts (a variable), the next
step finds them in the slots that follow; after `period` steps these are the first ones again. All
other registers begin every step in slot 0: each version they get in a step is read in that step, so
when it ends no slot holds anything that is still needed.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm
from typing import NamedTuple

from millrace.executor.errors import ExecutorError
from millrace.executor.streams.vector_clocks import Clocks
from millrace.executor.streams.versions import Firing, Versions
from millrace.planner.actors.graph import ActorGraph, Leave, Program
from millrace.planner.actors.null_clock import run_to_completion
from millrace.planner.actors.protocol import Fire


class Command(NamedTuple):
    """One firing of an actor on a stream of its rank.

    Parameters
    ----------
    rank, stream
        Where it is issued; `CommandBuffer.streams` has the names.
    actor, firing
        What it does; firings are counted within the step.
    reads, writes
        Slots of the actor's input and output ports.
    waits
        Commands of other streams of the rank that the stream waits for first, by their place in
        the list.
    records
        True if an event follows that another stream waits for.
    meets
        Of a meeting, the commands of all members in the buffer, this one too, in the order of the
        group; of a local actor, none.
    """

    rank: int
    stream: int
    actor: int
    firing: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    waits: tuple[int, ...] = ()
    records: bool = False
    meets: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandBuffer:
    """Commands that a host issues for some ranks of an actor graph.

    Parameters
    ----------
    ranks
        The ranks, in ascending order.
    streams
        Names of the streams of every rank, in the order of `ranks`.
    steps
        The commands of every step of the period, in the order in which they are issued: step
        number n has those of `steps[n % period]`. Steps differ in slots alone.
    """

    ranks: tuple[int, ...]
    streams: tuple[tuple[str, ...], ...]
    steps: tuple[tuple[Command, ...], ...]

    @property
    def period(self) -> int:
        """Number of steps after which slots repeat."""
        return len(self.steps)

    def stream_name(self, command: Command) -> str:
        """Name of the stream of a command."""
        return self.streams[self.ranks.index(command.rank)][command.stream]


class IssuedPart(NamedTuple):
    """One rank's part in what is issued at once: a local firing, or all of a meeting."""

    rank: int
    firing: Firing


Issue = tuple[IssuedPart, ...]


def command_buffer(
    graph: ActorGraph, ranks: Sequence[int], *, folded: bool | None = None
) -> CommandBuffer:
    """Run the protocol once with no time at all and write down the commands of some ranks.

    Parameters
    ----------
    graph
        The actor graph.
    ranks
        Ranks that one process issues for.
    folded
        Run one representative per program instead of every rank; by default where there is one
        rank alone.

    Raises
    ------
    ExecutorError
        A rank is unknown, an actor is in two queues that become streams, or ranks come to their
        meetings in orders that contradict each other.
    ProtocolError
        The actor graph cannot run to its end.
    """
    ranks = tuple(sorted(set(ranks)))
    if not ranks or ranks[0] < 0 or ranks[-1] >= graph.ranks:
        raise ExecutorError(
            f"expected some of the {graph.ranks} ranks of `{graph.name}`, found {list(ranks)}"
        )
    versions = {rank: Versions(graph.programs[graph.program_of(rank)]) for rank in ranks}
    issues = _host_order(graph, ranks, len(ranks) == 1 if folded is None else folded)
    commands = _commands(versions, [[m for m in i if m.rank in versions] for i in issues])
    period = lcm(*(rank_versions.period for rank_versions in versions.values()))
    return CommandBuffer(
        ranks=ranks,
        streams=tuple(
            tuple(versions[rank].program.queues[q].name for q in streams_of(versions[rank].program))
            for rank in ranks
        ),
        steps=tuple(
            tuple(_in_step(command, versions[command.rank], step) for command in commands)
            for step in range(period)
        ),
    )


def streams_of(program: Program) -> list[int]:
    """Queues of a program that become streams."""
    return [index for index, queue in enumerate(program.queues) if queue.leave is Leave.COMPLETED]


def stream_of(program: Program, actor: int) -> int:
    """Stream of an actor; raises ExecutorError unless there is exactly one."""
    streams, graph_actor = streams_of(program), program.actors[actor]
    own_streams = [streams.index(queue) for queue in graph_actor.queues if queue in streams]
    if len(own_streams) != 1:
        names = [program.queues[streams[stream]].name for stream in own_streams]
        raise ExecutorError(
            f"expected one queue that is left at `completed`, to be its stream, found {names}",
            actor=graph_actor.name,
        )
    return own_streams[0]


def _in_step(command: Command, versions: Versions, step: int) -> Command:
    reads, writes = versions.slots(Firing(command.actor, command.firing), step)
    return command._replace(reads=reads, writes=writes)


def _commands(
    versions: dict[int, Versions], issues: Sequence[Sequence[IssuedPart]]
) -> list[Command]:
    """Commands of a step but for their slots."""
    programs = {rank: rank_versions.program for rank, rank_versions in versions.items()}
    streams = {
        rank: [stream_of(program, actor) for actor in range(len(program.actors))]
        for rank, program in programs.items()
    }
    clocks = {rank: Clocks(len(streams_of(program))) for rank, program in programs.items()}
    numbers: dict[IssuedPart, int] = {}
    commands: list[Command] = []
    for issue in issues:
        begin = len(commands)
        for rank, firing in issue:
            number, stream = len(commands), streams[rank][firing.actor]
            needs = (numbers[IssuedPart(rank, need)] for need in versions[rank].needs(firing))
            waits = clocks[rank].pruned(stream, needs)
            clocks[rank].issue(number, stream, waits)
            numbers[IssuedPart(rank, firing)] = number
            meets = programs[rank].actors[firing.actor].meeting is not None
            members = tuple(range(begin, begin + len(issue))) if meets else ()
            commands.append(Command(rank, stream, *firing, (), (), waits, meets=members))
    awaited = {number for command in commands for number in command.waits}
    return [command._replace(records=number in awaited) for number, command in enumerate(commands)]


def _host_order(graph: ActorGraph, ranks: tuple[int, ...], folded: bool) -> list[Issue]:
    """Issues in the host's order, for at least the ranks that are asked for.

    As the null clock has it, except that every rank's meetings are issued in the order of its
    launch queue: the null clock lets a meeting whose members are all there go before another.
    """
    if folded:
        position = graph.programs[graph.program_of(ranks[0])].ranks.index(ranks[0])
        stands_for = [
            sorted({program.ranks[position], *ranks} & {*program.ranks})
            for program in graph.programs
        ]
    else:
        stands_for = [[rank] for rank in range(graph.ranks)]
    present = {rank for some in stands_for for rank in some}
    issues: dict[Issue, None] = {}
    groups = _groups(graph, present)

    def visit(instance: int, fire: Fire) -> None:
        for rank in stands_for[instance]:
            members = groups.get((rank, fire.actor), ((rank, fire.actor),))
            issues[tuple(IssuedPart(r, Firing(a, fire.firing)) for r, a in members)] = None

    run_to_completion(graph, folded=folded, visit=visit)
    return _in_launch_order(graph, list(issues))


def _groups(
    graph: ActorGraph, present: set[int]
) -> dict[tuple[int, int], tuple[tuple[int, int], ...]]:
    """Members of a meeting among the ranks present, in group order, by rank and actor."""
    actors: dict[tuple[str, tuple[int, ...]], dict[int, int]] = {}
    for rank in sorted(present):
        for index, actor in enumerate(graph.programs[graph.program_of(rank)].actors):
            if actor.meeting is not None:
                members = graph.members(rank, actor.meeting)
                here = tuple(member for member in members if member in present)
                actors.setdefault((actor.meeting.key, here), {})[rank] = index
    return {
        (rank, index): tuple((member, index_of_rank[member]) for member in here)
        for (_, here), index_of_rank in actors.items()
        for rank, index in index_of_rank.items()
    }


def _in_launch_order(graph: ActorGraph, issues: list[Issue]) -> list[Issue]:
    """Sort by what every firing needs and by all queues, those of launch too; else as before."""
    issue_of = {member: index for index, issue in enumerate(issues) for member in issue}
    earlier = {
        rank: _earlier(graph.programs[graph.program_of(rank)])
        for rank in {member.rank for member in issue_of}
    }
    missing = [0] * len(issues)
    allows: list[list[int]] = [[] for _ in issues]
    for index, issue in enumerate(issues):
        before = {
            issue_of[IssuedPart(r, need)] for r, firing in issue for need in earlier[r][firing]
        }
        missing[index] = len(before)
        for other in before:
            allows[other].append(index)
    ready = [index for index, count in enumerate(missing) if not count]
    ordered: list[Issue] = []
    while ready:
        index = heapq.heappop(ready)
        ordered.append(issues[index])
        for other in allows[index]:
            missing[other] -= 1
            if not missing[other]:
                heapq.heappush(ready, other)
    if len(ordered) < len(issues):
        raise ExecutorError(_contradiction(graph, issues, missing))
    return ordered


def _earlier(program: Program) -> dict[Firing, list[Firing]]:
    """Firings that must be issued before each firing of a step."""
    versions = Versions(program)
    earlier = {
        firing: list(versions.needs(firing))
        for index, actor in enumerate(program.actors)
        for firing in (Firing(index, number) for number in range(actor.firings))
    }
    for queue in program.queues:
        fired = [0] * len(program.actors)
        before: Firing | None = None
        for actor in queue.order:
            firing = Firing(actor, fired[actor])
            fired[actor] += 1
            if before is not None:
                earlier[firing].append(before)
            before = firing
    return earlier


def _contradiction(graph: ActorGraph, issues: list[Issue], missing: list[int]) -> str:
    stuck = [issue[0] for issue, count in zip(issues, missing, strict=True) if count]
    names = {
        f"`{actor.name}` of rank {rank}": None
        for rank, firing in stuck
        if (actor := graph.programs[graph.program_of(rank)].actors[firing.actor]).meeting
        is not None
    }
    return (
        "ranks come to their meetings in orders that contradict each other, among them "
        f"{', '.join(list(names)[:4])}: give all launch queues one common order"
    )
