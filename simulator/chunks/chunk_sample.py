"""Chunk sample (a *piece*): one chunk with few of its equal blocks, compiled op by op.

What a chunk costs is measured on pieces (`millrace.simulator.chunks.phase_measurement`) and then
counted: blocks of one run are alike, so a few of them and one more tell what any number costs. What
comes from other chunks *arrives* as often as the piece can take it and in no time, so that nothing
in the piece ever waits for another stage; what leaves is boxed as the receiver wants it.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

from msgspec.structs import replace

from millrace.models.graph import GLOBAL_BLOCK, Graph, Rate, beyond, restricted
from millrace.planner.actors.graph import ActorGraph, Meeting, Port
from millrace.planner.compile.collectives import hold_back
from millrace.planner.compile.fused import fused_stages
from millrace.planner.compile.lowering import Lowering, PlacedTensor
from millrace.planner.compile.placement import place
from millrace.planner.compile.queue_orders import (
    FirstStep,
    first_step,
    joined,
    unordered,
    with_queues,
    with_slots,
)
from millrace.planner.compile.slots import Timetable
from millrace.planner.compile.stage_ir import PARTS, UPDATE, ActorIR, Section
from millrace.planner.costs import durations
from millrace.planner.costs.bucket_sizes import State, Totals, state_bytes_of, with_own_buckets
from millrace.planner.costs.launch_overhead import Pacing, pacing_of
from millrace.planner.frameworks.experts import exchange_hides
from millrace.planner.mesh import Mesh
from millrace.planner.plan import FUSED, BlockChoice, Chunk, Plan
from millrace.planner.sbp import NdSbp
from millrace.planner.schedules import Order, Slot
from millrace.simulator.chunks.plan_blocks import CrossReading, PlanBlocks

MICROBATCHES = 4  # of a piece's step: the second last sees nothing of the step's begin or end

HERE, ELSEWHERE = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledPiece:
    """A compiled piece.

    `graph` has one program; `durations_ns` lists its actors' durations, none for what arrives;
    `first` is a run of its first step.
    `sections` says in which part of the step each actor of the compute queue runs (None for the
    actors of other queues); `slots` is the order of the parts. `pacing` is that of its actors,
    which its first step does without.
    """

    graph: ActorGraph
    first: FirstStep
    durations_ns: tuple[int, ...]
    sections: tuple[Section | None, ...]
    slots: tuple[Slot, ...]
    pacing: Pacing | None


def alone(*, joint: bool = True, forwards_first: bool = False) -> Order:
    """Order of a piece's parts: every microbatch in turn, or all forwards first.

    Parameters
    ----------
    joint : bool
        True: gradients of inputs and of weights are made together (BW); False: apart (B, then W).
    forwards_first : bool
        True: a part of every microbatch comes before the next part. False: all parts of a
        microbatch come before the next microbatch.

    Returns
    -------
    tuple of Slot
        Of chunk 0 and `MICROBATCHES` (4) microbatches.
    """
    parts, microbatches = ("F", "BW") if joint else ("F", "B", "W"), range(MICROBATCHES)
    if forwards_first:
        return tuple(Slot(part, 0, m) for part in parts for m in microbatches)
    return tuple(Slot(part, 0, m) for m in microbatches for part in parts)


def in_pairs(*, joint: bool) -> tuple[Order, frozenset[int]]:
    """Order of a piece whose parts are paired, and the slots that run beside the one before them.

    Every forward but the first runs beside the gradients of the microbatch before it. `joint` is
    that of `alone`.
    """
    gradients = ("BW",) if joint else ("B", "W")
    order = [Slot("F", 0, 0)]
    paired_slots: list[int] = []
    for microbatch in range(1, MICROBATCHES):
        order.append(Slot("F", 0, microbatch))
        for part in gradients:
            paired_slots.append(len(order))
            order.append(Slot(part, 0, microbatch - 1))
    order += [Slot(part, 0, MICROBATCHES - 1) for part in gradients]
    return tuple(order), frozenset(paired_slots)


class PieceCompiler:
    """Compiler of pieces of one plan.

    Parameters
    ----------
    wiring
        The plan's.
    """

    def __init__(self, wiring: PlanBlocks) -> None:
        self.wiring = wiring
        plan = wiring.plan
        # Forwards run beside gradients in any schedule, so that experts' exchange is hidden.
        self.overlaps = exchange_hides(plan.cluster.software, wiring.graph)
        # A piece has too little of a chunk for its buckets: state pays its part of one instead.
        self._cluster = plan.cluster
        if plan.fusion == FUSED:
            self._cluster = with_own_buckets(self._cluster, state_bytes_of(wiring.graph))
        # A meeting costs the same in every piece on a stage: see `_key`.
        self._meetings: dict[tuple[object, ...], int] = {}
        self._tables: dict[tuple[Order, frozenset[int]], Timetable] = {}

    def compile(
        self,
        chunk: int,
        block_names: Sequence[str],
        order: Order,
        stage: int,
        paired_slots: frozenset[int] = frozenset(),
    ) -> CompiledPiece:
        """Compile some of a chunk's blocks alone.

        Parameters
        ----------
        chunk
            Index of the chunk.
        block_names
            The blocks that are kept, in order; from each run its last and at least one more.
        order
            In which the piece runs alone (`alone`, `in_pairs`).
        stage
            On whose devices the piece lies.
        paired_slots
            Slots of the order that run beside the one before them.
        """
        wiring, plan = self.wiring, self.wiring.plan
        graph, readings = _restricted(wiring, chunk, block_names)
        lowering = _Alone(graph, plan.mesh, plan.offload)
        for reading in readings:
            lowering.arrives(reading, wiring.made_as(reading.tensor), wiring.read_as(reading))
        for placed in place(_plan_of(plan, block_names, wiring), graph):
            lowering.lower(placed)
        for block in block_names:
            for reading in wiring.read_from.get(block, ()):
                if wiring.chunk_of[reading.reader.block] != chunk:
                    lowering.leaves(reading, wiring.read_as(reading))
        table = self._table(order, paired_slots)
        drafts = fused_stages(lowering.stages[:ELSEWHERE], plan.fusion, joint=table.joint)
        hold_back(drafts[HERE], table.joint)
        alone = unordered(
            drafts[HERE], f"stage {stage}", HERE, table.orders[HERE], table.paired_slots[HERE]
        )
        actors = with_slots(joined([alone], plan.model.name, plan.mesh.axes), drafts, table)
        devices = plan.mesh.devices
        ranks = tuple(range(stage * devices, (stage + 1) * devices))
        program = replace(actors.programs[HERE], stage=stage, ranks=ranks)
        actors = replace(actors, programs=(program,))
        costs = self._durations(actors)
        first = first_step(actors, drafts, (costs,))
        return CompiledPiece(
            graph=with_queues(actors, drafts, first),
            first=first,
            durations_ns=costs,
            sections=tuple(
                actor.section if actor.lane == "compute" else None for actor in drafts[HERE].actors
            ),
            slots=table.orders[HERE],
            pacing=pacing_of(actors, plan.cluster),
        )

    def _table(self, order: Order, paired_slots: frozenset[int]) -> Timetable:
        key = order, paired_slots
        if key not in self._tables:
            self._tables[key] = Timetable(
                [order], [HERE], MICROBATCHES, [tuple(sorted(paired_slots))]
            )
        return self._tables[key]

    def _durations(self, graph: ActorGraph) -> tuple[int, ...]:
        """Durations of a piece's actors; only meetings along the mesh's axes take time."""
        (program,) = graph.programs
        totals = Totals(program)
        actor_ns: list[int | None] = []
        for actor in program.actors:
            meeting = actor.meeting
            if meeting is None:
                actor_ns.append(None)
            elif meeting.world or not meeting.axes:
                actor_ns.append(0)
            else:
                actor_ns.append(
                    self._meetings.get(_key(program.stage, meeting, totals.state(actor)))
                )
        missing = [index for index, ns in enumerate(actor_ns) if ns is None]
        (priced,) = durations(graph, self._cluster, frozenset(missing))
        for index, ns in zip(missing, priced, strict=True):
            actor = program.actors[index]
            if actor.meeting is not None:
                key = _key(program.stage, actor.meeting, totals.state(actor))
                self._meetings[key] = ns
            actor_ns[index] = ns
        return tuple(ns for ns in actor_ns if ns is not None)


def _key(stage: int, meeting: Meeting, state: State) -> tuple[object, ...]:
    size = meeting.message_bytes, meeting.bucketed, meeting.copies
    return stage, meeting.kind, meeting.axes, *size, state


def _restricted(
    wiring: PlanBlocks, chunk: int, block_names: Sequence[str]
) -> tuple[Graph, tuple[CrossReading, ...]]:
    """Graph of the kept blocks, and what they read from other chunks.

    What was made by a block that is left out is taken from the nearest kept one of its run.
    """
    within = set(block_names)

    def stand_in(reader: str, home: str) -> str:
        if reader == GLOBAL_BLOCK or wiring.chunk_of[home] != chunk:
            return home
        return next(b for b in beyond(wiring.graph.blocks, reader, home) if b in within)

    arriving: dict[str, CrossReading] = {}
    for block in block_names:
        for reading in wiring.readings.get(block, ()):
            if wiring.chunk_of[reading.maker.block] != chunk:
                arriving.setdefault(reading.tensor, reading)
    numbered = (
        pair for block in (GLOBAL_BLOCK, *block_names) for pair in wiring.ops.get(block, ())
    )
    ops = [op for _, op in sorted(numbered, key=itemgetter(0))]
    return restricted(wiring.graph, block_names, stand_in, ops), tuple(arriving.values())


def _plan_of(plan: Plan, block_names: Sequence[str], wiring: PlanBlocks) -> Plan:
    """Plan of the kept blocks on one stage."""
    blocks = tuple(
        BlockChoice(block=block, variant=wiring.variant_of[block]) for block in block_names
    )
    return replace(plan, stages=1, chunks=(Chunk(stage=HERE, blocks=blocks),))


class _Alone(Lowering):
    """Lowering of one chunk; every other one is elsewhere."""

    def __init__(self, graph: Graph, mesh: Mesh, offload: str) -> None:
        super().__init__(graph, mesh, 2, MICROBATCHES, offload)
        # The step's totals ask for what every block of the model has: most of it is nowhere here.
        self._homes = defaultdict(dict)

    def arrives(self, reading: CrossReading, sbp: NdSbp, wanted: NdSbp) -> None:
        """Declare a tensor that another chunk makes.

        One that is partial on both sides crosses no stages: it is there as its reader begins.
        """
        tensor, rate = reading.tensor, self.tensors[reading.tensor].rate
        register = self._register(ELSEWHERE, tensor, tensor, sbp, "activation")
        value = PlacedTensor(register, rate)
        if any(a.is_partial and b.is_partial for a, b in zip(sbp, wanted, strict=True)):
            arrival = self._transfer(ELSEWHERE, HERE, tensor, sbp, value, _section(reading, rate))
            self._record_home(HERE, tensor, sbp, arrival)
        else:
            self._record_home(ELSEWHERE, tensor, sbp, value)

    def leaves(self, reading: CrossReading, sbp: NdSbp) -> None:
        """Box a tensor as a reader of another chunk wants it sent; partial, it stays as it is."""
        rate = self.tensors[reading.tensor].rate
        if not any(axis_sbp.is_partial for axis_sbp in sbp):
            self.materialize(ELSEWHERE, reading.tensor, sbp, _section(reading, rate), rate)

    def _transfer(
        self, home: int, stage: int, tensor: str, sbp: NdSbp, value: PlacedTensor, section: Section
    ) -> PlacedTensor:
        """Value on `stage` of a tensor that arrives from nobody; one that leaves takes no actor."""
        kind = self.stages[home].registers[value.register].memory_kind
        register = self._register(stage, tensor, f"{tensor} arrived", sbp, kind)
        if stage == HERE:
            often = value.rate is Rate.MICROBATCH
            self.stages[HERE].add_actor(
                ActorIR(
                    name=f"{tensor}: arrival",
                    kind="recv",
                    section=section,
                    firings=self.microbatches if often else 1,
                    inputs=(),
                    outputs=(Port(register=register),),
                    meeting=Meeting(key=f"{tensor}: arrival", kind="recv"),
                    lane=f"arrival of {tensor}",
                )
            )
        return PlacedTensor(register, value.rate)


def _section(reading: CrossReading, rate: Rate) -> Section:
    """Section of the step in which a tensor's reader runs."""
    return UPDATE if rate is Rate.STEP else (PARTS[reading.reader.phase], 0)
