"""Plan program: how many blocks of which column every chunk of a candidate holds.

Beside the rows of the pipeline, with m[k, r, v] blocks of run r on chunk k in the variant of column
v of their pool::

    n[k, r] = Σ_v m[k, r, v],        F[k] ≥ Σ_r Σ_v figures[v] · m[k, r, v]

Its relaxation mixes columns, so that it may cost less than any plan; its multipliers are prices at
which better columns cost less than these do.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from millrace.models.arrays import Floats, Ints
from millrace.planner.search.decomposition.block_oracle import Column, CutPool
from millrace.planner.search.decomposition.pipeline_rows import PipelineRows, StageProblem

# Cost, in steps, of memory beyond the limit by as much as the limit: more than any saving.
OVERDRAFT = 100.0


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PlanProgram:
    """Plan program of a candidate.

    Attributes
    ----------
    rows : PipelineRows
    columns : list of dict
        Columns that no other is no worse than in every figure, by template, for every kind of
        device.
    places : dict
        Index of the first of them among the program's, for every chunk and run that may meet.
    """

    rows: PipelineRows
    columns: list[dict[str, list[Column]]]
    places: dict[tuple[int, int], int]

    def column_amounts(self, values: Floats) -> dict[tuple[int, int], dict[Column, float]]:
        """Blocks in every column by a solution, for each chunk and run."""
        blocks_held = {}
        for (chunk, run), first in self.places.items():
            problem = self.rows.problem
            columns = self.columns[problem.kind_of(chunk)][problem.runs[run][0]]
            amounts = values[first : first + len(columns)].tolist()
            blocks_held[chunk, run] = {
                column: amount
                for column, amount in zip(columns, amounts, strict=True)
                if amount > 0
            }
        return blocks_held


def plan_program(
    problem: StageProblem, pools: Sequence[dict[str, CutPool]], *, whole_blocks: bool = False
) -> PlanProgram:
    """Plan program of a candidate.

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
        {template: undominated_columns(pool) for template, pool in of_kind.items()}
        for of_kind in pools
    ]
    places: dict[tuple[int, int], int] = {}
    for (chunk, run), count in rows.counts.items():
        template, blocks = problem.runs[run]
        columns, figures = undominated[problem.kind_of(chunk)][template]
        places[chunk, run] = program.add_columns(
            np.zeros(len(columns)), integer=whole_blocks, highest=float(blocks)
        )
        amount_columns = places[chunk, run] + np.arange(len(columns))
        rows.add_load(chunk, amount_columns, figures / problem.scale[:, None])
        row = program.add_rows(1, 0.0, 0.0)
        program.enter(row, count, 1.0)
        program.enter(row, amount_columns, -1.0)
    columns_of = [
        {template: columns for template, (columns, _) in of_kind.items()} for of_kind in undominated
    ]
    return PlanProgram(rows=rows, columns=columns_of, places=places)


def undominated_columns(pool: CutPool) -> tuple[list[Column], Ints]:
    """Columns that no other is no worse than in every figure, with their figures [F, V]."""
    columns = list(pool.columns)
    every, first = np.unique(np.array(list(pool.columns.values())), axis=0, return_index=True)
    no_worse = np.all(every[:, None] <= every[None], axis=2)
    alone = np.flatnonzero(np.sum(no_worse, axis=0) == 1)  # none but itself
    figures: Ints = every[alone].T
    return [columns[column] for column in first[alone].tolist()], figures
