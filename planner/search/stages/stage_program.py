"""Stage program: the division as an integer program over counts of variants per position.

With counts n[k, r, v] of run r in variant v at position k, to what `shape.py` says are added::

    Σ_{k, v} n[k, r, v] = blocks of run r
    Σ_{r, v} n[k, r, v] ≥ 1                            no chunk is empty
    n[k, r + 1, v] > 0 only where Σ_{j ≤ k, v} n[j, r, v] is all of run r

Depth enters as counts only, so that 96 blocks have no more columns than six.
"""

from itertools import pairwise

import numpy as np

from millrace.planner.search.integer_program import NODE_LIMIT, IntegerProgram
from millrace.planner.search.stages.shape import (
    BlockRun,
    Division,
    Lifetimes,
    Pipeline,
    VariantFigures,
    deferred_ns,
    lifetime_counts,
    step_time_ns,
)

Figures = list[VariantFigures]


class StageProgram:
    """Integer program of a division, in arrays.

    Parameters
    ----------
    runs : tuple of BlockRun
    pipeline : Pipeline
    limits : tuple of int
        Bytes of a device of every kind.
    least_memory : bool
        Minimise the bytes over the limit of the fullest stage, instead of the step time.
    """

    def __init__(
        self,
        runs: tuple[BlockRun, ...],
        pipeline: Pipeline,
        limits: tuple[int, ...],
        least_memory: bool,
    ) -> None:
        self.runs = runs
        self.pipeline = pipeline
        self.limits = limits
        self.program = IntegerProgram()
        self.columns = [(r, v) for r, run in enumerate(runs) for v in range(len(run.variants))]
        self.figures: list[Figures] = [
            [runs[r].on(kind)[v] for r, v in self.columns] for kind in pipeline.kinds
        ]
        # Times and bytes are in shares of the whole, so that tolerances mean the same everywhere.
        self.time_unit = max(
            sum(len(run.blocks) * min(v.microbatch_ns for v in run.variants) for run in runs), 1
        )
        largest = max(f.bytes_with((1, 1, 1)) for f in self.figures[0])
        self.byte_unit = float(max(*limits, largest, 1))
        self._counts(least_memory)
        self._contiguous()
        weight = 0.0 if least_memory else 1.0
        self._paces(weight * (pipeline.microbatches - pipeline.ramp))
        update = self.program.add_columns(weight)
        over = self.program.add_columns(1.0) if least_memory else None
        inflight = lifetime_counts(pipeline)
        for stage in range(pipeline.stages):
            on_stage = [k for k in range(pipeline.positions) if pipeline.stage_of(k) == stage]
            figures = self.figures[stage]
            self._at_least(update, on_stage, [f.step_ns / self.time_unit for f in figures])
            self._memory(stage, on_stage, inflight, over)

    def _counts(self, least_memory: bool) -> None:
        """Add columns of counts, with their costs in the ramp."""
        most = float(max(len(run.blocks) for run in self.runs))
        columns = []
        for position in range(self.pipeline.positions):
            costs = [0.0] * len(self.columns)
            if not least_memory:
                stage = self.pipeline.stage_of(position)
                costs = [self._ramp_cost(figures, stage) for figures in self.figures[stage]]
            first = self.program.add_columns(costs, integer=True, highest=most)
            columns.append(first + np.arange(len(self.columns)))
        self.counts = np.array(columns)

    def _ramp_cost(self, figures: VariantFigures, stage: int) -> float:
        left = figures.microbatch_ns - deferred_ns(figures, self.pipeline)
        return self.pipeline.ramp * left / self.time_unit

    def _contiguous(self) -> None:
        """Hold every block once, no position empty, a run only after all of the one before."""
        program, positions = self.program, self.pipeline.positions
        run_of = np.array([r for r, _ in self.columns])
        for r, run in enumerate(self.runs):
            total = len(run.blocks)
            row = program.add_rows(1, total, total)
            program.enter(row, self.counts[:, run_of == r].ravel(), 1.0)
        for k in range(positions):
            program.enter(program.add_rows(1, lower=1.0), self.counts[k], 1.0)
            for r in range(len(self.runs) - 1):
                done = program.add_columns(0.0, integer=True, highest=1.0)
                before = program.add_rows(1, lower=0.0)
                program.enter(before, self.counts[: k + 1, run_of == r].ravel(), 1.0)
                program.enter(before, done, -len(self.runs[r].blocks))
                after = program.add_rows(1, upper=0.0)
                program.enter(after, self.counts[k, run_of == r + 1], 1.0)
                program.enter(after, done, -len(self.runs[r + 1].blocks))

    def _paces(self, weight: float) -> None:
        """Let the pace be no less than its terms in `stages.shape`, each a column of its own."""
        pipeline, program, stages = self.pipeline, self.program, self.pipeline.stages
        compute = [[f.microbatch_ns / self.time_unit for f in figures] for figures in self.figures]
        share, lag = pipeline.row_share, pipeline.lag
        pace = program.add_columns(weight)
        slowest, longest = program.add_columns(0.0), program.add_columns(0.0)
        pace_row = program.add_rows(1, lower=0.0)
        program.enter(pace_row, [pace, slowest, longest], [1.0, share - 1, -lag * pipeline.rows])
        at_positions: list[tuple[int, list[float]]] = []
        for k in range(pipeline.positions):
            at_positions.append((k, compute[pipeline.stage_of(k)]))
        for stage in range(stages):
            on_stage = [k for k, _ in at_positions if pipeline.stage_of(k) == stage]
            self._at_least(slowest, on_stage, compute[stage])
        for row in range(pipeline.rows if share else 0):
            level = program.add_columns(0.0)
            program.enter(pace_row, level, -share)
            mean = program.add_rows(1, lower=0.0)
            program.enter(mean, longest, 1.0)
            for k, times in at_positions[row * stages : (row + 1) * stages]:
                self._at_least(level, [k], times)
                program.enter(mean, self.counts[k], [-time / stages for time in times])
                program.enter(pace_row, self.counts[k], [lag * time / stages for time in times])
        if pipeline.in_turn:
            mean = program.add_rows(1, lower=pipeline.sent_ns / self.time_unit)
            program.enter(mean, pace, float(stages))
            for k, times in at_positions:
                program.enter(mean, self.counts[k], [-time for time in times])

    def _at_least(self, column: int, positions: list[int], values: list[float]) -> None:
        """Let a column be no less than the sum over the blocks at some positions."""
        row = self.program.add_rows(1, lower=0.0)
        self.program.enter(row, column, 1.0)
        for k in positions:
            self.program.enter(row, self.counts[k], [-value for value in values])

    def _memory(
        self, stage: int, on_stage: list[int], inflight: tuple[Lifetimes, ...], over: int | None
    ) -> None:
        """Let bytes of a stage stay within its limit, or exceed it by no more than a column."""
        program, figures, unit = self.program, self.figures[stage], self.byte_unit
        limit = self.limits[self.pipeline.kinds[stage]]
        levels = sorted({f.transient_bytes for f in figures})
        # Where only the least is minimised, it must be able to fall below the limit too.
        spare = 0 if over is None else max(self.limits)
        row = program.add_rows(1, upper=(limit - levels[0] - spare) / unit)
        for k in on_stage:
            sizes = [f.bytes_with(inflight[k]) for f in figures]
            program.enter(row, self.counts[k], [size / unit for size in sizes])
        if over is not None:
            program.enter(row, over, -1.0)
        blocks = sum(len(run.blocks) for run in self.runs)
        for below, level in pairwise(levels):
            # Taking any variant that is larger than the level below pays for this level.
            reached = program.add_columns(0.0, integer=True, highest=1.0)
            program.enter(row, reached, (level - below) / unit)
            larger = [c for c, f in enumerate(figures) if f.transient_bytes >= level]
            taken = program.add_rows(1, upper=0.0)
            program.enter(taken, self.counts[on_stage][:, larger].ravel(), 1.0)
            program.enter(taken, reached, -blocks)

    def solve(self, max_gap: float, node_limit: int = NODE_LIMIT) -> Division | None:
        """Division by the counts that are found; None where there are none."""
        answer = self.program.solve(max_gap, node_limit)
        if answer is None or not answer.has_values:
            return None
        left = [list(run.blocks) for run in self.runs]
        chunks = []
        for columns in self.counts:
            chunk: list[tuple[str, int]] = []
            for (r, variant), column in zip(self.columns, columns, strict=True):
                for _ in range(round(answer.values[column])):
                    chunk.append((left[r].pop(0), variant))
            chunks.append(tuple(chunk))
        step_ns = step_time_ns(tuple(chunks), self.runs, self.pipeline)
        return Division(
            chunks=tuple(chunks),
            step_ns=step_ns,
            memory_bytes=0,
            bound_ns=min(answer.bound * self.time_unit + self.pipeline.sent_ns, step_ns),
        )
