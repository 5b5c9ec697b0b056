"""Paths: what the static orders of schedules add to their formulas, as cuts that candidates share.

The formula of a pipeline's step has no order. Where passes are unlike, or an order waits for what
is sent, the longest path through the passes of a solution is longer than the formula says; its
counts hold for every mesh of the same schedule, stages, chunks and microbatches.
"""

from dataclasses import replace

from millrace.models.arrays import Floats
from millrace.planner.search.decomposition.pipeline_rows import PipelineRows
from millrace.planner.search.stages import Pipeline
from millrace.planner.search.stages.critical_path import PathCut, path_cut

LONGER = 1e-3  # share of a step by which a path has to be longer to be kept


class PathCuts:
    """Paths of the orders of pipelines, found so far."""

    def __init__(self) -> None:
        self._cuts_by_pipeline: dict[Pipeline, list[PathCut]] = {}

    def _of(self, rows: PipelineRows) -> list[PathCut]:
        return self._cuts_by_pipeline.setdefault(replace(rows.problem.pipeline, sent_ns=0), [])

    def enter(self, rows: PipelineRows) -> None:
        """Let the step of a program take no less than any path that is known."""
        for cut in self._of(rows)[rows.paths :]:
            rows.add_path(cut)

    def add_longest(self, rows: PipelineRows, values: Floats) -> bool:
        """Add the longest path in the times of a solution, if it takes longer than that does.

        Not on several kinds of device, where divisions are compared by the formula alone.
        """
        pipeline = rows.problem.pipeline
        if pipeline.stages == 1 or len(set(pipeline.kinds)) > 1:
            return False
        times = rows.times(values)
        cut = path_cut(
            pipeline.schedule, pipeline.stages, pipeline.interleave, pipeline.microbatches, times
        )
        if cut.least_ns(times) <= rows.in_order_ns(values) * (1 + LONGER):
            return False
        self._of(rows).append(cut)
        rows.add_path(cut)
        return True
