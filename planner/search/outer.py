"""The outer search: every candidate shape, bounded, solved where the bound is not enough, compared.

For each candidate the block program gives one variant per template (`block_program`), the stage
program their counts (`stages`). Candidates are taken in the order of a cheap bound and left out
when it alone exceeds the best plan found.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from models.graph import Graph, with_batch
from models.labels import parse
from models.zoo.catalogue import build_training
from planner.errors import InfeasibleError
from planner.mesh import Axis, Mesh
from planner.plan import BlockChoice, Chunk, Plan, Variant
from planner.roles import axis_roles
from planner.search.block_program import Prices, Solution, solve
from planner.search.candidates import Candidate, candidates
from planner.search.durations import Durations
from planner.search.folding import Folded, fold
from planner.search.pins import SEQUENCE, AxisRules, filters, forced_ops
from planner.search.request import SearchRequest
from planner.search.stages import Division, Run, divide
from planner.search.tables import Rules, TableBuilder, Tables
from planner.search.variants import block_figures, variants

Figures = dict[str, Any]
Simulate = Callable[[Plan], Figures]
Progress = Callable[[str], None]

RERANKED = 4  # plans that are simulated before one is chosen
SHOWN = 5  # alternatives in the evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A solved candidate."""

    candidate: Candidate
    division: Division
    variants: dict[str, Variant]
    bound_ns: float


def search(
    request: SearchRequest,
    simulate: Simulate | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Return the best plan, with the evidence for it.

    Parameters
    ----------
    request : SearchRequest
    simulate : callable, optional
        Predicts the figures of a plan (`step_time_s` among them); the best few are ranked by it.
    progress : callable, optional
        Told a line of text now and then.

    Raises
    ------
    InfeasibleError
        No plan obeys the pins and fits the memory; names what binds, and by how much.
    """
    search_run = _Search(request, progress or (lambda line: None))
    return search_run.run(simulate)


class _Search:
    """One search: graphs and tables are made once per shape."""

    def __init__(self, request: SearchRequest, progress: Progress) -> None:
        self.request = request
        self.progress = progress
        self.graph = build_training(request.model, request.training, request.global_batch)
        self.durations: dict[object, Durations] = {}
        self.tables: dict[object, tuple[Folded, Tables]] = {}
        self.solutions: dict[object, tuple[Folded, Tables, Solution]] = {}

    def run(self, simulate: Simulate | None) -> Plan:
        request = self.request
        sequence = any(SEQUENCE in parse(op.labels).splittable for op in self.graph.ops)
        everything = candidates(
            request.pins,
            request.cluster,
            request.global_batch,
            len(self.graph.blocks),
            sequence,
        )
        found: list[Found] = []
        refused: list[str] = []
        for number, candidate in enumerate(everything):
            self.progress(f"candidate {number + 1} of {len(everything)}: {candidate.text}")
            try:
                found.append(self.solve(candidate))
            except InfeasibleError as error:
                refused.append(f"{candidate.text}: {error}")
        if not found:
            raise InfeasibleError(refused[0])
        found.sort(key=lambda one: one.division.step_ns)
        return self.plan(found[0])

    def solve(self, candidate: Candidate) -> Found:
        """Solve the block program of a candidate and divide its blocks over the stages."""
        folded, tables, solution = self.block(candidate)
        graph = folded.graph
        figures = block_figures(tables, graph, solution.options)
        runs: list[Run] = []
        for block in graph.blocks:
            template = graph.templates[block]
            if runs and runs[-1].template == template:
                runs[-1] = Run(
                    template=template,
                    blocks=(*runs[-1].blocks, block),
                    variants=runs[-1].variants,
                )
            else:
                runs.append(Run(template=template, blocks=(block,), variants=(figures[template],)))
        division = divide(
            tuple(runs),
            candidate.pipeline,
            self.request.limit_bytes,
            max_gap=self.request.max_gap,
        )
        return Found(
            candidate=candidate,
            division=division,
            variants=variants(tables, graph, solution),
            bound_ns=solution.bound / candidate.pipeline.stages,
        )

    def block(self, candidate: Candidate) -> tuple[Folded, Tables, Solution]:
        pipeline = candidate.pipeline
        folded, tables = self.table(candidate)
        prices = Prices(microbatch=pipeline.microbatches + pipeline.stages - 1)
        key = (candidate.axes, candidate.batch, pipeline.stages > 1, prices)
        if key not in self.solutions:
            solution = solve(tables, prices, None, max_gap=self.request.max_gap)
            self.solutions[key] = folded, tables, solution
        return self.solutions[key]

    def table(self, candidate: Candidate) -> tuple[Folded, Tables]:
        """Tables of a candidate's mesh and microbatch."""
        many = candidate.pipeline.stages > 1
        key = (candidate.axes, candidate.batch, many)
        if key not in self.tables:
            graph = with_batch(self.graph, candidate.batch)
            folded = fold(graph)
            if candidate.sizes not in self.durations:
                self.durations[candidate.sizes] = Durations(
                    self.request.cluster, candidate.sizes, self.request.cluster.devices
                )
            rules = AxisRules(
                axes=candidate.axes,
                pins=self.request.pins,
                forced=forced_ops(graph, folded.counts),
                required=self.request.required,
            )
            must, may = filters(rules)
            built = TableBuilder(
                folded,
                self.durations[candidate.sizes],
                Rules(allowed=must, otherwise=may, crossing_partial=not many),
            ).tables()
            self.tables[key] = folded, built
        return self.tables[key]

    def plan(self, found: Found) -> Plan:
        """Write a solved candidate down."""
        request, candidate = self.request, found.candidate
        graph = with_batch(self.graph, candidate.batch)
        order = {template: index for index, template in enumerate(found.variants)}
        chunks = tuple(
            Chunk(
                stage=position % candidate.pipeline.stages,
                blocks=tuple(
                    BlockChoice(block=block, variant=order[graph.templates[block]])
                    for block, _ in chunk
                ),
            )
            for position, chunk in enumerate(found.division.chunks)
        )
        plan = Plan(
            model=request.model,
            training=request.training,
            cluster=request.cluster,
            global_batch=request.global_batch,
            microbatches=candidate.pipeline.microbatches,
            mesh=Mesh(
                axes=tuple(
                    Axis(name=f"axis{index}", size=size)
                    for index, size in enumerate(candidate.sizes)
                )
            ),
            stages=candidate.pipeline.stages,
            schedule=candidate.pipeline.schedule,
            interleave=candidate.pipeline.interleave,
            variants=tuple(found.variants.values()),
            chunks=chunks,
            pins=request.pins.document,
            memory_limit_bytes=request.limit_bytes,
            seed=request.seed,
        )
        return replace(plan, mesh=named_mesh(plan, graph))


def named_mesh(plan: Plan, graph: Graph) -> Mesh:
    """The plan's mesh with every axis named after its role, and a number where one repeats."""
    names: list[str] = []
    for one in axis_roles(plan, graph):
        name = "+".join(sorted(one)) or "whole"
        taken = sum(other.rstrip("0123456789") == name for other in names)
        names.append(name + (str(taken + 1) if taken else ""))
    axes = (Axis(name=n, size=size) for n, size in zip(names, plan.mesh.sizes, strict=True))
    return Mesh(axes=tuple(axes))
