"""Block times: what each kind of block of a plan adds to a chunk, measured on pieces of it.

A kind is a template in a variant. One of a long run is measured as the difference of four such
blocks alone and three; other blocks (an embedding, a head) beside three of the run next to them, or
alone where there is none. Of those, one of at least three in a row (the dense blocks before many of
experts) is what the piece takes longer than without one of them, and the others share the rest.
They lie in a *sample* of the plan, in which every kind has a chunk of its own, so that no piece
depends on how the plan mixes its variants.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

import numpy as np
from msgspec.structs import replace

from millrace.models.graph import Graph
from millrace.planner.block_times import (
    ALONE,
    BEGIN,
    GATHER,
    LAUNCHES,
    NORM,
    PASSES,
    REDUCE,
    TIMES,
    UPDATE,
    BlockTimes,
    Floats,
    Kind,
)
from millrace.planner.compile.slots import timetable
from millrace.planner.costs.pacing import paced
from millrace.planner.plan import BlockChoice, Chunk, Plan, plan_graph
from millrace.planner.schedules import Order
from millrace.simulator.chunks.coarse import hops_ns
from millrace.simulator.chunks.part_times import PartTimes
from millrace.simulator.chunks.parts import part_times
from millrace.simulator.chunks.pieces import Pieces, alone
from millrace.simulator.chunks.wiring import Wiring

SLOTS = {"F": 0, "B": 1, "BW": 1, "W": 2}
BESIDE = 3  # blocks of a run that are measured: a first, a last and one between
LONG = BESIDE + 1  # blocks of a run of which one more can be measured


def block_times(plan: Plan, graph: Graph, known: Mapping[Kind, Floats] | None = None) -> BlockTimes:
    """The times of a plan's blocks.

    Parameters
    ----------
    plan
        The plan.
    graph
        Its graph, as `plan_graph` gives it.
    known
        Times of kinds that were measured before, which are not measured again.
    """
    homes = tuple(chunk.stage for chunk in plan.chunks)
    table = timetable(plan.schedule, homes, plan.microbatches)
    measured = _Measured(plan, graph, alone(joint=table.joint), known or {})
    if not measured.complete:
        for choices in _samples(plan, graph):
            measured.add(choices)
    software, held_back = plan.cluster.software, paced(plan.cluster)
    return BlockTimes(
        blocks=measured.blocks,
        chunk=np.mean(measured.bare, axis=0) if measured.bare else np.zeros(TIMES),
        totals_ns=measured.totals_ns,
        hops_ns=hops_ns(Wiring(plan, graph), table.joint),
        host_ns=software.host_ns if held_back else 0,
        overlap=software.overlap if held_back else 1.0,
    )


Choices = list[list[BlockChoice]]  # of every chunk


def _samples(plan: Plan, graph: Graph) -> Iterator[Choices]:
    """The model's blocks in chunks: of every kind in a long run one, and one with those beside it.

    A run has a chunk for as many kinds as it is long, and a short one is of one kind if that can be
    told from what lies beside it; of others there is another sample.
    """
    variant_of = {one.block: one.variant for chunk in plan.chunks for one in chunk.blocks}
    runs = [list(run) for _, run in groupby(graph.blocks, graph.templates.get)]
    kinds = [list(dict.fromkeys(variant_of[block] for block in run)) for run in runs]
    rounds = 1
    for run, variants in zip(runs, kinds, strict=True):
        if len(run) >= 2 * LONG:
            rounds = max(rounds, -(-len(variants) // (len(run) // LONG - 1)))
        elif len(run) >= BESIDE:
            rounds = max(rounds, len(variants))
    for number in range(rounds):
        chunks: Choices = []
        others: list[BlockChoice] = []
        for run, variants in zip(runs, kinds, strict=True):
            if len(run) < 2 * LONG:
                alike = variants[number % len(variants)] if len(run) >= BESIDE else None
                others += [
                    BlockChoice(block=b, variant=variant_of[b] if alike is None else alike)
                    for b in run
                ]
                continue
            # The first blocks of the run lie beside what comes before it.
            mine = variants[number::rounds] or variants[:1]
            beside = [BlockChoice(block=block, variant=mine[0]) for block in run[:BESIDE]]
            chunks.append([*others, *beside] if others else beside)
            others = []
            left = run[BESIDE:]
            for at, variant in enumerate(mine):
                end = len(left) if at == len(mine) - 1 else (at + 1) * LONG
                chunks.append(
                    [BlockChoice(block=b, variant=variant) for b in left[at * LONG : end]]
                )
        if others and chunks and len(chunks[-1]) >= LONG + BESIDE:
            last = chunks[-1]
            chunks[-1:] = [last[:-BESIDE], [*last[-BESIDE:], *others]]
        elif others:
            chunks += [[one] for one in others]
        yield chunks


class _Measured:
    """Times of kinds while they are measured."""

    def __init__(
        self, plan: Plan, graph: Graph, order: Order, known: Mapping[Kind, Floats]
    ) -> None:
        self.plan = plan
        self.graph = graph
        self.order = order
        self.blocks = dict(known)
        self.bare: list[Floats] = []  # times of chunks without their blocks
        self.totals_ns = 0

    @property
    def complete(self) -> bool:
        """Whether every kind of the plan is known."""
        return all(
            kind in self.blocks for chunk in self.plan.chunks for kind in self._kinds(chunk.blocks)
        )

    def add(self, choices: Choices) -> None:
        """Measure the kinds of a sample that are not known yet."""
        chunks = tuple(
            Chunk(stage=stage, blocks=tuple(blocks)) for stage, blocks in enumerate(choices)
        )
        sample = replace(self.plan, chunks=chunks, stages=len(chunks), interleave=1)
        pieces = Pieces(Wiring(sample, plan_graph(sample)))
        mixed: list[int] = []
        for number, blocks in enumerate(choices):
            kinds = self._kinds(blocks)
            if len(set(kinds)) > 1:
                mixed.append(number)
            elif kinds[0] not in self.blocks and len(blocks) >= LONG:
                names = [one.block for one in blocks]
                fewer = self._piece(pieces, number, [*names[: BESIDE - 1], names[-1]])
                more = self._piece(pieces, number, [*names[: LONG - 1], names[-1]])
                self.blocks[kinds[0]] = more - fewer
                self.bare.append(fewer - BESIDE * (more - fewer))
            elif kinds[0] not in self.blocks and len(blocks) == 1:
                self.blocks[kinds[0]] = self._piece(pieces, number, [blocks[0].block])
        for number in mixed:
            self._add_mixed(pieces, number, choices[number])

    def _add_mixed(self, pieces: Pieces, number: int, blocks: list[BlockChoice]) -> None:
        """Blocks beside three of a long run: one of many in a row, and what the others share."""
        kinds = self._kinds(blocks)
        if all(kind in self.blocks for kind in kinds):
            return
        names = [one.block for one in blocks]
        whole = self._piece(pieces, number, names)
        for kind, at in _in_a_row(kinds):
            if kind not in self.blocks:
                fewer = self._piece(pieces, number, [*names[:at], *names[at + 1 :]])
                self.blocks[kind] = np.maximum(whole - fewer, 0)
        new = [kind for kind in dict.fromkeys(kinds) if kind not in self.blocks]
        if not new:
            return
        known = [self.blocks[kind] for kind in kinds if kind in self.blocks]
        bare = np.mean(self.bare, axis=0) if self.bare else np.zeros(TIMES)
        left = whole - bare - sum(known)
        count = sum(kind in new for kind in kinds)
        self.blocks |= dict.fromkeys(new, np.maximum(left, 0) / count)

    def _kinds(self, blocks: Sequence[BlockChoice]) -> list[Kind]:
        return [(self.graph.templates[one.block], one.variant) for one in blocks]

    def _piece(self, pieces: Pieces, number: int, kept: Sequence[str]) -> Floats:
        times = part_times(pieces.compile(number, kept, self.order, 0))
        self.totals_ns = max(self.totals_ns, times.totals_ns)
        return _array(times)


def _in_a_row(kinds: Sequence[Kind]) -> Iterator[tuple[Kind, int]]:
    """Kinds of which there are enough in a row to leave one out, and where the one is."""
    first = 0
    for kind, row in groupby(kinds):
        count = len(list(row))
        if count >= BESIDE:
            yield kind, first + 1
        first += count


def _array(times: PartTimes) -> Floats:
    found = np.zeros(TIMES)
    for part, ns in times.slots_ns.items():
        found[PASSES][SLOTS[part]] = ns
        pace = times.paces.get(part)
        found[ALONE][SLOTS[part]] = ns if pace is None else pace.alone_ns
        found[LAUNCHES][SLOTS[part]] = 0 if pace is None else pace.launches
    found[BEGIN], found[GATHER], found[REDUCE] = times.begin_ns, times.gather_ns, times.reduce_ns
    found[NORM], found[UPDATE] = times.norm_ns, times.update_ns
    return found
