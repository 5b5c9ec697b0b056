"""Plan program: how many blocks of which column every chunk of a candidate holds.

Beside the rows of the pipeline, with m[k, r, v] blocks of run r on chunk k in the variant of column
v of their pool::

    n[k, r] = Σ_v m[k, r, v],        F[k] ≥ Σ_r Σ_v figures[v] · m[k, r, v]

Its relaxation mixes columns, so that it may cost less than any plan; its multipliers are prices at
which better columns cost less than these do.
"""

from collections.abc import Sequence

import numpy as np

from millrace.models.arrays import Ints
from millrace.planner.search.decomposition.block_oracle import CutPool
from millrace.planner.search.decomposition.pipeline_rows import PipelineRows, StageProblem

# Cost, in steps, of memory beyond the limit by as much as the limit: more than any saving.
OVERDRAFT = 100.0


def plan_program(
    problem: StageProblem, pools: Sequence[dict[str, CutPool]], *, whole_blocks: bool = False
) -> PipelineRows:
    """Rows of a candidate's plan program.

    Parameters
    ----------
    problem : StageProblem
    pools : sequence of dict
        By template, for every kind of device.
    whole_blocks : bool
        True if blocks are whole; if not, a stage may take more than its limit at a price, so that
        the relaxation has multipliers while no column has room.
    """
    rows = PipelineRows(problem, whole_blocks=whole_blocks)
    program, pipeline = rows.program, problem.pipeline
    if not whole_blocks:
        price = OVERDRAFT * pipeline.microbatches
        over = program.add_columns(np.full(pipeline.stages, price)) + np.arange(pipeline.stages)
        for stage, moments in enumerate(rows.memory):
            program.enter(moments, over[stage], -1.0)
    undominated = [
        {template: undominated_figures(pool) for template, pool in of_kind.items()}
        for of_kind in pools
    ]
    for (chunk, run), count in rows.counts.items():
        template, blocks = problem.runs[run]
        figures = undominated[problem.kind_of(chunk)][template]
        columns = figures.shape[1]
        first = program.add_columns(np.zeros(columns), integer=whole_blocks, highest=float(blocks))
        amount_columns = first + np.arange(columns)
        rows.add_load(chunk, amount_columns, figures / problem.scale[:, None])
        row = program.add_rows(1, 0.0, 0.0)
        program.enter(row, count, 1.0)
        program.enter(row, amount_columns, -1.0)
    return rows


def undominated_figures(pool: CutPool) -> Ints:
    """Figures [F, V] of the columns that no other is no worse than in every figure."""
    every = np.unique(np.array(list(pool.columns.values())), axis=0)
    no_worse = np.all(every[:, None] <= every[None], axis=2)
    alone = np.flatnonzero(np.sum(no_worse, axis=0) == 1)  # none but itself
    figures: Ints = every[alone].T
    return figures
