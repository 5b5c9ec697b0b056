"""Stage fidelity: a plan simulated chunk by chunk, however deep its model is.

Every kind of chunk is simulated once op by op, with three blocks of each run and again with four;
the difference is what one more block takes (`parts`). The chunks' actor graph
(`millrace.simulator.chunks.chunk_graph`) then runs with these times. What is lost: that sends begin
before their part ends and receipts may come after theirs began, which matters where a transfer
takes about as long as a part; and where ranks share cores, that communication needs them less than
computation. Where a schedule pairs slots, pairs are measured of a chunk's parts with one another,
and what two chunks hide of each other is taken to be the mean of what each hides of itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from millrace.planner.compile.slots import Timetable, timetable
from millrace.planner.compile.stage_ir import PHASES, SLOT_PARTS
from millrace.planner.costs import collective_duration_ns
from millrace.planner.plan import BlockChoice, Plan, check_plan
from millrace.planner.schedules import Order
from millrace.planner.schedules.orders import one_ahead
from millrace.simulator.block_fidelity import Row, shared
from millrace.simulator.chunks.chunk_graph import CoarseGraph, coarse_graph
from millrace.simulator.chunks.chunk_sample import CompiledPiece, PieceCompiler, alone
from millrace.simulator.chunks.phase_measurement import part_times
from millrace.simulator.chunks.phase_times import PartTimes
from millrace.simulator.chunks.plan_blocks import PlanBlocks

BLOCKS = 3  # of a run are measured: a first, a last and one between (lanes run ahead of more)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageGraph:
    """Graph and durations that are simulated at stage fidelity.

    `table` holds the schedule's orders; `exposed_ns` is the communication that nothing hides inside
    parts of one step, per stage; `rows` lists the blocks of every part and their times, by the name
    of the part's actor; `times` holds those of every chunk, in model order.
    """

    coarse: CoarseGraph
    table: Timetable
    exposed_ns: tuple[int, ...]
    rows: Mapping[str, Row]
    times: tuple[PartTimes, ...]

    @property
    def inside_ns(self) -> int:
        """Communication that nothing hides inside parts of one step, in the mean over stages."""
        return round(float(np.mean(self.exposed_ns)))

    def busy_by_stage(self, fractions: Sequence[float], step_ns: int) -> tuple[float, ...]:
        """Shares of a step in which stages compute, from those in which their parts are under way.

        Parameters
        ----------
        fractions : sequence of float
            Shares by stage in which a part runs, with the communication inside it.
        step_ns : int
            The step's time in nanoseconds.
        """
        pairs = zip(fractions, self.exposed_ns, strict=True)
        return tuple(max(share - inside / max(step_ns, 1), 0.0) for share, inside in pairs)


def stage_graph(plan: Plan, detailed: bool = False) -> StageGraph:
    """Actor graph of the plan's chunks, with measured durations.

    Parameters
    ----------
    plan : Plan
        Checked first (`check_plan`).
    detailed : bool
        True says what parts are made of (`PartTimes.contents`), for an account of the step.

    Raises
    ------
    PlanError
        The plan is malformed, or does not fit the model's ops.
    ModelError
        The plan's specification of the model gives no graph.
    InfeasibleError
        The cluster has too few devices, shards or microbatches do not divide, or the schedule
        cannot run the chunks.
    ClusterError
        A device has no rate for the precision of an op.
    ProtocolError
        The schedule's orders wait for one another in a cycle.
    """
    check_plan(plan)
    wiring = PlanBlocks(plan)
    homes = tuple(chunk.stage for chunk in plan.chunks)
    table = timetable(plan.schedule, homes, plan.microbatches)
    measured = _PartTimes(wiring, table, detailed)
    table = measured.table
    times = measured.times()
    coarse = coarse_graph(wiring, table, times)
    exposed = [0] * plan.stages
    for chunk, chunk_times in zip(plan.chunks, times, strict=True):
        exposed[chunk.stage] += plan.microbatches * sum(chunk_times.exposed_ns.values())
    for stage, hidden_ns in enumerate(coarse.hidden_ns):
        exposed[stage] = max(exposed[stage] - hidden_ns, 0)
    rows = {
        f"chunk {number}: {part}": measured.row(number, part, ns, chunk_times.exposed_ns[part])
        for number, chunk_times in enumerate(times)
        for part, ns in chunk_times.slots_ns.items()
    }
    return StageGraph(coarse=coarse, table=table, exposed_ns=tuple(exposed), rows=rows, times=times)


class _PartTimes:
    """Times of chunks' parts; chunks that run alike are measured once."""

    def __init__(self, wiring: PlanBlocks, table: Timetable, detailed: bool) -> None:
        self.wiring = wiring
        self._detailed = detailed
        self._times_by_key: dict[object, PartTimes] = {}
        # Of a kind of block on a stage: phase → nanoseconds of computation and of communication.
        self._alone: dict[object, dict[str, list[int]]] = {}
        self._compiler = PieceCompiler(wiring)
        self.table = _beside(table) if self._compiler.overlaps and not table.pairs else table
        # Stages whose devices lie alike are measured on the first of them.
        first: dict[object, int] = {}
        self._lies = [
            first.setdefault(_surroundings(wiring.plan, stage), stage)
            for stage in range(wiring.plan.stages)
        ]

    def times(self) -> tuple[PartTimes, ...]:
        """Times of every chunk, in model order."""
        numbers = range(len(self.wiring.plan.chunks))
        # What one more block adds is measured where the fewest kinds of block are.
        by_kinds = sorted(numbers, key=lambda number: len(self.wiring.runs(number)))
        times_by_chunk = {number: self._chunk(number) for number in by_kinds}
        return tuple(times_by_chunk[number] for number in numbers)

    def row(self, number: int, part: str, part_ns: int, exposed_ns: int) -> Row:
        """Blocks of a part in the order in which they run, with their shares of its time."""
        chunk = self.wiring.plan.chunks[number]
        choices = chunk.blocks if part == "F" else chunk.blocks[::-1]
        where = self._where(number)
        phases = [PHASES[draft_part] for draft_part in SLOT_PARTS[part]]
        columns: list[list[int]] = []
        for moving in (0, 1):
            columns.append(
                [
                    sum(self._alone[(kind, *where)].get(phase, (0, 0))[moving] for phase in phases)
                    for kind in self._kinds(choices)
                ]
            )
        computing = shared(max(part_ns - exposed_ns, 0), columns[0])
        waiting = shared(part_ns - max(part_ns - exposed_ns, 0), columns[1])
        names = [choice.block for choice in choices]
        return [(name, a + b) for name, a, b in zip(names, computing, waiting, strict=True)]

    def _note(self, number: int, piece: CompiledPiece) -> None:
        """Keep what each kind of block computes and moves in every microbatch."""
        where, kind_of = self._where(number), dict(self._by_name(number))
        phases_by_block: dict[str, dict[str, list[int]]] = {}
        for actor, ns in zip(piece.graph.programs[0].actors, piece.durations_ns, strict=True):
            if actor.firings > 1:
                phases = phases_by_block.setdefault(actor.block, {})
                phases.setdefault(actor.phase, [0, 0])[actor.meeting is not None] += ns
        for block, phases in phases_by_block.items():
            if block in kind_of:
                self._alone[(kind_of[block], *where)] = phases

    def _by_name(self, number: int) -> list[tuple[str, tuple[str, int]]]:
        blocks = self.wiring.plan.chunks[number].blocks
        return list(zip((choice.block for choice in blocks), self._kinds(blocks), strict=True))

    def _chunk(self, number: int) -> PartTimes:
        """Times of a chunk: few blocks of every run, measured, and what each further block adds."""
        runs = self.wiring.runs(number)
        counts = [min(len(run.blocks), BLOCKS) for run in runs]
        times = self._measured(number, counts)
        for index, run in enumerate(runs):
            if len(run.blocks) > BLOCKS:
                times = times.plus(self._one_more(number, index), len(run.blocks) - BLOCKS)
        return times.non_negative()

    def _one_more(self, number: int, index: int) -> PartTimes:
        """Times that one more block of a run adds, wherever such a run lies."""
        runs = self.wiring.runs(number)
        key = ("one more", runs[index].template, runs[index].variant, *self._where(number))
        if key not in self._times_by_key:
            counts = [min(len(run.blocks), BLOCKS) for run in runs]
            fewer = self._measured(number, counts)
            counts[index] += 1
            self._times_by_key[key] = self._measured(number, counts).plus(fewer, -1)
        return self._times_by_key[key]

    def _measured(self, number: int, counts: Sequence[int]) -> PartTimes:
        plan = self.wiring.plan
        runs = self.wiring.runs(number)
        before = plan.chunks[number - 1].blocks[-1:] if number else ()
        after = plan.chunks[number + 1].blocks[:1] if number + 1 < len(plan.chunks) else ()
        key = (
            tuple((run.template, run.variant, n) for run, n in zip(runs, counts, strict=True)),
            self._kinds(before),
            self._kinds(after),
            *self._where(number),
        )
        if key not in self._times_by_key:
            block_names = [
                b for run, n in zip(runs, counts, strict=True) for b in run.sampled_blocks(n)
            ]
            self._times_by_key[key], piece = part_times(
                self._compiler,
                number,
                block_names,
                *self._where(number),
                joint=self.table.joint,
                pairs=self.table.pairs,
                detailed=self._detailed,
            )
            self._note(number, piece)
        return self._times_by_key[key]

    def _where(self, number: int) -> tuple[Order, int]:
        """Order of a chunk and the first stage whose devices lie alike: they decide its times."""
        return self._order(number), self._lies[self.wiring.plan.chunks[number].stage]

    def _kinds(self, blocks: Sequence[BlockChoice]) -> tuple[tuple[str, int], ...]:
        templates = self.wiring.graph.templates
        return tuple((templates[choice.block], choice.variant) for choice in blocks)

    def _order(self, number: int) -> Order:
        """Order of a chunk alone: all forwards first where its stage does so, else in turn."""
        if not self.table.joint:
            return alone(joint=False)
        stage = self.wiring.plan.chunks[number].stage
        position = self.table.positions[stage].index(number)
        parts = [slot.part for slot in self.table.orders[stage] if slot.chunk == position]
        return alone(forwards_first=len(parts) > 2 and "F" not in parts[parts.index("BW") :])


def _beside(table: Timetable) -> Timetable:
    """Timetable of trainers that run gradients beside the forwards of a steady phase."""
    orders, paired_slots = zip(*map(one_ahead, table.orders), strict=True)
    return Timetable(orders, table.homes, table.microbatches, paired_slots)


def _surroundings(plan: Plan, stage: int) -> object:
    """Key that tells apart stages whose devices lie differently.

    Kinds of device, and what groups along the mesh's axes cost at the stage's two ends.
    """
    devices, cluster = plan.mesh.devices, plan.cluster
    begin = stage * devices
    costs = []
    step = devices
    for axis in plan.mesh.axes:
        step //= axis.size
        for first in (begin, begin + devices - 1 - (axis.size - 1) * step):
            ranks = tuple(range(first, first + axis.size * step, step))
            costs.append(collective_duration_ns("all_gather", 0, len(ranks), cluster, ranks))
            costs.append(collective_duration_ns("all_gather", 2**24, len(ranks), cluster, ranks))
    kinds = {cluster.device_of(rank).name for rank in range(begin, begin + devices)}
    return (tuple(costs), tuple(sorted(kinds)))
