"""Chunk graph: a plan as an actor graph of chunks, as large for a deep model as for a shallow one.

Per chunk and step there are one actor per part of the schedule (F, B and W, or BW), one that
gathers parameters before the first microbatch and one that reduces gradients after the last; per
stage one begins, one joins the gradients' norms, one meets the world and one updates. Tensors that
cross stages between the same two parts travel together. Slots, orders and the proof are those of
`millrace.planner.compile.queue_orders`, as for the graph of ops.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from millrace.models.graph import ITEMSIZE, Rate
from millrace.models.training import STEP_TOTALS
from millrace.planner.actors.graph import ActorGraph, Meeting, Port, Register
from millrace.planner.actors.validate import validate
from millrace.planner.boxing import crossing
from millrace.planner.compile.queue_orders import (
    FiringsNs,
    first_step,
    joined,
    unordered,
    with_queues,
    with_slots,
)
from millrace.planner.compile.slots import Timetable
from millrace.planner.compile.stage_ir import (
    BEGIN,
    PARTS,
    SLOT_PARTS,
    UPDATE,
    ActorIR,
    Section,
    StageIR,
)
from millrace.planner.costs import collective_duration_ns
from millrace.planner.costs.launch_overhead import ONE_LAUNCH, Pace, Pacing, merged, paced
from millrace.planner.plan import Plan
from millrace.planner.sbp import local_size
from millrace.planner.schedules.orders import pairs_of
from millrace.simulator.chunks.phase_times import PartTimes
from millrace.simulator.chunks.plan_blocks import CrossReading, PlanBlocks

SAMPLED_PAIRS = 16  # of the pairs of devices that join two stages, spread evenly

ORDER = "FBW"  # the parts of a microbatch, as they follow one another

Place = tuple[int, str]  # a chunk of the model and a part of it


@dataclass(frozen=True, slots=True, kw_only=True)
class CoarseGraph:
    """The actor graph and the duration of every actor, per program.

    Compute queues have their orders and registers their slots; every meeting is in a queue of its
    own, until `ordered` puts it into its lane (which `drafts` name) and the launch queue. `pacing`
    says what holds parts back beside it, None where nothing does. `firings_ns` lists, by program
    and actor, the durations of a step's firings where they differ, for some are in pairs;
    `hidden_ns` is the communication that pairs hide in a step, per program.
    """

    graph: ActorGraph
    durations_ns: tuple[tuple[int, ...], ...]
    drafts: tuple[StageIR, ...]
    pacing: Pacing | None
    firings_ns: FiringsNs
    hidden_ns: tuple[int, ...]

    def ordered(self) -> ActorGraph:
        """Actor graph with all orders; that it runs to its end shows when it is simulated.

        Raises
        ------
        ProtocolError
            A first step stops before its end.
        """
        first = first_step(self.graph, self.drafts, self.durations_ns, self.pacing, self.firings_ns)
        return validate(with_queues(self.graph, self.drafts, first))


def coarse_graph(wiring: PlanBlocks, table: Timetable, times: Sequence[PartTimes]) -> CoarseGraph:
    """Actor graph of the chunks, its communication in no order yet.

    Parameters
    ----------
    wiring : PlanBlocks
        The plan's; it says what crosses between chunks.
    table : Timetable
        The schedule's orders.
    times : sequence of PartTimes
        Nanoseconds of every chunk's parts, in model order.

    Raises
    ------
    PlanError
        A signature does not fit its op, or a dim that it splits does not exist or does not divide.
    InfeasibleError
        No boxing joins a tensor's SBP in one chunk to that in another, or both are partial.
    ProtocolError
        The schedule's orders wait for one another in a cycle.
    """
    plan = wiring.plan
    drafting = _Drafting(plan, times, table.joint)
    for key, sizes in _crossings(wiring, drafting.parts).items():
        drafting.cross(key, sizes)
    drafting.finish(_totals_bytes(wiring))
    programs = [
        unordered(draft, f"stage {stage}", stage, table.orders[stage])
        for stage, draft in enumerate(drafting.stages)
    ]
    graph = joined(programs, plan.model.name, plan.mesh.axes)
    firings_ns, hidden_ns = drafting.pairs(table)
    return CoarseGraph(
        graph=with_slots(graph, drafting.stages, table),
        durations_ns=tuple(tuple(row) for row in drafting.durations_ns),
        drafts=tuple(drafting.stages),
        pacing=drafting.pacing(),
        firings_ns=firings_ns,
        hidden_ns=hidden_ns,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _StageTransfer:
    """Tensors that one part makes and the same parts of another stage read."""

    source: Place
    target: int
    readers: frozenset[Place]


def _crossings(wiring: PlanBlocks, parts: Mapping[str, str]) -> dict[_StageTransfer, list[int]]:
    """Bytes of the shards that cross between chunks, as the first reader has each, by crossing."""
    plan, tensors = wiring.plan, wiring.graph.tensors_by_name
    readers_by_tensor: dict[tuple[str, int], set[Place]] = {}
    sizes: dict[tuple[str, int], tuple[Place, int]] = {}
    for reading in sorted(chain(*wiring.readings.values()), key=attrgetter("op_index")):
        here = wiring.chunk_of[reading.maker.block]
        there = wiring.chunk_of[reading.reader.block]
        if here == there:
            continue
        tensor, key = tensors[reading.tensor], (reading.tensor, plan.chunks[there].stage)
        source, reader = _ends(reading, tensor.rate, parts)
        readers_by_tensor.setdefault(key, set()).add((there, reader))
        if key not in sizes:
            made_sbp, read_sbp = wiring.made_as(reading.tensor), wiring.read_as(reading)
            carried = crossing(made_sbp, read_sbp, plan.mesh.sizes, tensor.shape).carried
            size = local_size(tensor.shape, carried, plan.mesh.sizes) * ITEMSIZE[tensor.dtype]
            sizes[key] = ((here, source), size)
    merged: dict[_StageTransfer, list[int]] = {}
    for key, readers in readers_by_tensor.items():
        (maker, size), target = sizes[key], key[1]
        stage_crossing = _StageTransfer(source=maker, target=target, readers=frozenset(readers))
        merged.setdefault(stage_crossing, []).append(size)
    return merged


def hops_ns(wiring: PlanBlocks, joint: bool) -> NDArray[np.float64]:
    """Nanoseconds that every chunk sends each microbatch, forwards and backwards [2, K].

    `joint` says whether both gradients of a chunk are one part.
    """
    plan = wiring.plan
    parts = {part: slot for slot in _slots(joint) for part in SLOT_PARTS[slot]}
    sent = np.zeros((2, len(plan.chunks)))
    for crossing_, sizes in _crossings(wiring, parts).items():
        (chunk, part), home = crossing_.source, plan.chunks[crossing_.source[0]].stage
        if part in ("F", "B", "W", "BW") and home != crossing_.target:
            took = sum(_sending_ns(plan, home, crossing_.target, size) for size in sizes)
            sent[int(part != "F"), chunk] += took
    return sent


def _slots(joint: bool) -> tuple[str, ...]:
    return ("F", "BW") if joint else ("F", "B", "W")


def _ends(reading: CrossReading, rate: Rate, parts: Mapping[str, str]) -> tuple[str, str]:
    """The parts that make and read a tensor."""
    if rate is Rate.STEP:
        begins = reading.maker.phase.is_forward
        return ("gather", "gather") if begins else ("reduce", "norm")
    return parts[PARTS[reading.maker.phase]], parts[PARTS[reading.reader.phase]]


def _totals_bytes(wiring: PlanBlocks) -> int:
    return wiring.graph.tensor(STEP_TOTALS).size_bytes


class _Drafting:
    """The stages' drafts while actors are added."""

    def __init__(self, plan: Plan, times: Sequence[PartTimes], joint: bool) -> None:
        self.plan = plan
        self.stages = [StageIR(plan.mesh.sizes) for _ in range(plan.stages)]
        self.durations_ns: list[list[int]] = [[] for _ in self.stages]
        self.paces: list[list[Pace]] = [[] for _ in self.stages]
        # Ports are collected first, for a part's are known only when all crossings are.
        self._inputs: dict[Place, list[Port]] = {}
        self._outputs: dict[Place, list[Port]] = {}
        self._times = times
        self._parts: dict[Place, int] = {}  # actor of every part, on the stage of its chunk
        self._numbers: list[int] = []
        counts = [0] * plan.stages
        for chunk in plan.chunks:
            self._numbers.append(counts[chunk.stage])
            counts[chunk.stage] += 1
        self.parts = {part: slot for slot in _slots(joint) for part in SLOT_PARTS[slot]}
        stages = range(plan.stages)
        self._sendings: dict[tuple[int, int, int], int] = {}
        self._variables = [self._register(stage, "variables", 0, initial=1) for stage in stages]
        self._begin_registers = [self._register(stage, "parameters", 0) for stage in stages]
        self._reduced: list[list[Port]] = [[] for _ in self.stages]
        for number in range(len(plan.chunks)):
            self._join_parts(number)

    def cross(self, key: _StageTransfer, sizes: Sequence[int]) -> None:
        """Join parts of two chunks by a register, or by a send and a recv."""
        chunk, part = key.source
        home = self.plan.chunks[chunk].stage
        firings = 1 if part in ("gather", "reduce") else self.plan.microbatches
        if home == key.target:
            if part in ("F", "B", "W", "BW"):
                self._link(home, key.source, sorted(key.readers), sum(sizes))
            return
        sent = self._begin_registers[home]
        if part != "gather":
            sent = self._register(home, f"chunk {chunk} {part} to {key.target}", sum(sizes))
            self._outputs.setdefault(key.source, []).append(Port(register=sent))
        arrived = self._register(key.target, f"chunk {chunk} {part}", sum(sizes))
        readers = sorted(key.readers, key=lambda place: (place[0], ORDER.find(place[1]), place[1]))
        for reader in readers:
            reader_place = (reader[0] if reader[1] != "norm" else -1 - key.target, reader[1])
            self._inputs.setdefault(reader_place, []).append(Port(register=arrived))
        name = f"chunk {chunk} {part} -> {', '.join(f'chunk {c} {p}' for c, p in readers)}"
        section = self._section(*readers[0])
        took = sum(self._sending_ns(home, key.target, size) for size in sizes)
        ends = (("send", home, key.target, sent), ("recv", key.target, home, arrived))
        for kind, stage, peer, register in ends:
            ports = (Port(register=register),)
            self._actor(
                stage,
                took,
                ActorIR(
                    name=f"{name}: {kind}",
                    kind=kind,
                    section=section,
                    firings=firings,
                    inputs=ports if kind == "send" else (),
                    outputs=ports if kind == "recv" else (),
                    meeting=Meeting(
                        key=f"{name} on stage {key.target}",
                        kind=kind,
                        peer=peer,
                        message_bytes=sum(sizes),
                    ),
                    lane=f"{kind} {'to' if kind == 'send' else 'from'} stage {peer}",
                ),
            )

    def finish(self, totals_bytes: int) -> None:
        """Add the actors of every part and stage."""
        for number, times in enumerate(self._times):
            self._once(number, "gather", "all_gather", times.gather_ns)
            for part, ns in times.slots_ns.items():
                self._part(number, part, ns)
            self._once(number, "reduce", "reduce_scatter", times.reduce_ns)
        world = self._world(totals_bytes)
        for stage in range(self.plan.stages):
            self._update(stage, totals_bytes, *world)

    def pacing(self) -> Pacing | None:
        """Paces of all actors, with the host's; None where nothing holds them back."""
        cluster = self.plan.cluster
        if not paced(cluster):
            return None
        rows = tuple(tuple(row) for row in self.paces)
        return Pacing(cluster.software.host_ns, cluster.software.overlap, rows)

    def _join_parts(self, number: int) -> None:
        """Add the registers between the parts of one chunk."""
        stage, m = self.plan.chunks[number].stage, self.plan.microbatches
        parts = list(self._times[number].slots_ns)
        self._inputs.setdefault((number, "gather"), []).append(
            Port(register=self._begin_registers[stage])
        )
        gathered = self._register(stage, f"chunk {number} parameters", 0)
        self._outputs.setdefault((number, "gather"), []).append(Port(register=gathered))
        for part in parts:
            port = Port(register=gathered, hold=m)
            self._inputs.setdefault((number, part), []).append(port)
        order = sorted(parts, key=ORDER.find)
        for before, after in pairwise(order):
            self._link(stage, (number, before), [(number, after)], 0)
        summed = self._register(stage, f"chunk {number} gradients", 0)
        self._outputs.setdefault((number, order[-1]), []).append(Port(register=summed, hold=m))
        self._inputs.setdefault((number, "reduce"), []).append(Port(register=summed))
        reduced = self._register(stage, f"chunk {number} reduced", 0)
        self._outputs.setdefault((number, "reduce"), []).append(Port(register=reduced))
        self._reduced[stage].append(Port(register=reduced))

    def _link(self, stage: int, source: Place, readers: Sequence[Place], size: int) -> None:
        register = self._register(stage, f"chunk {source[0]} {source[1]}", size)
        self._outputs.setdefault(source, []).append(Port(register=register))
        for reader in readers:
            self._inputs.setdefault(reader, []).append(Port(register=register))

    def _register(self, stage: int, name: str, size: int, initial: int = 0) -> int:
        self.stages[stage].registers.append(
            Register(
                name=name,
                tensor=name,
                global_shape=(),
                sbp="B",
                shape=(),
                dtype="float32",
                initial=initial,
                slot_bytes=size,
            )
        )
        return len(self.stages[stage].registers) - 1

    def _actor(self, stage: int, duration_ns: int, actor: ActorIR, pace: Pace = ONE_LAUNCH) -> None:
        self.stages[stage].add_actor(actor)
        self.durations_ns[stage].append(duration_ns)
        self.paces[stage].append(pace)

    def _section(self, number: int, part: str) -> Section:
        """Section of the step in which a part runs on its stage."""
        once = {"gather": BEGIN, "reduce": UPDATE, "norm": UPDATE}
        return once.get(part) or ("B" if part == "BW" else part, self._numbers[number])

    def pairs(self, table: Timetable) -> tuple[FiringsNs, tuple[int, ...]]:
        """Durations of the firings of parts that are paired, and what pairs hide of each stage.

        A pair takes as much less than its parts one after the other as, in the mean, those of
        either chunk. Its gradients end as long after its forward as measured.
        """
        firings_ns: dict[tuple[int, int], list[int]] = {}
        hidden_ns = [0] * self.plan.stages
        for stage, order in enumerate(table.orders):
            forward = [slot.part == "F" for slot in order]
            for pair in pairs_of(forward, table.paired_slots[stage]):
                slots = order[pair.start : pair.stop]
                chunks = [table.positions[stage][slot.chunk] for slot in slots]
                times = [self._times[chunk] for chunk in chunks]
                timed = [(t, slot.part) for t, slot in zip(times, slots, strict=True)]
                tails = [t.paired_ns[part] for t, part in timed[1:]]
                saved_ns = sum(t.saved_ns for t in times[:2]) // 2
                apart_ns = sum(t.slots_ns[part] for t, part in timed)
                head = max(apart_ns - saved_ns - sum(tails), 0)
                hidden_ns[stage] += sum(t.exposed_ns[part] for t, part in timed)
                hidden_ns[stage] -= sum(t.paired_exposed_ns for t in times[:2]) // 2
                for slot, chunk, ns in zip(slots, chunks, (head, *tails), strict=True):
                    actor = self._parts[chunk, slot.part]
                    default = [self.durations_ns[stage][actor]] * self.plan.microbatches
                    firings_ns.setdefault((stage, actor), default)[slot.microbatch] = ns
        return {key: tuple(row) for key, row in firings_ns.items()}, tuple(hidden_ns)

    def _part(self, number: int, part: str, duration_ns: int) -> None:
        stage = self.plan.chunks[number].stage
        self._parts[number, part] = len(self.durations_ns[stage])
        self._actor(
            stage,
            duration_ns,
            ActorIR(
                name=f"chunk {number}: {part}",
                kind="chunk",
                section=self._section(number, part),
                firings=self.plan.microbatches,
                inputs=tuple(self._inputs.get((number, part), ())),
                outputs=tuple(self._outputs.get((number, part), ())),
                block=f"chunk {number}",
            ),
            paces[part].of(duration_ns) if (paces := self._times[number].paces) else ONE_LAUNCH,
        )

    def _once(self, number: int, part: str, kind: str, ns: int) -> None:
        """Add communication once a step beside the compute queue, its groups inside the stage."""
        name = f"chunk {number}: {part}"
        self._actor(
            self.plan.chunks[number].stage,
            ns,
            ActorIR(
                name=name,
                kind=kind,
                section=self._section(number, part),
                firings=1,
                inputs=tuple(self._inputs.get((number, part), ())),
                outputs=tuple(self._outputs.get((number, part), ())),
                block=f"chunk {number}",
                meeting=Meeting(key=name, kind=kind),
                lane=part,
            ),
        )

    def _update(self, stage: int, totals_bytes: int, meeting_ns: int, meeting: Meeting) -> None:
        """Add a stage's actors of once a step: begin, the gradients' norm, the world, update."""
        here = self._register(stage, "norm here", totals_bytes)
        everywhere = self._register(stage, "norm", totals_bytes)
        times = [
            chunk_times
            for chunk, chunk_times in zip(self.plan.chunks, self._times, strict=True)
            if chunk.stage == stage
        ]
        norm_ns = sum(chunk_times.norm_ns for chunk_times in times) + max(
            chunk_times.totals_ns for chunk_times in times
        )
        reduced = (*self._reduced[stage], *self._inputs.get((-1 - stage, "norm"), ()))
        variables, begun = (
            (Port(register=rows[stage]),) for rows in (self._variables, self._begin_registers)
        )
        norm, met = (Port(register=here),), (Port(register=everywhere),)
        update_ns = sum(chunk_times.update_ns for chunk_times in times)
        begin_ns = sum(chunk_times.begin_ns for chunk_times in times)
        for name, section, inputs, outputs, ns in (
            ("begin", BEGIN, variables, begun, begin_ns),
            ("norm", UPDATE, reduced, norm, norm_ns),
            ("all_reduce", UPDATE, norm, met, meeting_ns),
            ("update", UPDATE, met, variables, update_ns),
        ):
            pace = self._once_pace(times, name)
            meets = name == meeting.kind
            actor = ActorIR(
                name=f"stage {stage}: {name}",
                kind=name,
                section=section,
                firings=1,
                inputs=inputs,
                outputs=outputs,
                in_place=name == "update",
                meeting=meeting if meets else None,
                lane="world" if meets else "compute",
            )
            self._actor(stage, ns, actor, pace)

    def _once_pace(self, times: Sequence[PartTimes], name: str) -> Pace:
        """Pace of what the chunks of a stage compute once a step, one after the other."""
        taken = {"begin": "begin_ns", "norm": "norm_ns", "update": "update_ns"}
        timed_paces = [
            (chunk_times.paces[name].of(ns), ns)
            for chunk_times in times
            if name in taken and name in chunk_times.paces
            for ns in (getattr(chunk_times, taken[name]),)
        ]
        if name == "norm":
            longest = max(times, key=lambda chunk_times: chunk_times.totals_ns)
            if "totals" in longest.paces:
                timed_paces.append(
                    (longest.paces["totals"].of(longest.totals_ns), longest.totals_ns)
                )
        return merged(timed_paces, self.plan.cluster.software.host_ns)

    def _world(self, size: int) -> tuple[int, Meeting]:
        """Meeting in which every rank's part of the totals is added up, and its duration."""
        ranks = tuple(range(self.plan.ranks))
        meeting = Meeting(
            key="norm",
            kind="all_reduce",
            axes=self.plan.mesh.names,
            world=True,
            reduction="sum",
            message_bytes=size,
        )
        cluster = self.plan.cluster
        return collective_duration_ns(meeting.kind, size, len(ranks), cluster, ranks), meeting

    def _sending_ns(self, home: int, target: int, size: int) -> int:
        if (home, target, size) not in self._sendings:
            self._sendings[home, target, size] = _sending_ns(self.plan, home, target, size)
        return self._sendings[home, target, size]


def _sending_ns(plan: Plan, home: int, target: int, size: int) -> int:
    """Nanoseconds that the slowest pair of counterparts on two stages takes."""
    devices = plan.mesh.devices
    return max(
        collective_duration_ns(
            "send", size, 2, plan.cluster, (home * devices + device, target * devices + device)
        )
        for device in range(0, devices, -(-devices // SAMPLED_PAIRS))
    )
