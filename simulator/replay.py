"""Replay: the times of every firing of some steps, from the sequence of the first.

In an ordered graph whose durations are known nothing is left to decide: a firing begins when it is
next in its queues, what it reads is there and its slots are free, that is at the latest of times
that are known once all before it in the first step's sequence are. The events of
`millrace.simulator.kernel` come to the same times. Launches by the host are times known from the
step's begin. Contention is not: what slows a firing begins after it, which no sequence of
beginnings shows; so there events run (`followed`).
"""

from collections.abc import Sequence
from typing import NamedTuple

from millrace.planner.actors.graph import ActorGraph, Leave
from millrace.planner.actors.protocol import ActorProtocol
from millrace.planner.compile.queue_orders import ALIKE, FiringsNs, FirstStep
from millrace.planner.costs.launch_overhead import Pacing, launch_offsets
from millrace.simulator.kernel import Kernel
from millrace.simulator.simulated_rank import Instance

Times = list[int]
# A queue, and how long after its step's begin a firing is launched.
LaunchDelay = tuple[int, int] | None


def followed(
    graph: ActorGraph,
    durations_ns: Sequence[Sequence[int]],
    pacing: Pacing | None,
    steps: int,
    wanted: int | None = None,
    firings_ns: FiringsNs = ALIKE,
) -> tuple[list[list[Times]], list[list[Times]]]:
    """Starts and ends of all firings of some steps by events, as `Replay` has them.

    Parameters
    ----------
    graph : ActorGraph
        With all its orders; one representative per program runs.
    durations_ns : sequence of sequence of int
        Nanoseconds of one firing where nothing slows it, per program and actor.
    pacing : Pacing or None
        Launches by the host and contention, both honoured.
    steps : int
        Number of steps.
    wanted : int, optional
        Steps whose times are wanted: what the others do later may be left out, and what is under
        way then ends when it is left. None: all of them.
    firings_ns : mapping
        Nanoseconds of a step's firings by program and actor, where they are not all alike.

    Returns
    -------
    tuple of two lists
        Nanoseconds by program, actor and firing; a meeting starts when its data begins to move.

    Raises
    ------
    ProtocolError
        The graph stops before its end; names the waiting cycle.
    """
    instances = [
        Instance(
            rank=program.ranks[0],
            program=program,
            protocol=ActorProtocol(program, steps),
            delays=row,
            firing_delays=[
                list(firings_ns.get((index, actor), [ns] * program.actors[actor].firings)) * steps
                for actor, ns in enumerate(row)
            ]
            if firings_ns
            else (),
        )
        for index, (program, row) in enumerate(zip(graph.programs, durations_ns, strict=True))
    ]
    kernel = Kernel(graph, instances, pacing=pacing)
    kernel.run(wanted)
    begins, ends = [each.begins for each in instances], [each.ends for each in instances]
    left_ns = int(kernel.env.now)
    for rows, ended in zip(begins, ends, strict=True):
        for begun, over in zip(rows, ended, strict=True):
            over += [max(left_ns, begun[-1])] * (len(begun) - len(over))
    return begins, ends


class _ReplayedActor(NamedTuple):
    """An actor: its times, its queues, and what it waits for.

    `inputs`: the maker's ends, the reader's hold, initial versions, the maker's hold. `outputs`:
    the slots, the hold, initial versions, every reader's ends and hold.
    """

    starts: Times
    ends: Times
    lanes: tuple[int, ...]
    launches: tuple[int, ...]
    inputs: list[tuple[Times, int, int, int]]
    outputs: list[tuple[int, int, int, list[tuple[Times, int]]]]


class Replay:
    """The steps of an ordered graph, one representative per program.

    Parameters
    ----------
    graph
        With all its orders.
    durations_ns
        Per program and actor.
    first
        The run of its first step.
    pacing
        What else holds actors back; contention is left out.

    Attributes
    ----------
    starts, ends
        Per program and actor, the times of all firings so far. A meeting starts when its data
        begins to move.
    """

    def __init__(
        self,
        graph: ActorGraph,
        durations_ns: Sequence[Sequence[int]],
        first: FirstStep,
        pacing: Pacing | None = None,
    ) -> None:
        self.starts = [[list(times) for times in rows] for rows in first.starts]
        self.ends = [[list(times) for times in rows] for rows in first.ends]
        self._sequence = first.sequence
        self._durations = durations_ns
        self._freed: Times = []  # per queue of any program, when it can be entered
        self._seats = [self._program(graph, index) for index in range(len(graph.programs))]
        self._launch_delays: Sequence[LaunchDelay] = [None] * len(first.sequence)
        if pacing is not None and pacing.host_ns:
            self._launch_delays = self._launches(graph, pacing)

    def follow(self, until_ns: int | None = None) -> None:
        """Add one step; what begins at `until_ns` or later may be given any such times."""
        seats, durations, freed = self._seats, self._durations, self._freed
        late = until_ns if until_ns is not None else 1 << 62
        begun = list(freed)
        for members, launch in zip(self._sequence, self._launch_delays, strict=True):
            moved = 0 if launch is None else begun[launch[0]] + launch[1]
            for program, actor in members:
                _, ends, lanes, launches, inputs, outputs = seats[program][actor]
                firing = len(ends)
                begin = 0
                for queue in lanes:
                    if freed[queue] > begin:
                        begin = freed[queue]
                for queue in launches:
                    if freed[queue] > begin:
                        begin = freed[queue]
                if begin < late:
                    for maker_ends, hold, initial, often in inputs:
                        maker_firing = (firing // hold - initial + 1) * often - 1
                        if maker_firing >= 0 and maker_ends[maker_firing] > begin:
                            begin = maker_ends[maker_firing]
                    for slots, hold, initial, readers in outputs:
                        taken = firing // hold + initial - slots + 1
                        if taken > 0:
                            for reader_ends, often in readers:
                                if reader_ends[taken * often - 1] > begin:
                                    begin = reader_ends[taken * often - 1]
                for queue in launches:
                    freed[queue] = begin
                if begin > moved:
                    moved = begin
            first, actor = members[0]
            end = moved + durations[first][actor]
            for program, actor in members:
                seat = seats[program][actor]
                seat.starts.append(moved)
                seat.ends.append(end)
                for queue in seat.lanes:
                    freed[queue] = end

    def _launches(self, graph: ActorGraph, pacing: Pacing) -> list[LaunchDelay]:
        """Launch of every firing of the sequence by the host; None for meetings."""
        offsets = [
            [
                iter(firing_offsets)
                for firing_offsets in launch_offsets(program, row, pacing.host_ns)
            ]
            for program, row in zip(graph.programs, pacing.rows, strict=True)
        ]
        launches: list[LaunchDelay] = []
        for program, actor in (members[0] for members in self._sequence):
            meets = graph.programs[program].actors[actor].meeting is not None
            lanes = self._seats[program][actor].lanes
            launches.append(None if meets else (lanes[0], next(offsets[program][actor])))
        return launches

    def _program(self, graph: ActorGraph, index: int) -> list[_ReplayedActor]:
        program = graph.programs[index]
        starts, ends = self.starts[index], self.ends[index]
        before = len(self._freed)
        lasts = [queue.order[-1] if queue.order else -1 for queue in program.queues]
        for queue, last in zip(program.queues, lasts, strict=True):
            seen = ends if queue.leave is Leave.COMPLETED else starts
            self._freed.append(seen[last][-1] if last >= 0 else 0)
        makers: dict[int, tuple[Times, int]] = {}
        readers: dict[int, list[tuple[Times, int]]] = {}
        for actor, times in zip(program.actors, ends, strict=True):
            makers.update({port.register: (times, port.hold) for port in actor.outputs})
            for port in actor.inputs:
                readers.setdefault(port.register, []).append((times, port.hold))
        registers = program.registers
        seats = []
        for actor, begun, times in zip(program.actors, starts, ends, strict=True):
            leaves = [(program.queues[queue].leave, before + queue) for queue in actor.queues]
            seats.append(
                _ReplayedActor(
                    starts=begun,
                    ends=times,
                    lanes=tuple(q for leave, q in leaves if leave is Leave.COMPLETED),
                    launches=tuple(q for leave, q in leaves if leave is Leave.ISSUED),
                    inputs=[
                        (maker_ends, port.hold, registers[port.register].initial, often)
                        for port in actor.inputs
                        if port.register in makers
                        for maker_ends, often in (makers[port.register],)
                    ],
                    outputs=[
                        (
                            registers[port.register].slots,
                            port.hold,
                            registers[port.register].initial,
                            readers.get(port.register, []),
                        )
                        for port in actor.outputs
                        if port.register in readers
                    ],
                )
            )
        return seats
