"""Enumeration: the best plan of a small question by going through all of them.

A plan of a candidate shape (`millrace.planner.search.candidates`) takes, for every block, a
variant: one signature per op and a mode of recomputation, and divides the blocks over the chunks in
their order. Blocks hand tensors over in one way throughout (`VariantFigures.handover`), and all
blocks of a template take the figures that its variant has on average over them, as the planner
prices it.

Variants are enumerated op by op. A partial assignment is dropped only where another, equal in
everything that later ops still see, is no worse in every figure and in the bytes alive at every op;
prices come from `plain.py`. Nothing of the search's tables, ascent or programs is used.
"""

from collections.abc import Sequence
from itertools import combinations
from math import prod

import numpy as np
from numpy.typing import NDArray

from millrace.models.graph import Phase
from millrace.models.zoo.catalogue import build_training
from millrace.planner.costs import collective_duration_ns
from millrace.planner.errors import InfeasibleError
from millrace.planner.search.blocks.block_templates import fold
from millrace.planner.search.candidates import Candidate, candidates
from millrace.planner.search.request import SearchRequest
from millrace.planner.search.stages import inflight_counts
from millrace.planner.search.stages.shape import Lifetimes, lifetime_counts
from tests.planner.search.enumerated_blocks import (
    BETWEEN,
    DEFERRABLE,
    FIGURES,
    INFLIGHT,
    MICROBATCH,
    PERSISTENT,
    STEP,
    WEIGHT,
    EnumeratedBlock,
    EnumeratedBlocks,
    Ints,
    PlanLimits,
    Value,
    Variants,
    undominated,
)
from tests.planner.search.plain import sized


class Enumerator:
    """All plans of a request; variants are enumerated once per mesh, microbatch and mode."""

    def __init__(
        self, request: SearchRequest, *, limited: bool, cutoff_ns: float = float("inf")
    ) -> None:
        self.request = request
        self.cutoff = cutoff_ns
        self.limited = limited
        self.graph = build_training(request.model, request.training, request.global_batch)
        pinned = request.pins.recompute
        # Without a limit nothing is gained by running anything twice.
        every = ("none", "selective", "full") if limited else ("none",)
        self.modes = every if pinned is None else (pinned,)
        self._variants_by_key: dict[object, Variants] = {}

    def optimum(self, everything: Sequence[Candidate] | None = None) -> float:
        """Least step time in nanoseconds of any plan that fits; infinite where none does."""
        best = float("inf")
        for candidate in self.candidates() if everything is None else everything:
            best = min(best, self.of(candidate, best))
        return best if best <= self.cutoff else float("inf")

    def candidates(self) -> tuple[Candidate, ...]:
        """Shapes of plans."""
        request = self.request
        return candidates(
            request.pins,
            request.cluster,
            request.global_batch,
            len(self.graph.blocks),
            sequence=any(op.labels and " t" in op.labels for op in self.graph.ops),
        )

    def variants(self, candidate: Candidate, mode: str, template: str) -> Variants:
        pipeline = candidate.pipeline
        defers = pipeline.defers_weight_gradients
        one_stage = pipeline.stages == 1
        counts = lifetime_counts(pipeline)
        key = (candidate.axes, candidate.batch, mode, template, pipeline.positions > 1, defers,
               one_stage, pipeline.microbatches, counts)  # fmt: skip
        if key not in self._variants_by_key:
            every = {mode: self._blocks(candidate, mode) for mode in self.modes}
            for name, blocks in every.items():
                for block_template, block in blocks.items():
                    weights = figure_weights(block.width, candidate, self.limited)
                    # Other templates' blocks may run in another mode.
                    others = [
                        [mode_blocks[other] for mode_blocks in every.values()]
                        for other in blocks
                        if other != block_template
                    ]
                    block_variants = block.variants(weights, self._room(candidate, block, others))
                    self._variants_by_key[(*key[:2], name, block_template, *key[4:])] = (
                        block_variants
                    )
        return self._variants_by_key[key]

    def _blocks(self, candidate: Candidate, mode: str) -> dict[str, EnumeratedBlock]:
        blocks = EnumeratedBlocks(self.request, self.graph, mode, candidate, self.limited)
        templates = dict.fromkeys(self.graph.templates[b] for b in self.graph.blocks)
        return {template: EnumeratedBlock(blocks, template) for template in templates}

    def _room(
        self, candidate: Candidate, block: EnumeratedBlock, others: list[list[EnumeratedBlock]]
    ) -> PlanLimits:
        """Room of a block's variants: a step takes at least the average load of its stages."""
        pipeline = candidate.pipeline
        one_stage = pipeline.stages == 1
        share = (pipeline.microbatches - pipeline.ramp * (not one_stage)) / pipeline.stages
        if not one_stage and not pipeline.defers_weight_gradients:
            share += pipeline.ramp

        def time(width: int) -> NDArray[np.float64]:
            weights = np.zeros(width)
            weights[[MICROBATCH, DEFERRABLE]] = share
            weights[STEP] = 1 / pipeline.stages
            return weights

        def size(width: int) -> Ints:
            weights = np.zeros(width, np.int64)
            counts = lifetime_counts(pipeline)
            weights[PERSISTENT] = 1
            weights[[INFLIGHT, WEIGHT, BETWEEN]] = np.array(counts).min(axis=0)
            return weights

        return PlanLimits(
            time=time(block.width),
            others=sum(
                min(
                    sum(float((v.vectors @ time(o.width)).min()) for v in o.variables) for o in ways
                )
                for ways in others
            ),
            cutoff=self.cutoff,
            size=size(block.width) if self.limited else None,
            others_bytes=sum(
                min(other.least(size(other.width)) for other in ways) for ways in others
            ),
            limit_bytes=self.request.usable_bytes,
            is_one_stage=one_stage,
        )

    def of(self, candidate: Candidate, best: float) -> float:
        """Least step time of one shape's plans, if below `best`; else infinite."""
        graph = self.graph
        templates = list(dict.fromkeys(graph.templates[block] for block in graph.blocks))
        try:
            tables = {
                (mode, template): self.variants(candidate, mode, template)
                for mode in self.modes
                for template in templates
            }
        except InfeasibleError:
            return float("inf")
        handovers: list[dict[str, Value]] = [{}]
        for template in templates:
            keys = dict.fromkeys(
                k for mode in self.modes for k in tables[mode, template].by_handover
            )
            handovers = [
                {**earlier, **dict(key)}
                for earlier in handovers
                for key in keys
                if all(earlier.get(name, value) == value for name, value in key)
            ]
        for handover in handovers:
            rows: dict[str, Ints] = {}
            for template in templates:
                mode_rows = [
                    tables[mode, template].by_handover.get(
                        tuple((name, handover[name]) for name in tables[mode, template].names)
                    )
                    for mode in self.modes
                ]
                rows[template] = np.concatenate(
                    [np.zeros((0, FIGURES + 1), np.int64), *(f for f in mode_rows if f is not None)]
                )
            best = min(best, self._divided(candidate, rows, best))
        return best

    def _sent(self, candidate: Candidate) -> int:
        """Nanoseconds of a microbatch's largest tensor from chunk to chunk, in shares, and back."""
        pipeline, folded = candidate.pipeline, fold(self.graph)
        makers = {name: op for op in folded.ops for name in op.outputs}
        tensors = sized(self.graph, candidate.batch)
        size = max(
            (
                tensors[edge.tensor].size_bytes
                for edge in folded.edges
                if edge.crossing and makers[edge.tensor].phase == Phase.FORWARD
            ),
            default=0,
        )
        devices, total_ns = prod(candidate.sizes), 0
        for position in range(pipeline.positions - 1):
            home, target = (pipeline.stage_of(position + offset) * devices for offset in (0, 1))
            if home != target:
                total_ns += 2 * collective_duration_ns(
                    "send", size // devices, 2, self.request.cluster, (home, target)
                )
        return total_ns

    def _divided(self, candidate: Candidate, rows: dict[str, Ints], best: float) -> float:
        """Least step time over all divisions of blocks with these variants."""
        blocks, pipeline = self.graph.blocks, candidate.pipeline
        loads = {
            template: variants[:, MICROBATCH] + variants[:, DEFERRABLE]
            for template, variants in rows.items()
        }
        if any(not len(load) for load in loads.values()):
            return float("inf")
        least = sum(int(loads[self.graph.templates[b]].min()) for b in blocks)
        if not pipeline.defers_weight_gradients:
            ramp = (pipeline.stages - 1) / pipeline.interleave
            if (pipeline.microbatches + ramp) / pipeline.stages * least > best:
                return float("inf")
        counts = lifetime_counts(pipeline)
        sent = self._sent(candidate)
        best_ns = float("inf")
        for cuts in combinations(range(1, len(blocks)), pipeline.positions - 1):
            edges = (0, *cuts, len(blocks))
            chunks = pipeline.interleave
            stages = [np.zeros((1, STAGE_WIDTH + chunks - 1), np.int64)] * pipeline.stages
            for position in range(pipeline.positions):
                stage = pipeline.stage_of(position)
                for block in blocks[edges[position] : edges[position + 1]]:
                    block_holdings = block_rows(
                        rows[self.graph.templates[block]],
                        counts[position],
                        pipeline.stages,
                        pipeline.defers_weight_gradients,
                        np.arange(chunks) == position // pipeline.stages,
                    )
                    stages[stage] = self._joined(stages[stage], block_holdings)
            if all(len(holdings) for holdings in stages):
                best_ns = min(best_ns, self._least_step_ns(candidate, stages, sent))
        return best_ns

    def _joined(self, holdings: Ints, block_holdings: Ints) -> Ints:
        """Holdings of a stage with one block more: every pair that fits and is not beaten."""
        a, b = (indices.ravel() for indices in np.indices((len(holdings), len(block_holdings))))
        sums = holdings[a] + block_holdings[b]
        sums[:, SECTION] = np.maximum(holdings[a, SECTION], block_holdings[b, SECTION])
        if self.limited:
            fits = sums[:, BYTES] + sums[:, SECTION] <= self.request.usable_bytes
            sums = sums[fits]
            values = sums
        else:
            values = np.delete(sums, [BYTES, SECTION], axis=1)
        return sums[undominated(np.zeros(len(sums), np.int64), values)]

    def _least_step_ns(self, candidate: Candidate, stages: list[Ints], sent: int) -> float:
        """Least step time of one holding per stage (`stages.shape`)."""
        pipeline = candidate.pipeline
        rows = pipeline.interleave
        paces, loads = ([np.zeros(1) for _ in range(rows)] for _ in range(2))
        longest, spread, deferred, update = (np.zeros(1) for _ in range(4))
        for holdings in stages:
            times = holdings[:, TIMES:]
            if pipeline.schedule == "zb-v":
                times = np.column_stack([times.sum(axis=1), *[0 * times[:, 0]] * (rows - 1)])
            paces = [
                np.maximum.outer(row, times[:, number]).ravel() for number, row in enumerate(paces)
            ]
            loads = [
                np.add.outer(row, times[:, number]).ravel() for number, row in enumerate(loads)
            ]
            longest = np.maximum.outer(longest, times.sum(axis=1)).ravel()
            spread = np.add.outer(spread, times.sum(axis=1)).ravel()
            deferred = np.add.outer(deferred, holdings[:, DEFERRED] / pipeline.stages).ravel()
            update = np.maximum.outer(update, holdings[:, UPDATE]).ravel()
        pace = np.sum(paces, axis=0)
        if pipeline.schedule == "interleaved-1f1b":
            loads = np.array([load / len(stages) for load in loads])
            lag = 0.2 * (rows * loads.max(axis=0) - loads.sum(axis=0)) / (rows - 1)
            pace = pace + (longest - pace) / len(stages) + lag
            assert len(stages) < 5, "with more stages rows wait longer"
        if pipeline.schedule in ("1f1b", "gpipe") and rows == 1 and len(stages) > 1:
            pace = np.maximum(pace, (spread + sent) / len(stages))
        ramp = pipeline.ramp * (spread + deferred)
        total = (pipeline.microbatches - pipeline.ramp) * pace + ramp + update + sent
        return float(total.min())


DEFERRED, UPDATE, BYTES, SECTION, TIMES = range(5)
STAGE_WIDTH = 5  # the last of them a column per chunk of the stage


def block_rows(
    variants: Ints, counts: Lifetimes, stages: int, defers: bool, chunk: NDArray[np.bool_]
) -> Ints:
    """Variants as a stage sees them: what is deferred (below zero, in shares of a stage), times."""
    time = variants[:, MICROBATCH] + variants[:, DEFERRABLE]
    deferred = np.minimum(2 * variants[:, DEFERRABLE] * (stages - 1), time * stages) * defers
    size = variants[:, PERSISTENT] + variants[:, [INFLIGHT, WEIGHT, BETWEEN]] @ counts
    figures = -deferred, variants[:, STEP], size, variants[:, FIGURES], time[:, None] * chunk
    return np.column_stack(figures)


def figure_weights(width: int, candidate: Candidate, limited: bool) -> Ints:
    """Weights of the figures that have to be no worse: [columns, V]."""
    pipeline = candidate.pipeline
    unit = np.eye(width, dtype=np.int64)
    time = unit[MICROBATCH] + unit[DEFERRABLE]
    if pipeline.stages == 1:
        weights = [pipeline.microbatches * time + unit[STEP]]
        sizes = [unit[PERSISTENT] + inflight_counts(pipeline)[0] * unit[INFLIGHT]]
    else:
        weights = [time, unit[STEP]]
        if pipeline.defers_weight_gradients:
            weights.append(-unit[DEFERRABLE])
        sizes = [unit[PERSISTENT], unit[INFLIGHT], unit[WEIGHT], unit[BETWEEN]]
    if limited:
        weights += [*sizes, *unit[FIGURES:]]
    return np.array(weights)
