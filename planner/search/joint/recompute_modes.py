"""Modes: one candidate's block programs solved to the request's gap, all blocks in one mode."""

from collections.abc import Sequence

from millrace.planner.search.asking import shared_prices
from millrace.planner.search.blocks.block_milp import MemoryRow
from millrace.planner.search.blocks.solver import BeyondCutoff, Solution
from millrace.planner.search.programs import Programs, Shape
from millrace.planner.search.request import MemoryLimitError
from millrace.planner.search.stages import Pipeline, inflight_counts


def by_mode(
    programs: Programs,
    shape: Shape,
    pipeline: Pipeline,
    modes: Sequence[str],
    memory_bytes: int,
) -> tuple[list[tuple[str, Solution]], float]:
    """Solutions in every mode, with memory and without, and the bound of all plans.

    The bound is in the units of the program's cost, and holds for plans whose blocks run in
    several modes as well: a memory row bounds those only where there is a single mode.

    Parameters
    ----------
    programs : Programs
        Solves them, to the request's gap.
    shape : Shape
        Shape of the candidate's block program.
    pipeline : Pipeline
        Says the prices, as if each stage had one chunk, and the microbatches in flight.
    modes : sequence of str
        Some of none, selective and full: recomputation of all blocks.
    memory_bytes : int
        Memory of one device of every stage together.

    Returns
    -------
    solutions : list of (str, Solution)
        In each mode the one without a limit, then the one within memory, where there is one.
    bound : float
        Infinite where there is one stage, whose memory no mode fits.

    Raises
    ------
    InfeasibleError
        No signatures fit together on the mesh.
    """
    counts = inflight_counts(pipeline)
    row = MemoryRow(inflight=-(-sum(counts) // len(counts)), limit_bytes=memory_bytes)
    solutions: list[tuple[str, Solution]] = []
    bounds: list[float] = []
    alone = pipeline.stages == 1 and len(modes) == 1
    short = 0
    for mode in modes:
        try:
            free = programs.solve_one(shape, mode, shared_prices(pipeline), None)
        except BeyondCutoff as beyond:
            bounds.append(beyond.bound)
            continue
        solutions.append((mode, free))
        bounds.append(free.bound)
        try:
            within = programs.solve_one(shape, mode, shared_prices(pipeline), row)
        except MemoryLimitError:
            short += 1
            continue
        solutions.append((mode, within))
        if alone:
            bounds[-1] = within.bound
    nowhere = pipeline.stages == 1 and short == len(modes)
    return solutions, float("inf") if nowhere else min(bounds)
