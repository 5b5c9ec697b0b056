"""Bound program: the least step time of a candidate that the cuts of its blocks leave possible.

Beside the rows of the pipeline, figure sums F[k, r] of the blocks of run r on chunk k obey every
cut of their pool::

    prices[i] · F[k, r] ≥ least[i] · n[k, r]

No plan of the candidate takes less: its blocks obey them. The relaxation's multipliers are prices
to ask next.
"""

from dataclasses import dataclass

import numpy as np

from millrace.planner.search.decomposition.block_oracle import Pool
from millrace.planner.search.decomposition.pipeline_rows import Floats, PipelineRows, StageProblem
from millrace.planner.search.decomposition.template_tables import BLOCK_FIGURES


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Relaxation:
    """What the relaxation of a bound or plan program says.

    Attributes
    ----------
    step_ns : float
        A bound of the step time; infinite where nothing has room.
    prices : array [K, F], optional
        What one more of every figure of each chunk adds to the step.
    counts : dict
        Blocks of every chunk and run.
    """

    step_ns: float
    prices: Floats | None
    counts: dict[tuple[int, int], float]


def bound_program(
    problem: StageProblem, pools: dict[str, Pool], *, integer: bool = False
) -> PipelineRows:
    """The program of a candidate.

    Parameters
    ----------
    problem : StageProblem
    pools : dict
        By template.
    integer : bool
        Whether chunks hold whole blocks.
    """
    rows = PipelineRows(problem, integer=integer)
    cuts = {template: _scaled_cuts(pool, problem.scale) for template, pool in pools.items()}
    program = rows.program
    for (chunk, run), count in rows.counts.items():
        prices, least = cuts[problem.runs[run][0]]
        own = program.add_columns(np.zeros(BLOCK_FIGURES)) + np.arange(BLOCK_FIGURES)
        rows.add_load(chunk, own, np.eye(BLOCK_FIGURES))
        first = program.add_rows(len(least), lower=0.0) + np.arange(len(least))
        program.enter(first[:, None], own[None], prices)
        program.enter(first, count, -least)
    return rows


def _scaled_cuts(pool: Pool, scale: Floats) -> tuple[Floats, Floats]:
    """Prices [I, F] per unit of the scale, at most one, and what a block costs at least [I]."""
    prices = np.array(pool.prices) * scale
    most = prices.max(axis=1)
    return prices / most[:, None], np.array(pool.least) / most


def relaxation(rows: PipelineRows) -> Relaxation:
    """Solve the relaxation of a bound or plan program."""
    answer = rows.program.relaxed()
    if answer is None:
        return Relaxation(step_ns=float("inf"), prices=None, counts={})
    step_ns = rows.step_ns(answer.bound)
    if answer.multipliers is None:
        return Relaxation(step_ns=step_ns, prices=None, counts={})
    return Relaxation(
        step_ns=step_ns,
        prices=rows.prices(answer),
        counts={key: float(answer.values[at]) for key, at in rows.counts.items()},
    )
