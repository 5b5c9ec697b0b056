"""Bound program: the least step time of a candidate that the cuts of its blocks leave possible.

Beside the rows of the pipeline, figure sums F[k, r] of the blocks of run r on chunk k obey every
cut of their pool::

    prices[i] · F[k, r] ≥ least[i] · n[k, r]

No plan of the candidate takes less: its blocks obey them. The relaxation's multipliers are prices
to ask next.
"""

from dataclasses import dataclass

import numpy as np

from millrace.planner.search.blocks.states import Ints
from millrace.planner.search.decomposition.block_oracle import Pool
from millrace.planner.search.decomposition.paths import Paths
from millrace.planner.search.decomposition.pipeline_rows import Branch, PipelineRows, StageProblem
from millrace.planner.search.decomposition.prices import Floats
from millrace.planner.search.decomposition.template_tables import BLOCK_FIGURES

# A coefficient, beside others of one, below which solvers lose their precision.
NEGLIGIBLE = 1e-9
# Of what a cut asks for, what may be above it where it binds, by solvers' tolerances; and so many
# more cuts are kept, for what binds next. Chunks with fewer blocks are looked at as if they had so
# many.
BINDING, SPARE, FEW = 1e-6, 2, 0.2
PATHS = 1  # that are looked for at a time


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Relaxation:
    """What the relaxation of a bound or plan program says.

    Attributes
    ----------
    step_ns : float
        A bound of the step time; infinite where nothing has room.
    prices : array [K, F], optional
        What one more of every figure of each chunk adds to the step.
    memory_prices : array [S], optional
        Nanoseconds that one more byte of each stage's limit takes off the step.
    values : array
        Of all columns; none where the solver gave up.
    """

    step_ns: float
    prices: Floats | None
    memory_prices: Floats | None
    values: Floats


Cuts = dict[tuple[int, int], Ints]
"""Per chunk and run, which of its pool's cuts are rows of a program."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BoundProgram:
    """The program of a candidate.

    Attributes
    ----------
    rows : PipelineRows
    sums : dict
        First of the columns of F[k, r], for every chunk and run that may meet.
    cuts : dict
        By template, prices [I, F] per unit of the scale and the least of a block [I].
    """

    rows: PipelineRows
    sums: dict[tuple[int, int], int]
    cuts: dict[str, tuple[Floats, Floats]]

    def tight(self, values: Floats) -> Cuts:
        """Cuts that bind at a solution, and those that are next to binding."""
        found: Cuts = {}
        for (chunk, run), first in self.sums.items():
            prices, least = self.cuts[self.rows.problem.runs[run][0]]
            blocks = max(float(values[self.rows.counts[chunk, run]]), FEW)
            slack = prices @ values[first : first + BLOCK_FIGURES] / blocks - least
            share = slack / np.maximum(least, 1e-12)
            many = int((share < BINDING).sum()) + SPARE
            found[chunk, run] = np.sort(np.argsort(share, kind="stable")[:many])
        return found


def bound_program(
    problem: StageProblem, pools: dict[str, Pool], kept: Cuts | None = None, newest: int = 0
) -> BoundProgram:
    """The program of a candidate.

    Parameters
    ----------
    problem : StageProblem
    pools : dict
        By template.
    kept : dict, optional
        Of all cuts but the newest only these are rows; the bound is lower, at most.
    newest : int, optional
        How many of every pool's cuts are newer.
    """
    rows = PipelineRows(problem)
    cuts = {template: _scaled_cuts(pool, problem.scale) for template, pool in pools.items()}
    program = rows.program
    sums: dict[tuple[int, int], int] = {}
    for (chunk, run), count in rows.counts.items():
        prices, least = cuts[problem.runs[run][0]]
        if kept is not None:
            new = np.arange(max(len(least) - newest, 0), len(least))
            taken = np.union1d(kept[chunk, run], new)
            prices, least = prices[taken], least[taken]
        sums[chunk, run] = program.add_columns(np.zeros(BLOCK_FIGURES))
        own = sums[chunk, run] + np.arange(BLOCK_FIGURES)
        rows.add_load(chunk, own, np.eye(BLOCK_FIGURES))
        first = program.add_rows(len(least), lower=0.0) + np.arange(len(least))
        program.enter(first[:, None], own[None], prices)
        program.enter(first, count, -least)
    return BoundProgram(rows=rows, sums=sums, cuts=cuts)


def relaxation(rows: PipelineRows, paths: Paths | None = None) -> Relaxation:
    """Solve the relaxation of a bound or plan program, with paths of its order where given."""
    if paths is None:
        return _relaxed(rows)
    paths.enter(rows)
    found = _relaxed(rows, again=True)
    for _ in range(PATHS):
        if found.prices is None or not paths.add_longest(rows, found.values):
            break
        found = _relaxed(rows, again=True)
    return found


def _relaxed(rows: PipelineRows, *, again: bool = False) -> Relaxation:
    answer = rows.program.relaxed(again=again)
    if answer is None:
        return Relaxation(step_ns=float("inf"), prices=None, memory_prices=None, values=np.zeros(0))
    known = answer.multipliers is not None
    return Relaxation(
        step_ns=rows.step_ns(answer.bound),
        prices=rows.prices(answer) if known else None,
        memory_prices=rows.memory_prices(answer) if known else None,
        values=answer.values,
    )


def lowest_branch(
    rows: PipelineRows, time_ns: float, paths: Paths | None = None
) -> tuple[Branch, Relaxation]:
    """The side of `PipelineRows.branch` on which a program costs less: a bound of all plans.

    Parameters
    ----------
    rows : PipelineRows
        Of a bound or plan program; left as it was.
    time_ns : float
        What a block of the longest run takes for a microbatch at least.
    paths : Paths, optional
        Known of the candidate's order; those that are found are added.
    """
    found = []
    for branch in Branch:
        added = rows.branch(branch, time_ns)
        found.append((branch, relaxation(rows, paths)))
        rows.program.limit(added)
    return min(found, key=lambda one: one[1].step_ns)


def _scaled_cuts(pool: Pool, scale: Floats) -> tuple[Floats, Floats]:
    """Prices [I, F] per unit of the scale, at most one, and what a block costs at least [I]."""
    prices = np.array(pool.prices) * scale
    prices /= prices.max(axis=1, keepdims=True)
    least = np.array(pool.least) / (np.array(pool.prices) * scale).max(axis=1)
    # Coefficients that are next to nothing are made more of, so that what they bound stays true.
    return np.where(prices > 0, np.maximum(prices, NEGLIGIBLE), 0.0), least
