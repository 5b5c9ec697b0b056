"""Evaluation: the best plan of one candidate shape, and what such a plan costs at least.

The block program is solved once per mesh, microbatch and price, without regard to memory. Only
where its answer does not fit are others sought, with an ever tighter memory row.
"""

from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from models.graph import Graph, with_batch
from planner.errors import InfeasibleError
from planner.memory import Layout, transient_bytes
from planner.plan import Variant
from planner.search.block_program import MemoryRow, Prices
from planner.search.block_solver import (
    BeyondCutoff,
    Solution,
    cheapest,
    frontier,
    least_bytes,
    solve,
)
from planner.search.candidates import Candidate
from planner.search.durations import Durations, core_share
from planner.search.folding import Folded, fold
from planner.search.pins import AxisRules, filters, forced_ops
from planner.search.request import MemoryLimitError, SearchRequest
from planner.search.stages import (
    DEFERRING,
    Division,
    Pipeline,
    Run,
    divide,
    inflight_counts,
)
from planner.search.tables import Rules, TableBuilder, Tables
from planner.search.variants import block_figures, handover, variants


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The best plan of a candidate: variants, division and the bound of every such plan."""

    candidate: Candidate
    division: Division
    variants: tuple[Variant, ...]
    bound_ns: float


@dataclass(frozen=True, slots=True)
class Pruned:
    """A candidate that was not solved to its end: its bound, and why."""

    candidate: Candidate
    bound_ns: float
    reason: str


class Evaluator:
    """Evaluates candidates; graphs, tables and solutions are made once and shared.

    Parameters
    ----------
    request : SearchRequest
    graph : Graph
        The training graph, of any batch.
    """

    def __init__(self, request: SearchRequest, graph: Graph) -> None:
        self.request = request
        self.graph = graph
        self._folded = fold(graph)
        self._durations: dict[object, Durations] = {}
        self._builders: dict[object, TableBuilder] = {}
        self._tables: dict[object, Tables] = {}
        self._solutions: dict[object, Solution] = {}
        self._frontiers: dict[object, tuple[Solution, ...]] = {}

    def lower_bound_ns(self, candidate: Candidate) -> float:
        """Bound without solving: every op at its fastest, no boxing, stages in perfect balance."""
        choices = tuple(self._builder(candidate).choices)
        pipeline = candidate.pipeline
        return cheapest(choices, exact_prices(pipeline)) / pipeline.stages

    def evaluate(
        self, candidate: Candidate, limit_bytes: int, best_ns: float = float("inf")
    ) -> Found | Pruned:
        """Return the best plan of a candidate, or why it is no better than `best_ns`.

        Raises
        ------
        MemoryLimitError
            Nothing found fits the limit; holds the least bytes found.
        InfeasibleError
            An op has no legal signature, or the blocks do not divide over the stages.
        """
        pipeline, unit = candidate.pipeline, self._unit(candidate)
        prices = shared_prices(pipeline)
        counts = inflight_counts(pipeline)
        needed = -(-least_bytes(self.tables(candidate), min(counts)) // pipeline.stages)
        if needed > limit_bytes:
            raise MemoryLimitError(needed, limit_bytes)
        try:
            first = self._solve(candidate, prices, best_ns / unit)
        except BeyondCutoff as beyond:
            return Pruned(candidate, beyond.bound * unit, "its lower bound leaves nothing to gain")
        try:
            return self._found(candidate, [first], [first], limit_bytes)
        except MemoryLimitError as error:
            over = error.needed_bytes
        row = MemoryRow(inflight=-(-sum(counts) // len(counts)), limit_bytes=0)
        used = float(np.array(first.figures) @ row.weights)
        room = (limit_bytes - self._transient(candidate, first)) * pipeline.stages
        # Less than now in any case: by as much as the fullest stage has to lose.
        row = replace(row, limit_bytes=max(1, int(min(room, used * limit_bytes / over))))
        try:
            if pipeline.stages == 1:
                others = [self._within(candidate, prices, row, first, best_ns / unit)]
            else:
                others = list(self._frontier(candidate, prices, row, first))
        except BeyondCutoff as beyond:
            reason = "what fits its memory is no faster than the best plan"
            return Pruned(candidate, beyond.bound * unit, reason)
        except MemoryLimitError as error:
            short = -(-(error.needed_bytes - row.limit_bytes) // pipeline.stages)
            raise MemoryLimitError(limit_bytes + short, limit_bytes) from None
        return self._best_of(candidate, [first, *others], limit_bytes)

    def _best_of(self, candidate: Candidate, solutions: list[Solution], limit_bytes: int) -> Found:
        """Divide with each solution alone, and with those that can be mixed."""
        groups = [[one] for one in solutions]
        # One stage has one memory row, so that the bound within it holds for the candidate.
        proof = solutions if candidate.pipeline.stages == 1 else solutions[:1]
        tables = self.tables(candidate)
        alike: dict[object, list[Solution]] = {}
        for one in solutions:
            alike.setdefault(handover(tables, self.graph, one.options), []).append(one)
        if candidate.pipeline.positions > 1:
            groups += [group for group in alike.values() if len(group) > 1]
        found: list[Found] = []
        short: list[MemoryLimitError] = []
        for group in groups:
            try:
                found.append(self._found(candidate, proof, group, limit_bytes))
            except MemoryLimitError as error:
                short.append(error)
        if not found:
            raise min(short, key=lambda error: error.needed_bytes)
        return min(found, key=lambda one: one.division.step_ns)

    def _unit(self, candidate: Candidate) -> float:
        """Step time per unit of a block program's cost.

        The cost counts every stage; it was solved at the prices that pipelines share.
        """
        pipeline = candidate.pipeline
        share = exact_prices(pipeline).microbatch / shared_prices(pipeline).microbatch
        return share / pipeline.stages

    def _found(
        self,
        candidate: Candidate,
        proof: list[Solution],
        group: list[Solution],
        limit_bytes: int,
    ) -> Found:
        """Divide the blocks with these solutions; the bounds of those in `proof` hold for all."""
        division = self._divide(candidate, group, limit_bytes)
        tables = self.tables(candidate)
        return Found(
            candidate=candidate,
            division=division,
            variants=tuple(
                variant
                for solution in group
                for variant in variants(tables, self.graph, solution.options)
            ),
            bound_ns=min(max(one.bound for one in proof) * self._unit(candidate), division.step_ns),
        )

    def _builder(self, candidate: Candidate) -> TableBuilder:
        key = self._shape(candidate)
        if key not in self._builders:
            # Folding looks at names only, so one folding serves every batch.
            graph = with_batch(self.graph, candidate.batch)
            folded = replace(self._folded, graph=graph)
            place = candidate.sizes, self._stretch(candidate)
            if place not in self._durations:
                self._durations[place] = Durations(self.request.cluster, *place)
            rules = AxisRules(
                axes=candidate.axes,
                pins=self.request.pins,
                forced=forced_ops(graph, folded.counts),
                required=self.request.required,
            )
            must, may = filters(rules)
            self._builders[key] = TableBuilder(
                folded,
                self._durations[place],
                Rules(
                    allowed=must,
                    otherwise=may,
                    crossing_partial=candidate.pipeline.positions == 1,
                ),
            )
        return self._builders[key]

    def _stretch(self, candidate: Candidate) -> Fraction:
        pipeline = candidate.pipeline
        ramp = Fraction(pipeline.stages - 1, pipeline.interleave)
        if pipeline.schedule in DEFERRING:
            ramp /= 3  # forward, input and weight gradients taken as equally long
        busy = pipeline.microbatches / (pipeline.microbatches + ramp)
        return core_share(self.request.cluster, self.request.cluster.devices, busy)

    def _shape(self, candidate: Candidate) -> tuple[object, ...]:
        """What the tables of a candidate depend on."""
        chunked = candidate.pipeline.positions > 1
        return candidate.axes, candidate.batch, chunked, self._stretch(candidate)

    def tables(self, candidate: Candidate) -> Tables:
        """Tables of a candidate's mesh and microbatch."""
        key = self._shape(candidate)
        if key not in self._tables:
            self._tables[key] = self._builder(candidate).tables()
        return self._tables[key]

    def _solve(self, candidate: Candidate, prices: Prices, cutoff: float) -> Solution:
        key = (self._shape(candidate), prices)
        if key not in self._solutions:
            self._solutions[key] = solve(
                self.tables(candidate),
                prices,
                max_gap=self.request.max_gap,
                cutoff=cutoff,
            )
        return self._solutions[key]

    def _within(
        self,
        candidate: Candidate,
        prices: Prices,
        row: MemoryRow,
        first: Solution,
        cutoff: float,
    ) -> Solution:
        """The best solution within a memory row; exact for one stage."""
        return solve(
            self.tables(candidate),
            prices,
            row,
            max_gap=self.request.max_gap,
            cutoff=cutoff,
            start=first,
        )

    def _frontier(
        self, candidate: Candidate, prices: Prices, row: MemoryRow, first: Solution
    ) -> tuple[Solution, ...]:
        """Ever smaller solutions, around a row for all stages together."""
        key = (self._shape(candidate), prices, row)
        if key not in self._frontiers:
            self._frontiers[key] = frontier(
                self.tables(candidate), prices, row, first, self.request.max_gap
            )
        return self._frontiers[key]

    def _divide(
        self, candidate: Candidate, solutions: list[Solution], limit_bytes: int
    ) -> Division:
        tables = self.tables(candidate)
        figures = [block_figures(tables, self.graph, one.options) for one in solutions]
        runs: list[Run] = []
        for block in self.graph.blocks:
            template = self.graph.templates[block]
            if not runs or runs[-1].template != template:
                kinds = tuple(one[template] for one in figures)
                runs.append(Run(template=template, blocks=(), variants=kinds))
            blocks = (*runs[-1].blocks, block)
            runs[-1] = Run(template=template, blocks=blocks, variants=runs[-1].variants)
        return divide(
            tuple(runs),
            candidate.pipeline,
            limit_bytes,
            max(self._transient(candidate, one) for one in solutions),
            self.request.max_gap,
        )

    def _transient(self, candidate: Candidate, solution: Solution) -> int:
        """Bytes of the largest section of the representative blocks."""
        tables = self.tables(candidate)
        folded: Folded = self._builder(candidate).folded
        layouts = {
            op.name: Layout(signature.inputs, signature.outputs)
            for choice, option in zip(tables.choices, solution.options, strict=True)
            for op, signature in zip(choice.ops, choice.options[option], strict=False)
        }
        tensors = folded.graph.tensors_by_name
        return transient_bytes(folded.ops, layouts, tensors, candidate.sizes)


def exact_prices(pipeline: Pipeline) -> Prices:
    """Prices at which a block program's optimum, over the stages, bounds the step time.

    A stage's time counts for every microbatch and for the ramp: `stages.divide`'s objective, with
    all stages in balance. Where weight gradients fill the ramp they count as much less.
    """
    ramp = (pipeline.stages - 1) / pipeline.interleave
    weight = pipeline.microbatches + ramp
    if pipeline.schedule not in DEFERRING:
        return Prices(microbatch=weight)
    assert pipeline.microbatches >= pipeline.stages, "candidates see to it"
    return Prices(microbatch=weight, deferrable=weight - 2 * ramp)


def shared_prices(pipeline: Pipeline) -> Prices:
    """Prices at which the program is solved: one solution serves however many chunks."""
    return exact_prices(replace(pipeline, interleave=1))


def unfit(found: list[tuple[Candidate, InfeasibleError]]) -> InfeasibleError:
    """Join the reasons of all candidates: the nearest to fitting, or the first refusal."""
    close = [(c, e) for c, e in found if isinstance(e, MemoryLimitError)]
    if not close:
        candidate, error = found[0]
        return InfeasibleError(f"{candidate.text}: {error}")
    candidate, nearest = min(close, key=lambda pair: pair[1].needed_bytes)
    return InfeasibleError(
        f"no plan fits the memory. Nearest: {candidate.text}; {nearest}. Raise --memory-limit, use "
        f"more devices, or free pins that keep it from splitting further"
    )
