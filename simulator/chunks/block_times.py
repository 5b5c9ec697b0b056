"""Block times: what each kind of block of a plan adds to a chunk, measured on pieces of it.

A kind is a template in a variant. One of a long run is measured as the difference of four such
blocks alone and three. Others (an embedding, a few blocks without experts, a head) are measured
beside three of the run next to them, run by run, the nearest first; or alone where no run is long.
They lie in a *sample* of the plan, in which every kind has a chunk of its own, so that no piece
depends on how the plan mixes its variants.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import chain, groupby

import numpy as np
from msgspec.structs import replace

from millrace.planner.block_times import (
    ALONE,
    BEGIN,
    GATHER,
    LAUNCHES,
    NORM,
    PAIRED,
    PASSES,
    REDUCE,
    TIMES,
    UPDATE,
    BlockTimes,
    Floats,
    Kind,
)
from millrace.planner.compile.slots import timetable
from millrace.planner.costs.launch_overhead import paced
from millrace.planner.plan import BlockChoice, Chunk, Plan, block_runs
from millrace.simulator.chunks.chunk_graph import hops_ns
from millrace.simulator.chunks.chunk_sample import PieceCompiler, alone
from millrace.simulator.chunks.phase_measurement import part_times
from millrace.simulator.chunks.phase_times import PartTimes
from millrace.simulator.chunks.plan_blocks import PlanBlocks

SLOTS = {"F": 0, "B": 1, "BW": 1, "W": 2}
BESIDE = 3  # blocks of a run that are measured: a first, a last and one between
LONG = BESIDE + 1  # blocks of a run of which one more can be measured
NESTED = 4  # short runs beside a long one that are told apart; most models have one or two


def block_times(plan: Plan, times_by_kind: Mapping[Kind, Floats] | None = None) -> BlockTimes:
    """Times of a plan's blocks.

    Parameters
    ----------
    plan : Plan
        Its kinds of block, each a template in a variant, are measured on the devices of stage 0;
        `hops_ns` are of its chunks.
    times_by_kind : mapping of (str, int) to float array (17,), optional
        Times of kinds that were measured before, which are not measured again. Where they cover all
        kinds of the plan nothing is: `chunk` and `totals_ns` are 0 then. None: there are none.

    Returns
    -------
    BlockTimes
        Its `blocks` hold the times given and those measured.

    Raises
    ------
    PlanError
        The plan does not fit the model's ops, or no schedule has its schedule's name.
    ModelError
        The plan's specification of the model gives no graph.
    InfeasibleError
        A shard does not divide, or the schedule cannot run the chunks.
    ClusterError
        A device has no rate for the precision of an op.
    """
    homes = tuple(chunk.stage for chunk in plan.chunks)
    table = timetable(plan.schedule, homes, plan.microbatches)
    measured = _KindTimes(plan, times_by_kind or {}, joint=table.joint, pairs=table.pairs)
    if not measured.complete:
        for choices, wanted in _samples(plan):
            measured.add(choices, wanted)
    software, held_back = plan.cluster.software, paced(plan.cluster)
    return BlockTimes(
        blocks=measured.blocks,
        chunk=np.mean(measured.bare, axis=0) if measured.bare else np.zeros(TIMES),
        totals_ns=measured.totals_ns,
        hops_ns=hops_ns(PlanBlocks(plan), table.joint),
        host_ns=software.host_ns if held_back else 0,
        overlap=software.overlap if held_back else 1.0,
    )


Choices = list[list[BlockChoice]]  # of every chunk


def _samples(plan: Plan) -> Iterator[tuple[Choices, set[int]]]:
    """Samples of a plan: the model's blocks in chunks, and the chunks that are measured.

    Every kind of a long run has a chunk, every short run one with blocks of the long run next to it
    and the short ones between, whose kinds earlier samples tell. A run has as many kinds as there
    are chunks for it, a short one a single kind; of others there are further samples.
    """
    variant_of = {choice.block: choice.variant for chunk in plan.chunks for choice in chunk.blocks}
    runs = [run.blocks for run in block_runs(plan.graph)]
    kinds = [list(dict.fromkeys(variant_of[block] for block in run)) for run in runs]
    long = [len(run) >= 2 * LONG for run in runs]
    if not any(long):
        yield (
            [[BlockChoice(block=b, variant=variant_of[b])] for b in plan.graph.blocks],
            {*range(len(plan.graph.blocks))},
        )
        return
    rounds = max(
        -(-len(variants) // (len(run) // LONG - 1)) if is_long else len(variants)
        for run, variants, is_long in zip(runs, kinds, long, strict=True)
    )
    deepest = max((len(list(row)) for is_long, row in groupby(long) if not is_long), default=1)
    for number in range(rounds):
        round_kinds = [
            (variants[number::rounds] or variants[:1])
            if is_long
            else [variants[number % len(variants)]]
            for variants, is_long in zip(kinds, long, strict=True)
        ]
        for depth in (*range(1, min(deepest, NESTED)), deepest):
            yield _sample(runs, round_kinds, depth)


def _sample(
    runs: Sequence[tuple[str, ...]], kinds: Sequence[list[int]], depth: int
) -> tuple[Choices, set[int]]:
    """Chunks of runs in these variants, and those that are measured.

    Of the short runs next to a long one, so many lie beside it, and what is beyond is not measured.
    """
    chunks: Choices = []
    beyond: set[int] = set()
    short: list[list[BlockChoice]] = []

    def put_aside(further: list[list[BlockChoice]]) -> None:
        if further:
            beyond.add(len(chunks))
            chunks.append([*chain.from_iterable(further)])

    for run, variants in zip(runs, kinds, strict=True):
        if len(run) < 2 * LONG:
            short.append([BlockChoice(block=block, variant=variants[0]) for block in run])
            continue
        # The first blocks of the run lie beside what comes before it.
        put_aside(short[:-depth])
        beside = [BlockChoice(block=block, variant=variants[0]) for block in run[:BESIDE]]
        chunks.append([*chain.from_iterable(short[-depth:]), *beside])
        short = []
        left = run[BESIDE:]
        for position, variant in enumerate(variants):
            end = len(left) if position == len(variants) - 1 else (position + 1) * LONG
            chunks.append(
                [BlockChoice(block=b, variant=variant) for b in left[position * LONG : end]]
            )
    if short and len(chunks[-1]) >= LONG + BESIDE:
        last = chunks[-1]
        chunks[-1:] = [last[:-BESIDE], [*last[-BESIDE:], *chain.from_iterable(short[:depth])]]
        put_aside(short[depth:])
    elif short:
        chunks += [[choice] for choice in chain.from_iterable(short)]
    return chunks, {*range(len(chunks))} - beyond


class _KindTimes:
    """Times of kinds while they are measured."""

    def __init__(
        self, plan: Plan, times_by_kind: Mapping[Kind, Floats], *, joint: bool, pairs: bool
    ) -> None:
        self.plan = plan
        self.joint, self.pairs = joint, pairs
        self.blocks = dict(times_by_kind)
        self.bare: list[Floats] = []  # times of chunks without their blocks
        self.totals_ns = 0

    @property
    def complete(self) -> bool:
        """True if the times of every kind of the plan are there."""
        return all(self._knows(chunk.blocks) for chunk in self.plan.chunks)

    def add(self, choices: Choices, wanted: Set[int]) -> None:
        """Measure the kinds of these chunks of a sample that are not known yet."""
        due = {number for number in wanted if not self._knows(choices[number])}
        if not due:
            return
        chunks = tuple(
            Chunk(stage=stage, blocks=tuple(blocks)) for stage, blocks in enumerate(choices)
        )
        sample = replace(self.plan, chunks=chunks, stages=len(chunks), interleave=1)
        pieces = PieceCompiler(PlanBlocks(sample))
        mixed: list[int] = []
        for number in sorted(due):
            blocks = choices[number]
            kinds = self._kinds(blocks)
            if len(set(kinds)) > 1:
                mixed.append(number)
            elif kinds[0] not in self.blocks and len(blocks) >= LONG:
                names = [choice.block for choice in blocks]
                fewer = self._piece(pieces, number, [*names[: BESIDE - 1], names[-1]])
                more = self._piece(pieces, number, [*names[: LONG - 1], names[-1]])
                self.blocks[kinds[0]] = more - fewer
                self.bare.append(fewer - BESIDE * (more - fewer))
            elif kinds[0] not in self.blocks and len(blocks) == 1:
                self.blocks[kinds[0]] = self._piece(pieces, number, [blocks[0].block])
        for number in mixed:
            self._add_mixed(pieces, number, choices[number])

    def _add_mixed(self, pieces: PieceCompiler, number: int, blocks: list[BlockChoice]) -> None:
        """Measure blocks beside three of a long run: they share what these leave of the time."""
        kinds = self._kinds(blocks)
        new = [kind for kind in dict.fromkeys(kinds) if kind not in self.blocks]
        if not new:
            return
        piece_times = self._piece(pieces, number, [choice.block for choice in blocks])
        known_times = [self.blocks[kind] for kind in kinds if kind in self.blocks]
        bare = np.mean(self.bare, axis=0) if self.bare else np.zeros(TIMES)
        left = piece_times - bare - sum(known_times)
        count = sum(kind in new for kind in kinds)
        self.blocks |= dict.fromkeys(new, left / count)

    def _knows(self, blocks: Sequence[BlockChoice]) -> bool:
        return all(kind in self.blocks for kind in self._kinds(blocks))

    def _kinds(self, blocks: Sequence[BlockChoice]) -> list[Kind]:
        return [(self.plan.graph.templates[choice.block], choice.variant) for choice in blocks]

    def _piece(self, pieces: PieceCompiler, number: int, block_names: Sequence[str]) -> Floats:
        order = alone(joint=self.joint)
        times, _ = part_times(
            pieces, number, block_names, order, 0, joint=self.joint, pairs=self.pairs
        )
        self.totals_ns = max(self.totals_ns, times.totals_ns)
        return _array(times)


def _array(times: PartTimes) -> Floats:
    vector = np.zeros(TIMES)
    for part, ns in times.slots_ns.items():
        vector[PASSES][SLOTS[part]] = ns
        vector[PAIRED][SLOTS[part]] = times.paired_ns.get(part, ns)
        pace = times.paces.get(part)
        vector[ALONE][SLOTS[part]] = ns if pace is None else pace.alone_ns
        vector[LAUNCHES][SLOTS[part]] = 0 if pace is None else pace.launches
    vector[BEGIN], vector[GATHER], vector[REDUCE] = times.begin_ns, times.gather_ns, times.reduce_ns
    vector[NORM], vector[UPDATE] = times.norm_ns, times.update_ns
    return vector
