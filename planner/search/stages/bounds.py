"""Bounds on the step time of every division, without dividing."""

from millrace.planner.search.stages.rows import least_rows_ns
from millrace.planner.search.stages.shape import BlockRun, Pipeline, deferred_ns


def lower_bound_ns(runs: tuple[BlockRun, ...], pipeline: Pipeline) -> float:
    """Step time that no division undercuts, whatever the memory.

    Every block takes the least of each figure over its variants and the kinds of device; the
    slowest stage has at least the largest block and at least the average load, and every row of
    chunks at least what it takes for all blocks to find a place.

    Parameters
    ----------
    runs : tuple of BlockRun
        Equal blocks in the order of the model, with the figures of their variants.
    pipeline : Pipeline
        Stages, chunks, microbatches and schedule.
    """
    kinds = sorted(set(pipeline.kinds))
    load = ramp = update = longest = longest_update = 0.0
    for run in runs:
        options = [figures for kind in kinds for figures in run.on(kind)]
        time = min(figures.microbatch_ns for figures in options)
        step = min(figures.step_ns for figures in options)
        load += len(run.blocks) * time
        update += len(run.blocks) * step
        left = [figures.microbatch_ns - deferred_ns(figures, pipeline) for figures in options]
        ramp += len(run.blocks) * min(left)
        longest, longest_update = max(longest, time), max(longest_update, step)
    pace = max((load + pipeline.in_turn * pipeline.sent_ns) / pipeline.stages, longest)
    if share := pipeline.row_share:
        pace = (1 - share) * pace + share * max(pace, least_rows_ns(runs, pipeline))
    return (
        (pipeline.microbatches - pipeline.ramp) * pace
        + pipeline.ramp * ramp
        + pipeline.sent_ns
        + max(update / pipeline.stages, longest_update)
    )
