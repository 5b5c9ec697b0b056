"""Evaluation: the best plan of one candidate shape, and what such a plan costs at least.

The block program is solved once per mesh, microbatch and price, without regard to memory. Only
where its answer does not fit are others sought, with an ever tighter memory row.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from models.graph import Graph, with_batch
from planner.errors import InfeasibleError
from planner.memory import Layout, transient_bytes
from planner.plan import Variant
from planner.search.block_program import MemoryRow, Prices
from planner.search.block_solver import Solution, cheapest, solve
from planner.search.candidates import Candidate
from planner.search.durations import Durations, core_share
from planner.search.folding import Folded, fold
from planner.search.pins import AxisRules, filters, forced_ops
from planner.search.request import MemoryLimitError, SearchRequest
from planner.search.stages import Division, Pipeline, Run, divide, inflight_counts
from planner.search.tables import Rules, TableBuilder, Tables
from planner.search.variants import block_figures, handover, variants

# Tightenings of the row for all stages together, where the stages' own limits bind.
TIGHTER = (1.0, 0.85, 0.7, 0.55, 0.4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The best plan of a candidate: variants, division and the bound of every such plan."""

    candidate: Candidate
    division: Division
    variants: tuple[Variant, ...]
    bound_ns: float


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
        self._durations: dict[object, Durations] = {}
        self._builders: dict[object, TableBuilder] = {}
        self._tables: dict[object, Tables] = {}
        self._solutions: dict[object, Solution] = {}

    def lower_bound_ns(self, candidate: Candidate) -> float:
        """Bound without solving: every op at its fastest, no boxing, stages in perfect balance."""
        choices = tuple(self._builder(candidate).choices)
        pipeline = candidate.pipeline
        return cheapest(choices, Prices(microbatch=_weight(pipeline))) / pipeline.stages

    def evaluate(self, candidate: Candidate, limit_bytes: int) -> Found:
        """Return the best plan of a candidate.

        Raises
        ------
        MemoryLimitError
            Nothing found fits the limit; holds the least bytes found.
        InfeasibleError
            An op has no legal signature, or the blocks do not divide over the stages.
        """
        solutions: list[Solution] = []
        shortfalls: list[MemoryLimitError] = []
        best: tuple[Division, list[Solution]] | None = None
        for solution in self._solutions_of(candidate, limit_bytes):
            solutions.append(solution)
            for group in self._mixtures(candidate, solutions):
                try:
                    division = self._divide(candidate, group, limit_bytes)
                except MemoryLimitError as error:
                    shortfalls.append(error)
                    continue
                if best is None or division.step_ns < best[0].step_ns:
                    best = division, group
            if best is not None:
                return self._found(candidate, *best, solutions[0].bound)
        raise min(shortfalls, key=lambda error: error.needed_bytes)

    def _found(
        self, candidate: Candidate, division: Division, chosen: list[Solution], bound: float
    ) -> Found:
        pipeline = candidate.pipeline
        # The program was solved at the weight of a pipeline without interleaving.
        share = _weight(pipeline) / (pipeline.microbatches + pipeline.stages - 1)
        tables = self.tables(candidate)
        return Found(
            candidate=candidate,
            division=division,
            variants=tuple(
                variant
                for solution in chosen
                for variant in variants(tables, self.graph, solution.options)
            ),
            bound_ns=bound * share / pipeline.stages,
        )

    def _builder(self, candidate: Candidate) -> TableBuilder:
        key = self._shape(candidate)
        if key not in self._builders:
            graph = with_batch(self.graph, candidate.batch)
            folded = fold(graph)
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

    def _solve(
        self, candidate: Candidate, prices: Prices, memory: MemoryRow | None = None
    ) -> Solution:
        key = (self._shape(candidate), prices, memory)
        if key not in self._solutions:
            self._solutions[key] = solve(
                self.tables(candidate), prices, memory, max_gap=self.request.max_gap
            )
        return self._solutions[key]

    def _solutions_of(self, candidate: Candidate, limit_bytes: int) -> Iterator[Solution]:
        """Solutions of the block program, the fastest first, then ever smaller ones."""
        pipeline = candidate.pipeline
        weight = float(pipeline.microbatches + pipeline.stages - 1)
        first = self._solve(candidate, Prices(microbatch=weight))
        yield first
        counts = inflight_counts(pipeline)
        inflight = -(-sum(counts) // len(counts))
        room = (limit_bytes - self._transient(candidate, first)) * pipeline.stages
        for share in TIGHTER:
            row = MemoryRow(inflight=inflight, limit_bytes=max(int(room * share), 1))
            try:
                yield self._solve(candidate, Prices(microbatch=weight), row)
            except MemoryLimitError as error:
                if share < 1:
                    return
                each = -(-error.needed_bytes // pipeline.stages) + limit_bytes
                each -= room // pipeline.stages
                raise MemoryLimitError(each, limit_bytes) from None

    def _mixtures(
        self, candidate: Candidate, solutions: list[Solution]
    ) -> Iterator[list[Solution]]:
        """The newest solution alone, and with all others that hand tensors over alike."""
        tables = self.tables(candidate)
        newest = solutions[-1]
        yield [newest]
        same = [
            one
            for one in solutions
            if handover(tables, self.graph, one.options)
            == handover(tables, self.graph, newest.options)
        ]
        if len(same) > 1 and candidate.pipeline.positions > 1:
            yield same

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


def _weight(pipeline: Pipeline) -> float:
    """Microbatches that a stage's time counts for: all of them, and the ramp."""
    return pipeline.microbatches + (pipeline.stages - 1) / pipeline.interleave


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
