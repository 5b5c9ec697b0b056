"""Stage rows: what all cells of the joint program share: time, memory and the pace of the stages.

Below the cells and their sections, which charge their columns to these rows.
"""

import numpy as np

from millrace.models.arrays import Floats, Ints
from millrace.planner.search.blocks.cost_tables import (
    DEFERRABLE,
    INFLIGHT,
    MICROBATCH,
    PERSISTENT,
    STEP,
)
from millrace.planner.search.integer_program import IntegerProgram
from millrace.planner.search.stages import Pipeline
from millrace.planner.search.stages.shape import lifetime_counts


class StageRows:
    """Rows and columns of the stages: times are counted in `unit_ns`, bytes in shares of the limit.

    Parameters
    ----------
    program : IntegerProgram
        Still empty; rows and columns are added at once.
    pipeline : Pipeline
    unit_ns : float
    limit_bytes : int, optional
        Memory of one stage; None: memory is left out.
    cutoff_ns : float
        No plan that takes longer is wanted.
    """

    def __init__(
        self,
        program: IntegerProgram,
        pipeline: Pipeline,
        unit_ns: float,
        limit_bytes: int | None = None,
        cutoff_ns: float = np.inf,
    ) -> None:
        self.program = program
        self.pipeline = pipeline
        self.unit = unit_ns
        self.limit = limit_bytes
        self.cutoff = cutoff_ns
        self._lifetime_counts = lifetime_counts(pipeline)
        self._add_rows()

    def charge(self, position: int, columns: Ints, figures: Floats) -> Floats:
        """Let columns cost these figures [columns, F] on a chunk; return their times."""
        program, stage = self.program, self.pipeline.stage_of(position)
        time = (figures[:, MICROBATCH] + figures[:, DEFERRABLE]) / self.unit
        program.enter(self._time_rows + self.pipeline.place_of(position), columns, time)
        program.enter(self._update_rows + stage, columns, figures[:, STEP] / self.unit)
        if self.limit is not None:
            size = figures[:, PERSISTENT] + self.alive(position, 0) * figures[:, INFLIGHT]
            program.enter(self._memory_rows + stage, columns, size / self.limit)
        return time

    def alive(self, position: int, lifetime: int) -> int:
        """Microbatches of which a chunk keeps what has this lifetime."""
        return self._lifetime_counts[position][lifetime]

    def add_filling(self) -> int:
        """Add a column for what fills the ramp of the pipeline, and shortens the step by it."""
        ramp = self.pipeline.ramp
        fills = self.program.add_columns([-ramp * self.unit])
        if np.isfinite(self.cutoff):
            self.program.enter(self._cutoff_row, fills, -ramp)
        return fills

    def add_alive(self, position: int) -> int:
        """Add a row that the section of a chunk's stage is no less than; return it."""
        row = self.program.add_rows(1, lower=0.0)
        self.program.enter(row, self._section + self.pipeline.stage_of(position), 1.0)
        return row

    def _add_rows(self) -> None:
        pipeline, program, unit = self.pipeline, self.program, self.unit
        stages, rows = pipeline.stages, pipeline.rows
        paces = pipeline.microbatches - pipeline.ramp
        time = program.add_columns(np.full(stages * rows, pipeline.ramp * unit))
        pace = program.add_columns([paces * unit])
        update = program.add_columns(np.zeros(stages))
        longest = program.add_columns([unit])
        stage, place = np.arange(stages), np.arange(stages * rows)
        if np.isfinite(self.cutoff):
            self._cutoff_row = program.add_rows(1, upper=(self.cutoff - pipeline.sent_ns) / unit)
            program.enter(self._cutoff_row, time + place, pipeline.ramp)
            program.enter(self._cutoff_row, [pace, longest], [paces, 1.0])
        self._add_pace(pace, time + place.reshape(-1, stages))
        last = program.add_rows(stages, lower=0.0) + stage
        program.enter(last, longest, 1.0)
        program.enter(last, update + stage, -1.0)
        self._time_rows = program.add_rows(stages * rows, 0.0, 0.0)
        program.enter(self._time_rows + place, time + place, -1.0)
        self._update_rows = program.add_rows(stages, 0.0, 0.0)
        program.enter(self._update_rows + stage, update + stage, -1.0)
        if self.limit is not None:
            self._section = program.add_columns(np.zeros(stages))
            self._memory_rows = program.add_rows(stages, upper=1.0)
            program.enter(self._memory_rows + stage, self._section + stage, 1.0)

    def _add_pace(self, pace: int, times: Ints) -> None:
        """Let the pace be no less than its terms, each a column of its own."""
        pipeline, program = self.pipeline, self.program
        stages, share, lag = pipeline.stages, pipeline.row_share, pipeline.lag
        slowest, most = program.add_columns([0.0]), program.add_columns([0.0])
        pace_row = program.add_rows(1, lower=0.0)
        program.enter(pace_row, [pace, slowest, most], [1.0, share - 1, -lag * pipeline.rows])
        for column in times.T:
            self._at_least(slowest, column, 1.0)
        for row in times if share else ():
            level = program.add_columns([0.0])
            program.enter(pace_row, level, -share)
            program.enter(pace_row, row, lag / stages)
            for chunk_column in row:
                self._at_least(level, chunk_column, 1.0)
            self._at_least(most, row, 1 / stages)
        if pipeline.in_turn:
            mean = program.add_rows(1, lower=pipeline.sent_ns / self.unit)
            program.enter(mean, pace, stages)
            program.enter(mean, times, -1.0)

    def _at_least(self, column: int, others: Ints, share: float) -> None:
        row = self.program.add_rows(1, lower=0.0)
        self.program.enter(row, column, 1.0)
        self.program.enter(row, others, -share)
