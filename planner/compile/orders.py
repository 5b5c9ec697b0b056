"""Orders: everything about an actor graph that no run may decide.

Compute queues follow the schedule table, slots a rule (`slots`). The rest comes from one run of the
same protocol over the compute orders, as early as priced durations allow and with communication in
no order yet: the order in which meetings start is the one total order of all collectives and
transfers; each rank's launch queue and lanes are its restriction. It is the order of a run that
went to its end, so with it the net still does.
"""

import heapq
from collections import deque
from collections.abc import Sequence
from math import prod

from msgspec.structs import replace

from planner.actors.graph import ActorGraph, Leave, Program, Queue
from planner.actors.protocol import Fire, Protocol
from planner.actors.rendezvous import Arrival, Rendezvous
from planner.compile.draft import SLOT_PARTS, DraftStage
from planner.compile.slots import OVERLAP_DEPTH, Timetable, lifetimes
from planner.errors import ProtocolError
from planner.mesh import Axis
from planner.schedules import Slot

COMPUTE = 0  # index of the compute queue in every program

Durations = tuple[tuple[int, ...], ...]  # nanoseconds per program and actor
Lane = tuple[int, str]  # a program and a lane of it


def compute_order(draft: DraftStage, slots: Sequence[Slot]) -> tuple[int, ...]:
    """The compute queue of one step: begin, the schedule's slots, update."""
    sections: dict[tuple[str, int], list[int]] = {}
    for index, actor in enumerate(draft.actors):
        if actor.lane == "compute":
            sections.setdefault(actor.section, []).append(index)
    order = list(sections.get(("begin", 0), ()))
    for slot in slots:
        parts = [sections.get((part, slot.chunk), []) for part in SLOT_PARTS[slot.part]]
        order.extend(sorted(index for part in parts for index in part))
    order.extend(sections.get(("update", 0), ()))
    return tuple(order)


def unordered(draft: DraftStage, name: str, stage: int, slots: Sequence[Slot]) -> Program:
    """The program with its compute order, and every meeting in a queue of its own."""
    compute = Queue(name="compute", leave=Leave.COMPLETED, order=compute_order(draft, slots))
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


def with_slots(graph: ActorGraph, drafts: Sequence[DraftStage], table: Timetable) -> ActorGraph:
    """Give every register the slots that the timetable counts."""
    programs = []
    for program, alive in zip(graph.programs, lifetimes(drafts), strict=True):
        registers = tuple(
            register if one is None else replace(register, slots=table.slots(program.stage, one))
            for register, one in zip(program.registers, alive, strict=True)
        )
        programs.append(replace(program, registers=registers))
    return replace(graph, programs=tuple(programs))


def least_slots(graph: ActorGraph) -> ActorGraph:
    """Give every register the slots that the run with the latest meetings needs.

    Raises
    ------
    ProtocolError
        The compute orders wait for one another in a cycle.
    """
    versions = [_versions(program) for program in graph.programs]
    roomy = _with_counts(graph, versions)
    peaks = _LatestRun(roomy).peaks()
    slots = []
    for program, peak, most in zip(graph.programs, peaks, versions, strict=True):
        crossing = {
            port.register
            for actor in program.actors
            if actor.meeting is not None and actor.meeting.peer is not None and actor.firings > 1
            for port in (*actor.inputs, *actor.outputs)
        }
        slots.append(
            [
                min(alive + (OVERLAP_DEPTH if register in crossing else 0), most[register])
                for register, alive in enumerate(peak)
            ]
        )
    return _with_counts(graph, slots)


def _versions(program: Program) -> list[int]:
    """Versions of each register that one step can have alive."""
    most = [1] * len(program.registers)
    for actor in program.actors:
        for port in actor.outputs:
            if not program.registers[port.register].initial:
                most[port.register] = actor.firings // port.hold
    return most


def _with_counts(graph: ActorGraph, slots: list[list[int]]) -> ActorGraph:
    programs = []
    for program, counts in zip(graph.programs, slots, strict=True):
        registers = tuple(
            replace(r, slots=n) for r, n in zip(program.registers, counts, strict=True)
        )
        programs.append(replace(program, registers=registers))
    return replace(graph, programs=tuple(programs))


class _LatestRun:
    """A run of one step in which meetings happen only when a compute queue is stuck without."""

    def __init__(self, graph: ActorGraph) -> None:
        self.graph = graph
        self.protocols = [Protocol(program) for program in graph.programs]
        self.rendezvous = Rendezvous(graph, folded=True)
        self.held: dict[tuple[int, int], Fire] = {}
        self.most = [[1] * len(program.registers) for program in graph.programs]
        self.local: list[tuple[int, Fire]] = []

    def peaks(self) -> list[list[int]]:
        """Most versions alive at once, per program and register."""
        for instance, protocol in enumerate(self.protocols):
            self._take(instance, protocol.start())
        while not all(protocol.finished for protocol in self.protocols):
            while self.local:
                instance, fire = self.local.pop()
                self._take(instance, self.protocols[instance].issued(fire.actor))
                self._take(instance, self.protocols[instance].completed(fire.actor))
            self._meet()
        return self.most

    def _take(self, instance: int, fires: list[Fire]) -> None:
        program = self.graph.programs[instance]
        for fire in fires:
            if program.actors[fire.actor].meeting is not None:
                self.held[instance, fire.actor] = fire
            else:
                self._count(instance, fire)
                self.local.append((instance, fire))

    def _count(self, instance: int, fire: Fire) -> None:
        program = self.graph.programs[instance]
        for port in program.actors[fire.actor].outputs:
            newest = fire.firing // port.hold + program.registers[port.register].initial
            live = self.protocols[instance].live_versions(port.register, newest)
            self.most[instance][port.register] = max(self.most[instance][port.register], live)

    def _meet(self) -> None:
        """Let the meetings happen that the stuck compute queues need; all that is left at last."""
        if all(protocol.finished for protocol in self.protocols):
            return
        wanted: list[tuple[int, int]] = []
        seen: set[tuple[int, int]] = set()
        pending = [
            (instance, wait.on)
            for instance, protocol in enumerate(self.protocols)
            for wait in protocol.waits(COMPUTE)
        ] or list(self.held)
        while pending:
            at = pending.pop()
            if at in seen or at[1] < 0:
                continue
            seen.add(at)
            instance, actor = at
            meets = self.protocols[instance].program.actors[actor].meeting is not None
            if at not in self.held:
                pending.extend((instance, w.on) for w in self.protocols[instance].reasons(actor))
                continue
            others = self.rendezvous.absent(instance, actor, self.held[at].firing) if meets else []
            missing = [other for other in others if other not in self.held]
            pending.extend(missing)
            if not missing:
                wanted.append(at)
        happened = False
        for instance, actor in wanted:
            happened |= self._happen(instance, actor)
        if not happened:
            raise ProtocolError(f"the compute orders deadlock: {self._stuck()}")

    def _stuck(self) -> str:
        """What every stuck compute queue waits for."""
        return "; ".join(
            f"`{protocol.program.actors[wait.actor].name}` ({protocol.program.name}) needs "
            f"`{wait.what}` from `{protocol.program.actors[wait.on].name}`"
            for protocol in self.protocols
            for wait in protocol.waits(COMPUTE)
        )

    def _happen(self, instance: int, actor: int) -> bool:
        fire = self.held.get((instance, actor))
        if fire is None:
            return False
        others = self.rendezvous.absent(instance, actor, fire.firing)
        for party in dict.fromkeys([(instance, actor), *others]):
            self._count(party[0], self.held.pop(party))
            self._take(party[0], self.protocols[party[0]].issued(party[1]))
            self._take(party[0], self.protocols[party[0]].completed(party[1]))
        return True


class _EarliestRun:
    """A run of one step as early as durations allow, in which a lane moves one meeting at a time.

    Of meetings that wait for one lane, the first to be ready is the first to start.
    """

    def __init__(
        self, graph: ActorGraph, drafts: Sequence[DraftStage], durations: Durations
    ) -> None:
        self.drafts = drafts
        self.durations = durations
        self.protocols = [Protocol(program) for program in graph.programs]
        self.rendezvous = Rendezvous(graph, folded=True)
        self.started: list[list[int]] = [[] for _ in self.protocols]
        self.events: list[tuple[int, int, int, int]] = []  # time, sequence, instance, actor
        # Meetings that are ready, by lane; the first of them is under way. The ends of a transfer
        # always have the same two lanes, so one of them tells.
        self.lanes: dict[Lane, deque[list[Arrival]]] = {}
        self.count = 0

    def order(self) -> list[list[int]]:
        """Each program's meetings as they started."""
        for instance, protocol in enumerate(self.protocols):
            self._fire(0, instance, protocol.start())
        while self.events:
            now, _, instance, actor = heapq.heappop(self.events)
            meets = self.drafts[instance].actors[actor].meeting is not None
            waiting = self.lanes.get(self._lane(instance, actor)) if meets else None
            if waiting and waiting[0][0] == (instance, actor):
                waiting.popleft()
                if waiting:
                    self._start(now, waiting[0])
            self._fire(now, instance, self.protocols[instance].completed(actor))
        return self.started

    def _fire(self, now: int, instance: int, fires: list[Fire]) -> None:
        for fire in fires:
            if self.drafts[instance].actors[fire.actor].meeting is None:
                self._end_later(now, instance, fire.actor)
                continue
            parties = self.rendezvous.arrive(instance, fire.actor, fire.firing)
            if parties is not None:
                parties = sorted(parties)
                waiting = self.lanes.setdefault(self._lane(*parties[0]), deque())
                waiting.append(parties)
                if len(waiting) == 1:
                    self._start(now, parties)

    def _lane(self, instance: int, actor: int) -> Lane:
        return instance, self.drafts[instance].actors[actor].lane

    def _start(self, now: int, parties: Sequence[Arrival]) -> None:
        for instance, actor in parties:
            self.started[instance].append(actor)
            self._end_later(now, instance, actor)

    def _end_later(self, now: int, instance: int, actor: int) -> None:
        self.count += 1
        end = now + self.durations[instance][actor]
        heapq.heappush(self.events, (end, self.count, instance, actor))


def with_queues(
    graph: ActorGraph, drafts: Sequence[DraftStage], durations: Durations
) -> ActorGraph:
    """Put every meeting into its lane and the launch queue, in the one total order."""
    programs = []
    for program, draft, started in zip(
        graph.programs, drafts, _EarliestRun(graph, drafts, durations).order(), strict=True
    ):
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
    """The programs of all stages as one actor graph."""
    return ActorGraph(name=name, axes=axes, programs=tuple(programs))
