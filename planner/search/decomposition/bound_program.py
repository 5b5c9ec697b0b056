"""Bound program: the least step time of a candidate that the cuts of its blocks leave possible.

Beside the rows of the pipeline, figure sums F[k, r] of the blocks of run r on chunk k obey every
cut of their pool::

    prices[i] · F[k, r] ≥ least[i] · n[k, r]

No plan of the candidate takes less: its blocks obey them. The relaxation's multipliers are prices
to ask next.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from millrace.models.arrays import Floats, Ints
from millrace.planner.search.decomposition.block_oracle import CutPool
from millrace.planner.search.decomposition.paths import PathCuts
from millrace.planner.search.decomposition.pipeline_rows import Branch, PipelineRows, StageProblem
from millrace.planner.search.decomposition.template_tables import BLOCK_FIGURES

# Solvers lose their precision with coefficients below this, beside others of one.
NEGLIGIBLE = 1e-9
# A cut binds where its slack is below this share of what it asks for, by solvers' tolerances;
# so many more cuts are kept, as they may bind next. Chunks with fewer blocks count as if they had
# so many.
BINDING, SPARE, FEW = 1e-6, 2, 0.2
PATHS = 1  # paths that are added to a program at a time, at most


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Relaxation:
    """Solution of the relaxation of a bound or plan program.

    Attributes
    ----------
    step_ns : float
        A bound of the step time; infinite where nothing has room.
    prices : array [K, F], optional
        Nanoseconds that one more of each figure of each chunk adds to the step.
    memory_prices : array [S], optional
        Nanoseconds that one more byte of each stage's limit takes off the step.
    values : array
        Value of every column; none where the solver gave up.
    """

    step_ns: float
    prices: Floats | None
    memory_prices: Floats | None
    values: Floats


Cuts = dict[tuple[int, int], Ints]
"""Indices of the pool's cuts that are rows of a program, per chunk and run."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BoundProgram:
    """Bound program of a candidate.

    Attributes
    ----------
    rows : PipelineRows
    sums : dict
        First of the columns of F[k, r], for every chunk and run that may meet.
    cuts : list of dict
        Prices [I, F] per unit of the scale and least cost of a block [I], by template, for every
        kind of device.
    """

    rows: PipelineRows
    sums: dict[tuple[int, int], int]
    cuts: list[dict[str, tuple[Floats, Floats]]]

    def tight(self, values: Floats) -> Cuts:
        """Cuts that bind at a solution, and those that are next to binding."""
        tight_cuts: Cuts = {}
        for (chunk, run), first in self.sums.items():
            problem = self.rows.problem
            prices, least = self.cuts[problem.kind_of(chunk)][problem.runs[run][0]]
            blocks = max(float(values[self.rows.counts[chunk, run]]), FEW)
            slack = prices @ values[first : first + BLOCK_FIGURES] / blocks - least
            share = slack / np.maximum(least, 1e-12)
            many = int((share < BINDING).sum()) + SPARE
            tight_cuts[chunk, run] = np.sort(np.argsort(share, kind="stable")[:many])
        return tight_cuts


def bound_program(
    problem: StageProblem,
    pools: Sequence[dict[str, CutPool]],
    kept_cuts: Cuts | None = None,
    newest: Sequence[int] = (),
) -> BoundProgram:
    """Bound program of a candidate.

    Parameters
    ----------
    problem : StageProblem
    pools : sequence of dict
        By template, for every kind of device.
    kept_cuts : dict, optional
        The only cuts, beside the newest, that are rows; the bound is lower, at most.
    newest : sequence of int, optional
        How many cuts of the pools of every kind are newer.
    """
    rows = PipelineRows(problem)
    cuts = [
        {template: _scaled_cuts(pool, problem.scale) for template, pool in of_kind.items()}
        for of_kind in pools
    ]
    program = rows.program
    sums: dict[tuple[int, int], int] = {}
    for (chunk, run), count in rows.counts.items():
        kind = problem.kind_of(chunk)
        prices, least = cuts[kind][problem.runs[run][0]]
        if kept_cuts is not None:
            new = np.arange(max(len(least) - newest[kind], 0), len(least))
            taken = np.union1d(kept_cuts[chunk, run], new)
            prices, least = prices[taken], least[taken]
        sums[chunk, run] = program.add_columns(np.zeros(BLOCK_FIGURES))
        sum_columns = sums[chunk, run] + np.arange(BLOCK_FIGURES)
        rows.add_load(chunk, sum_columns, np.eye(BLOCK_FIGURES))
        first = program.add_rows(len(least), lower=0.0) + np.arange(len(least))
        program.enter(first[:, None], sum_columns[None], prices)
        program.enter(first, count, -least)
    return BoundProgram(rows=rows, sums=sums, cuts=cuts)


def relaxation(rows: PipelineRows, paths: PathCuts | None = None) -> Relaxation:
    """Relaxation of a bound or plan program, with paths of its order where given."""
    if paths is None:
        return _relaxed(rows)
    paths.enter(rows)
    solution = _relaxed(rows, again=True)
    for _ in range(PATHS):
        if solution.prices is None or not paths.add_longest(rows, solution.values):
            break
        solution = _relaxed(rows, again=True)
    return solution


def _relaxed(rows: PipelineRows, *, again: bool = False) -> Relaxation:
    answer = rows.program.relaxed(again=again)
    if answer is None:
        return Relaxation(step_ns=float("inf"), prices=None, memory_prices=None, values=np.zeros(0))
    has_multipliers = answer.multipliers is not None
    return Relaxation(
        step_ns=rows.step_ns(answer.bound),
        prices=rows.prices(answer) if has_multipliers else None,
        memory_prices=rows.memory_prices(answer) if has_multipliers else None,
        values=answer.values,
    )


def lowest_branch(
    rows: PipelineRows, time_ns: float, paths: PathCuts | None = None
) -> tuple[Branch, Relaxation]:
    """Side of `PipelineRows.branch` on which a program costs less: a bound of all plans.

    Parameters
    ----------
    rows : PipelineRows
        Of a bound or plan program; left as it was.
    time_ns : float
        Least time of a block of the longest run for a microbatch.
    paths : PathCuts, optional
        Known of the candidate's order; those that are found are added.
    """
    sides = []
    for branch in Branch:
        added = rows.branch(branch, time_ns)
        sides.append((branch, relaxation(rows, paths)))
        rows.program.limit(added)
    return min(sides, key=lambda side: side[1].step_ns)


def _scaled_cuts(pool: CutPool, scale: Floats) -> tuple[Floats, Floats]:
    """Prices [I, F] per unit of the scale, at most one, and least costs of a block [I]."""
    prices = np.array(pool.prices) * scale
    prices /= prices.max(axis=1, keepdims=True)
    least = np.array(pool.least) / (np.array(pool.prices) * scale).max(axis=1)
    # Coefficients that are next to nothing are raised, so that the cut remains true.
    return np.where(prices > 0, np.maximum(prices, NEGLIGIBLE), 0.0), least
