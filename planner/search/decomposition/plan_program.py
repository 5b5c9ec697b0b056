"""Plan program: how many blocks of which column every chunk of a candidate holds.

Beside the rows of the pipeline, with m[k, r, v] blocks of run r on chunk k in the variant of column
v of their pool::

    n[k, r] = Σ_v m[k, r, v],        F[k] ≥ Σ_r Σ_v figures[v] · m[k, r, v]

Its relaxation mixes columns, so that it may cost less than any plan; its multipliers are prices at
which better columns cost less than these do.
"""

import numpy as np

from millrace.planner.search.blocks.states import Bools, Ints
from millrace.planner.search.decomposition.block_oracle import Pool
from millrace.planner.search.decomposition.pipeline_rows import PipelineRows, StageProblem

# Of a step, what memory beyond the limit costs for all that there is: more than any saving.
OVERDRAFT = 100.0


def plan_program(
    problem: StageProblem, pools: dict[str, Pool], *, integer: bool = False
) -> PipelineRows:
    """The program of a candidate.

    Parameters
    ----------
    problem : StageProblem
    pools : dict
        By template.
    integer : bool
        Whether blocks are whole; if not, a stage may take more than its limit at a price, so that
        the relaxation has multipliers while no column has room.
    """
    rows = PipelineRows(problem, integer=integer, exact=integer)
    program, pipeline = rows.program, problem.pipeline
    if not integer:
        price = OVERDRAFT * pipeline.microbatches
        over = program.add_columns(np.full(pipeline.stages, price)) + np.arange(pipeline.stages)
        program.enter(rows.memory + np.arange(pipeline.stages), over, -1.0)
    figures = {template: column_figures(pool) for template, pool in pools.items()}
    for (chunk, run), count in rows.counts.items():
        template, blocks = problem.runs[run]
        own = figures[template]
        first = program.add_columns(np.zeros(own.shape[1]), integer=integer, highest=float(blocks))
        mine = first + np.arange(own.shape[1])
        rows.add_load(chunk, mine, own / problem.scale[:, None])
        row = program.add_rows(1, 0.0, 0.0)
        program.enter(row, count, 1.0)
        program.enter(row, mine, -1.0)
    return rows


def column_figures(pool: Pool) -> Ints:
    """Figures [F, V] of the columns that no other is no worse than in every figure."""
    figures = np.unique(np.array(list(pool.columns.values())), axis=0)
    no_worse: Bools = (figures[:, None] <= figures[None]).all(axis=2)
    return figures[no_worse.sum(axis=0) == 1].T  # none but itself
