"""Division: whole blocks of known variants over the chunks of a pipeline, by OR-Tools.

Each program is solved beside a *level*, what the largest section of a stage may take: variants with
larger ones are left out, and so much less is there for all that is kept. The relaxed plan program
says how many blocks each chunk holds, in any shares; these are rounded so that all blocks are
placed in their order, and SCIP says in which variants they run. As its formula has no order of
passes, the longest path of what it finds is added, and it is asked again.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from millrace.planner.search.decomposition.block_oracle import Column, Pool
from millrace.planner.search.decomposition.bound_program import Relaxation, relaxation
from millrace.planner.search.decomposition.paths import Paths
from millrace.planner.search.decomposition.pipeline_rows import Branch, StageProblem
from millrace.planner.search.decomposition.plan_program import PlanProgram, plan_program
from millrace.planner.search.decomposition.prices import Floats
from millrace.planner.search.decomposition.template_tables import block_figures
from millrace.planner.search.integer_program import Solver
from millrace.planner.search.stages import Division, Pipeline, Run, in_order
from millrace.planner.search.stages.division import by_handover, renumbered
from millrace.planner.search.stages.shape import peak_bytes, step_time_ns

LEVELS, KEPT = 8, 2  # that are tried, of which those that cost least are kept
TRIED = 3  # block counts, of those that cost least, whose variants are made whole
GAP, NODES = 0.002, 50  # of the integer program, which has its block counts given; by eye
ORDERS = 3  # longest paths that it is asked again for
LARGEST = (
    640  # integers of a program: SCIP takes a few seconds for so many, half a minute for 1,440
)

Pools = dict[str, Pool]
BlockCounts = dict[tuple[int, int], int]
"""Blocks of every chunk and run."""
Chunks = tuple[tuple[tuple[str, int], ...], ...]


def divide_by_program(
    runs: tuple[Run, ...],
    pipeline: Pipeline,
    limit_bytes: int,
    beside_bytes: int = 0,
    overlap: float | None = None,
    paths: Paths | None = None,
) -> Division | None:
    """The best division that is found of blocks in these variants; None: none that fits.

    Parameters
    ----------
    runs : tuple of Run
        In the order of the model.
    pipeline : Pipeline
        Of one kind of device.
    limit_bytes : int
    beside_bytes : int, optional
        What every stage needs besides.
    overlap : float, optional
        As for `stages.in_order`, by which divisions are compared.
    paths : Paths, optional
        Known of the schedule's order; those that are found are added.
    """
    left = limit_bytes - beside_bytes
    paths = Paths() if paths is None else paths
    if left <= 0 or sum(len(run.blocks) for run in runs) < pipeline.positions:
        return None
    found: list[Division] = []
    for group, numbers in by_handover(runs):
        dividing = _Dividing(group, pipeline, left, paths)
        for division in dividing.divisions():
            one = in_order(division, group, pipeline, overlap)
            found.append(renumbered(one, group, numbers))
    if not found:
        return None
    best = min(found, key=lambda one: one.step_ns)
    return replace(best, memory_bytes=best.memory_bytes + beside_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """Whole blocks of every chunk, the columns that are mixed in them, and the step then."""

    step_ns: float
    problem: StageProblem
    counts: BlockCounts
    pools: Pools


class _Dividing:
    """Blocks that hand on alike, divided."""

    def __init__(
        self, runs: tuple[Run, ...], pipeline: Pipeline, limit_bytes: int, paths: Paths
    ) -> None:
        self.runs = runs
        self.paths = paths
        fastest = [min(one.microbatch_ns for one in run.variants) for run in runs]
        longest = max(range(len(runs)), key=lambda at: len(runs[at].blocks))
        self.time_ns = float(fastest[longest])
        total_ns = sum(ns * len(run.blocks) for ns, run in zip(fastest, runs, strict=True))
        self.problem = StageProblem(
            pipeline=pipeline,
            runs=tuple((run.template, len(run.blocks)) for run in runs),
            limit_bytes=limit_bytes,
            unit_ns=max(total_ns / pipeline.stages, 1.0),
        )

    def divisions(self) -> Iterator[Division]:
        """Divisions that fit, of the block counts that cost least."""
        levels = sorted(self._levels(), key=lambda level: level[0])[:KEPT]
        starts = [start for _, left, pools in levels for start in self._starts(left, pools)]
        starts.sort(key=lambda start: start.step_ns)
        for start in starts[:TRIED]:
            if (chunks := self._whole(start)) is not None:
                counted = chunks, self.runs, self.problem.pipeline
                size = max(peak_bytes(*counted))
                if size <= self.problem.limit_bytes:
                    step_ns = step_time_ns(*counted)
                    bound_ns = min(starts[0].step_ns, step_ns)
                    yield Division(
                        chunks=chunks, step_ns=step_ns, memory_bytes=size, bound_ns=bound_ns
                    )

    def _levels(self) -> Iterator[tuple[float, StageProblem, Pools]]:
        """Step, problem and variants of every level: the step of variants mixed in any shares.

        The problem has so much less memory, and variants have no larger sections.
        """
        sizes = [[one.transient_bytes for one in run.variants] for run in self.runs]
        least = max(map(min, sizes))
        every = np.unique([size for mine in sizes for size in mine if size >= least])
        places = np.unique(np.linspace(0, len(every) - 1, LEVELS).astype(int))
        for level in every[places].tolist():
            if level >= self.problem.limit_bytes:
                break
            pools: Pools = {}
            for run in self.runs:
                pool = pools.setdefault(run.template, Pool())
                for number, one in enumerate(run.variants):
                    if one.transient_bytes <= level:
                        pool.columns[Column("", (number,))] = block_figures(one)
            problem = replace(self.problem, limit_bytes=self.problem.limit_bytes - level)
            yield self._relaxed(plan_program(problem, pools)).step_ns, problem, pools

    def _starts(self, problem: StageProblem, pools: Pools) -> Iterator[_Start]:
        """Block counts by either side of the relaxation's split."""
        for branch in Branch:
            plan = plan_program(problem, pools)
            plan.rows.branch(branch, self.time_ns)
            mixed = self._relaxed(plan)
            if mixed.prices is None:
                continue
            share = np.zeros(problem.pipeline.positions)
            for (chunk, _), column in plan.rows.counts.items():
                share[chunk] += mixed.values[column]
            counts = rounded(problem, share)
            plan = plan_program(problem, pools)
            _give(plan, counts)
            mixed = relaxation(plan.rows, self.paths)
            if mixed.prices is not None:
                used = _used(plan, mixed.values, pools)
                yield _Start(step_ns=mixed.step_ns, problem=problem, counts=counts, pools=used)

    def _relaxed(self, plan: PlanProgram) -> Relaxation:
        self.paths.enter(plan.rows)
        return relaxation(plan.rows)

    def _whole(self, start: _Start) -> Chunks | None:
        """Blocks of every chunk with their variants; None where none were found that fit."""
        plan = plan_program(start.problem, start.pools, whole=True)
        _give(plan, start.counts)
        self.paths.enter(plan.rows)
        if sum(len(plan.columns[start.problem.runs[run][0]]) for _, run in start.counts) > LARGEST:
            return None
        best = None
        for _ in range(ORDERS):
            answer = plan.rows.program.solve(GAP, NODES, Solver.SCIP)
            if answer is None or not answer.found:
                break
            best = answer
            if not self.paths.add_longest(plan.rows, answer.values):
                break
        if best is None:
            return None
        held = plan.held(best.values)
        blocks = [iter(run.blocks) for run in self.runs]
        return tuple(
            tuple(
                (next(blocks[run]), column.options[0])
                for run in range(len(self.runs))
                for column, amount in held.get((chunk, run), {}).items()
                for _ in range(round(amount))
            )
            for chunk in range(self.problem.pipeline.positions)
        )


def _used(plan: PlanProgram, values: Floats, pools: Pools) -> Pools:
    """Columns that a solution of the relaxation mixes on any chunk."""
    runs = plan.rows.problem.runs
    mixed = {
        (runs[run][0], column)
        for (_, run), columns in plan.held(values).items()
        for column in columns
    }
    return {
        template: Pool(
            columns={
                column: figures
                for column, figures in pool.columns.items()
                if (template, column) in mixed
            }
        )
        for template, pool in pools.items()
    }


def _give(plan: PlanProgram, counts: BlockCounts) -> None:
    """Let chunks of a program hold so many blocks."""
    program = plan.rows.program
    for key, column in plan.rows.counts.items():
        held = float(counts.get(key, 0))
        program.enter(program.add_rows(1, held, held), column, 1.0)


def rounded(problem: StageProblem, share: Floats) -> BlockCounts:
    """Whole blocks of every run on each chunk, in the order of the model, near these shares [K]."""
    chunks, blocks = np.arange(len(share)), sum(count for _, count in problem.runs)
    ends = np.append(np.rint(np.cumsum(share))[:-1], blocks).astype(int) - chunks
    # No chunk is empty.
    ends = np.clip(np.maximum.accumulate(ends), 1, blocks - len(share) + 1) + chunks
    begins = np.append(0, ends[:-1])
    counts: BlockCounts = {}
    first = 0
    for run, (_, many) in enumerate(problem.runs):
        held = np.minimum(first + many, ends) - np.maximum(first, begins)
        counts |= {(int(chunk), run): int(held[chunk]) for chunk in np.flatnonzero(held > 0)}
        first += many
    return counts
