"""Orders: everything about an actor graph that no run may decide.

Compute queues follow the schedule table, slots a rule (`slots`). The rest comes from one run of the
same protocol over the compute orders, as early as priced durations allow and with communication in
no order yet: the order in which meetings start is the one total order of all collectives and
transfers; each rank's launch queue and lanes are its restriction. It is the order of a run that
went to its end, so with it the net still does.
"""

import heapq
from collections import deque
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain
from math import prod
from types import MappingProxyType

from msgspec.structs import replace

from millrace.planner.actors.graph import ActorGraph, Leave, Meeting, Program, Queue
from millrace.planner.actors.protocol import ActorProtocol
from millrace.planner.actors.rendezvous import Arrival, Rendezvous
from millrace.planner.collectives import ALONE
from millrace.planner.compile.slots import Timetable, lifetimes
from millrace.planner.compile.stage_ir import SLOT_PARTS, StageIR
from millrace.planner.costs.launch_overhead import Pacing, launch_offsets
from millrace.planner.mesh import Axis
from millrace.planner.schedules import Slot

Durations = tuple[tuple[int, ...], ...]  # nanoseconds per program and actor
Lane = tuple[int, str]  # a program and a lane of it
FiringsNs = Mapping[tuple[int, int], tuple[int, ...]]
"""Nanoseconds of a step's firings by program and actor, where they are not all alike."""
ALIKE: FiringsNs = MappingProxyType({})


def compute_order(
    draft: StageIR, slots: Sequence[Slot], paired_slots: Set[int] = frozenset()
) -> tuple[int, ...]:
    """Compute queue of one step: begin, the schedule's slots, update.

    Parameters
    ----------
    draft : StageIR
        Its actors on the lane `compute` are listed; within a slot they keep its order.
    slots : sequence of Slot
        The stage's order (`Timetable.orders`); chunks are numbered on the stage.
    paired_slots : set of int
        Numbers of slots that run beside the one before them: actors of both take turns (`woven`).
        By default none.

    Returns
    -------
    tuple of int
        Index of the actor of every firing.
    """
    sections: dict[tuple[str, int], list[int]] = {}
    for index, actor in enumerate(draft.actors):
        if actor.lane == "compute":
            sections.setdefault(actor.section, []).append(index)
    groups: list[tuple[tuple[str, int], ...]] = []
    for number, (part, chunk, _) in enumerate(slots):
        before = groups.pop() if number in paired_slots else ()
        groups.append((*before, (part, chunk)))
    runs: dict[tuple[tuple[str, int], ...], list[int]] = {}
    order = list(sections.get(("begin", 0), ()))
    for group in groups:
        if group not in runs:
            lanes: tuple[list[int], list[int]] = ([], [])  # a forward, gradients beside it
            for part, chunk in group:
                rows = (sections.get((each, chunk), []) for each in SLOT_PARTS[part])
                lanes[part != "F"].extend(sorted(chain(*rows)))
            runs[group] = woven(draft, *lanes)
        order += runs[group]
    order.extend(sections.get(("update", 0), ()))
    return tuple(order)


def woven(draft: StageIR, forward: list[int], gradients: list[int]) -> list[int]:
    """Actors of a forward, and of the gradients that run beside it, in turns.

    Each is cut where it waits for communication, and the pieces of both are spread evenly: while
    one communicates, the other computes.
    """
    if not forward or not gradients:
        return forward + gradients
    lanes = [_pieces(draft, lane) for lane in (forward, gradients)]
    places = sorted(
        ((2 * index + 1) / len(lane), number, piece)
        for number, lane in enumerate(lanes)
        for index, piece in enumerate(lane)
    )
    return [actor for *_, piece in places for actor in piece]


def _pieces(draft: StageIR, run: Sequence[int]) -> list[list[int]]:
    """Actors of a run, cut before each that reads what a meeting brought since the cut before.

    Meetings count that take place as often as the run: what is gathered once a step is there. Where
    tokens are exchanged with experts, these meetings alone count, for they take the longest.
    """
    bringing = {index: _meetings_before(draft, index) for index in run}
    exchanges = {
        maker
        for makers in bringing.values()
        for maker, meeting in makers.items()
        if meeting.copies != ALONE
    }
    pieces: list[list[int]] = [[]]
    begun = run[0]
    for index in run:
        counted = exchanges.intersection(bringing[index]) if exchanges else bringing[index]
        waits = any(maker > begun for maker in counted)
        if waits and pieces[-1]:
            pieces.append([])
            begun = index
        pieces[-1].append(index)
    return pieces


def _meetings_before(draft: StageIR, index: int) -> dict[int, Meeting]:
    """Meetings that an actor reads from and that take place as often as it, by their number."""
    actor = draft.actors[index]
    brought = {draft.producer.get(port.register) for port in actor.inputs}
    makers = {number: draft.actors[number] for number in brought if number is not None}
    return {
        number: maker.meeting
        for number, maker in makers.items()
        if maker.meeting is not None and maker.firings == actor.firings
    }


def unordered(
    draft: StageIR,
    name: str,
    stage: int,
    slots: Sequence[Slot],
    paired_slots: Set[int] = frozenset(),
) -> Program:
    """Program with its compute order, and every meeting in a queue of its own.

    Parameters
    ----------
    draft : StageIR
        Its registers are taken as they are.
    name : str
        Of the program, such as `stage 0`.
    stage : int
        Its ranks, one per device of the mesh, follow those of the stages before.
    slots : sequence of Slot
        The stage's order (`Timetable.orders`).
    paired_slots : set of int
        Numbers of slots that run beside the one before them. By default none.
    """
    compute = Queue(
        name="compute", leave=Leave.COMPLETED, order=compute_order(draft, slots, paired_slots)
    )
    queues = [compute]
    actors = []
    for index, actor in enumerate(draft.actors):
        if actor.lane == "compute":
            actors.append(actor.finished((0,)))
            continue
        actors.append(actor.finished((len(queues),)))
        queues.append(Queue(name=actor.name, leave=Leave.COMPLETED, order=(index,) * actor.firings))
    devices = prod(draft.sizes)
    ranks = tuple(range(stage * devices, (stage + 1) * devices))
    return Program(
        name=name,
        stage=stage,
        ranks=ranks,
        registers=tuple(draft.registers),
        actors=tuple(actors),
        queues=tuple(queues),
    )


def with_slots(graph: ActorGraph, drafts: Sequence[StageIR], table: Timetable) -> ActorGraph:
    """Graph with as many slots of every register as the timetable counts.

    Parameters
    ----------
    graph : ActorGraph
        One program per stage, with the registers of its draft.
    drafts : sequence of StageIR
        One per program; their sections say when a register is made and read. Registers of one
        version a step keep their slots.
    table : Timetable
        Orders of all stages.

    Raises
    ------
    ProtocolError
        Something is sent, and the stages' orders wait for one another in a cycle.
    """
    programs = []
    for program, alive in zip(graph.programs, lifetimes(drafts), strict=True):
        registers = tuple(
            register
            if lifetime is None
            else replace(register, slots=table.slots(program.stage, lifetime))
            for register, lifetime in zip(program.registers, alive, strict=True)
        )
        programs.append(replace(program, registers=registers))
    return replace(graph, programs=tuple(programs))


@dataclass(slots=True)
class FirstStep:
    """Record of a run of one step as early as durations allow, one instance a program.

    `sequence` lists firings as they began, a meeting's members together; `starts` and `ends` hold
    the times of every actor's firings (a meeting starts when its data begins to move).
    """

    sequence: list[tuple[Arrival, ...]]
    starts: list[list[list[int]]]
    ends: list[list[list[int]]]


class _EarliestRun:
    """A run of one step as early as durations allow, in which a lane moves one meeting at a time.

    Of meetings that wait for one lane, the first to be ready is the first to start. Launches by the
    host are honoured; contention is not, for it hardly tells which meeting is ready first.
    """

    def __init__(
        self,
        graph: ActorGraph,
        drafts: Sequence[StageIR],
        durations: Durations,
        pacing: Pacing | None,
        firings_ns: FiringsNs,
    ) -> None:
        self.durations = durations
        self.firings_ns = firings_ns
        self.launched = [
            launch_offsets(program, pacing.rows[index], pacing.host_ns)
            if pacing is not None
            else ()
            for index, program in enumerate(graph.programs)
        ]
        self.protocols = [ActorProtocol(program) for program in graph.programs]
        self.rendezvous = Rendezvous(graph, folded=True)
        # `lane_of` holds the lane on which each program's actor meets others.
        self.lane_of = [
            [None if actor.meeting is None else (index, actor.lane) for actor in draft.actors]
            for index, draft in enumerate(drafts)
        ]
        self.seen = FirstStep(
            sequence=[],
            starts=[[[] for _ in draft.actors] for draft in drafts],
            ends=[[[] for _ in draft.actors] for draft in drafts],
        )
        self.events: list[tuple[int, int, int, int]] = []  # time, sequence, instance, actor
        # Meetings that are ready, by lane; the first of them is under way. The ends of a transfer
        # always have the same two lanes, so one of them tells.
        self.lanes: dict[Lane, deque[list[Arrival]]] = {}
        self.count = 0

    def run(self) -> FirstStep:
        """Run the step; return its record."""
        for instance, protocol in enumerate(self.protocols):
            self._fire(0, instance, protocol.begin())
        events, lane_of, lanes = self.events, self.lane_of, self.lanes
        while events:
            now, _, instance, actor = heapq.heappop(events)
            lane = lane_of[instance][actor]
            if lane is not None:
                waiting = lanes.get(lane)
                if waiting and waiting[0][0] == (instance, actor):
                    waiting.popleft()
                    if waiting:
                        self._start(now, waiting[0])
            if due := self.protocols[instance].finish(actor):
                self._fire(now, instance, due)
        return self.seen

    def _fire(self, now: int, instance: int, due: list[int]) -> None:
        lane_of, begun = self.lane_of[instance], self.seen.starts[instance]
        for actor in due:
            if lane_of[actor] is None:
                begin = now
                if offsets := self.launched[instance]:
                    begin = max(now, offsets[actor][len(begun[actor])])
                self._start(begin, ((instance, actor),))
                continue
            parties = self.rendezvous.arrive(instance, actor, len(begun[actor]))
            if parties is not None:
                parties = sorted(parties)
                lane = self.lane_of[parties[0][0]][parties[0][1]]
                assert lane is not None
                waiting = self.lanes.setdefault(lane, deque())
                waiting.append(parties)
                if len(waiting) == 1:
                    self._start(now, parties)

    def _start(self, now: int, parties: Sequence[Arrival]) -> None:
        self.seen.sequence.append(tuple(parties))
        for instance, actor in parties:
            self.count += 1
            ns = self.durations[instance][actor]
            if row := self.firings_ns.get((instance, actor)):
                ns = row[len(self.seen.ends[instance][actor])]
            end = now + ns
            self.seen.starts[instance][actor].append(now)
            self.seen.ends[instance][actor].append(end)
            heapq.heappush(self.events, (end, self.count, instance, actor))


def first_step(
    graph: ActorGraph,
    drafts: Sequence[StageIR],
    durations: Durations,
    pacing: Pacing | None = None,
    firings_ns: FiringsNs = ALIKE,
) -> FirstStep:
    """Record of one step of a graph whose communication is in no order yet (`unordered`).

    A lane moves one meeting at a time; the first to be ready is the first to start. Where the graph
    stops before the step's end the record does too: nothing is raised.

    Parameters
    ----------
    graph : ActorGraph
        One program per stage; one instance of each runs.
    drafts : sequence of StageIR
        One per program; they name the lane of every meeting.
    durations : tuple of tuple of int
        Nanoseconds of one firing, per program and actor.
    pacing : Pacing, optional
        Its launches by the host are honoured, its contention is not. None: no firing waits for a
        launch.
    firings_ns : mapping of (int, int) to tuple of int, optional
        Nanoseconds of a step's firings, by program and actor, where they are not all alike.
    """
    return _EarliestRun(graph, drafts, durations, pacing, firings_ns).run()


def with_queues(graph: ActorGraph, drafts: Sequence[StageIR], first: FirstStep) -> ActorGraph:
    """Graph with every meeting in its lane and the launch queue, in the one total order.

    Parameters
    ----------
    graph : ActorGraph
        As `first_step` ran it. The first queue of every program, the compute queue, stays; its
        lanes follow by name, then the launch queue if it has any lane.
    drafts : sequence of StageIR
        One per program; they name the lane of every meeting.
    first : FirstStep
        Its sequence is the order. Meetings that a run stopped short of are missing from the queues,
        which `validate` refuses.
    """
    launched: list[list[int]] = [[] for _ in drafts]
    for parties in first.sequence:
        for instance, actor in parties:
            if drafts[instance].actors[actor].meeting is not None:
                launched[instance].append(actor)
    programs = []
    for program, draft, started in zip(graph.programs, drafts, launched, strict=True):
        lanes = sorted({actor.lane for actor in draft.actors if actor.lane != "compute"})
        queues = [program.queues[0]]
        for lane in lanes:
            order = tuple(a for a in started if draft.actors[a].lane == lane)
            queues.append(Queue(name=lane, leave=Leave.COMPLETED, order=order))
        if lanes:
            queues.append(Queue(name="launch", leave=Leave.ISSUED, order=tuple(started)))
        numbers = {lane: index + 1 for index, lane in enumerate(lanes)}
        actors = tuple(
            replace(actor, queues=(0,))
            if drafted.lane == "compute"
            else replace(actor, queues=(numbers[drafted.lane], len(queues) - 1))
            for actor, drafted in zip(program.actors, draft.actors, strict=True)
        )
        programs.append(replace(program, actors=actors, queues=tuple(queues)))
    return replace(graph, programs=tuple(programs))


def joined(programs: Sequence[Program], name: str, axes: tuple[Axis, ...]) -> ActorGraph:
    """Programs of all stages as one actor graph.

    Parameters
    ----------
    programs : sequence of Program
        One per stage, in order: a transfer names its other end by its place here.
    name : str
        Of the graph; that of the model.
    axes : tuple of Axis
        Of the mesh that every stage has, outer first.
    """
    return ActorGraph(name=name, axes=axes, programs=tuple(programs))
