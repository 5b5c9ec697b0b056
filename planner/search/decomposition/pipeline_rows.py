"""Pipeline rows: how blocks may lie on chunks, what a step takes then, and the room of stages.

Shared by the bound program and the plan program, which say what the blocks of a chunk come to. With
n[k, r] blocks of run r on chunk k, figure sums F[k, f] of a chunk, and T the sum of those of its
passes::

    minimise    (microbatches - ramp) · pace + ramp · Σ_k left[k] + waits + update
    subject to  Σ_k n[k, r] = blocks of r,   Σ_r n[k, r] ≥ 1
                left[k] ≥ T[k] - 2 (1 - 1 / stages) F[k, deferrable]    where gradients are deferred
                pace ≥ what `stages.shape` says of T, row by row
                update ≥ Σ_{k on s} F[k, step]
                Σ_{k on s} F[k, persistent] + Σ_gaps alive[m, k, gap] · F[k, gap] ≤ limit
                Σ_k Σ_passes count[k, pass] · F[k, pass] + hops ≤ cost without update + waits

with memory at each of the moments m at which stage s may keep most, by the schedule's record, and
the last for paths of its order that are given (`add_path`), with what they wait as a further cost.
Runs follow one another: so much of a run lies on the first chunks, in shares, as of the next at
least. Times are in `unit_ns`, bytes in shares of the limit, so that all is of the order of one.

Shapes: K chunks in the order of the model, R runs of equal blocks, F block figures, S stages.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import ArrayLike

from millrace.models.arrays import Floats, Ints
from millrace.planner.search.blocks.cost_tables import (
    DEFERRABLE,
    INFLIGHT,
    PERSISTENT,
    STEP,
)
from millrace.planner.search.decomposition.template_tables import (
    BETWEEN,
    BLOCK_FIGURES,
    GAPS,
    PASSES,
)
from millrace.planner.search.integer_program import IntegerProgram, IntegerSolution
from millrace.planner.search.stages import Pipeline
from millrace.planner.search.stages.critical_path import PassTimes, PathCut
from millrace.planner.search.stages.shape import fullest_moments, lifetime_counts


@dataclass(frozen=True, slots=True, kw_only=True)
class StageProblem:
    """Runs of blocks to divide over a pipeline, and the room that every stage has.

    Attributes
    ----------
    pipeline : Pipeline
    runs : tuple of (str, int)
        Templates in the order of the model, with how many blocks of each follow one another.
    limits : tuple of int
        Bytes of a stage of every kind of device.
    unit_ns : float
        About the time of a stage for one microbatch.
    """

    pipeline: Pipeline
    runs: tuple[tuple[str, int], ...]
    limits: tuple[int, ...]
    unit_ns: float

    @property
    def limit_bytes(self) -> int:
        """Bytes of the largest stage, in shares of which bytes are counted."""
        return max(self.limits)

    @property
    def scale(self) -> Floats:
        """Units [F] that figures are counted in: `unit_ns` for times, the limit for bytes."""
        units = np.full(BLOCK_FIGURES, self.unit_ns)
        units[[PERSISTENT, INFLIGHT, BETWEEN]] = self.limit_bytes
        return units

    @property
    def alive(self) -> Ints:
        """Microbatches that every chunk keeps across each gap when its stage keeps most [K, 2]."""
        first, _, third = np.array(lifetime_counts(self.pipeline)).T
        return np.stack([first, third], axis=1)

    @property
    def moments(self) -> list[Ints]:
        """Microbatches alive in each gap, at every stage's fullest moments [moments, chunks, 2].

        What is kept from a forward to gradients of weights is alive in both gaps.
        """
        return [counts[:, :, [0, 2]] for counts in fullest_moments(self.pipeline)]

    def kind_of(self, chunk: int) -> int:
        """Kind of device that a chunk lies on."""
        return self.pipeline.kinds[self.pipeline.stage_of(chunk)]

    @property
    def even_blocks(self) -> tuple[int, int]:
        """Longest run, and the fewest of its blocks that the fullest place can have."""
        run = max(range(len(self.runs)), key=lambda run: self.runs[run][1])
        places = self.pipeline.stages * self.pipeline.rows
        return run, -(-self.runs[run][1] // places)

    def open_chunks(self, run: int) -> range:
        """Chunks that blocks of a run may lie on, none left empty."""
        blocks = [count for _, count in self.runs]
        before, total, chunks = sum(blocks[:run]), sum(blocks), self.pipeline.positions
        first = max(0, before - (total - chunks))
        return range(first, min(chunks, before + blocks[run]))


class Branch(Enum):
    """Sides of a split of all plans: places hold equal blocks as evenly as can be, or do not."""

    EVEN = "even"
    UNEVEN = "uneven"


class PipelineRows:
    """A program with the rows of the module's docstring.

    Parameters
    ----------
    problem : StageProblem
    whole_blocks : bool
        True if chunks hold whole blocks, and figure sums are what is entered with `add_load`. If
        not, sums may be more: prices are never below zero then, but where shorter rows of chunks
        wait for longer ones, what is more may cost less.

    Attributes
    ----------
    program : IntegerProgram
    counts : dict
        Column of n for every chunk and run that may meet.
    figures, links : arrays [K, F]
        Columns of the figure sums, and rows that hold them beside what is entered.
    paths : int
        Number of paths that were given.
    levels : list of int
        Columns of the longest stage's time, or of the longest chunk's in every row of chunks.
    """

    def __init__(self, problem: StageProblem, *, whole_blocks: bool = False) -> None:
        self.problem = problem
        self.program = IntegerProgram()
        pipeline = problem.pipeline
        chunks = pipeline.positions
        self.counts: dict[tuple[int, int], int] = {}
        self.paths = 0
        self._add_counts(whole_blocks)
        self.figures = self.program.add_columns(np.zeros(chunks * BLOCK_FIGURES)) + np.arange(
            chunks * BLOCK_FIGURES
        ).reshape(chunks, BLOCK_FIGURES)
        most = 0.0 if whole_blocks else np.inf
        first = self.program.add_rows(self.figures.size, lower=0.0, upper=most)
        self.links = first + np.arange(self.figures.size).reshape(self.figures.shape)
        self.program.enter(self.links, self.figures, 1.0)
        self.stages = np.array([pipeline.stage_of(k) for k in range(chunks)])
        self._add_pace()
        self._add_ramp()
        self.waits = self.program.add_columns(1.0)
        self._add_update()
        self._add_memory()

    def add_load(self, chunk: int, columns: ArrayLike, figures: Floats) -> None:
        """Let columns [C] add so much [F, C] to the figures of a chunk, in the problem's scale."""
        self.program.enter(self.links[chunk][:, None], np.asarray(columns)[None], -figures)

    def add_path(self, cut: PathCut) -> None:
        """Let the step take no less than a path of its schedule's order."""
        pipeline, times = self.problem.pipeline, self.times()
        self.paths += 1
        share = 1 / max(int(cut.counts.max()), 1)  # so that all is of the order of one
        row = self.program.add_rows(1, share * self._waited(float(cut.hops @ times.hops)))
        self.program.enter(row, self.figures[:, PASSES].T, -share * cut.counts)
        self.program.enter(row, self.pace, share * (pipeline.microbatches - pipeline.ramp))
        self.program.enter(row, self.left, share * pipeline.ramp)
        self.program.enter(row, self.waits, share)

    def times(self, values: Floats | None = None) -> PassTimes:
        """Times of every chunk's passes at a solution (of none: zero), and of what is sent."""
        pipeline = self.problem.pipeline
        nothing = np.zeros(pipeline.positions)
        crossing = self.stages[:-1] != self.stages[1:]
        each_ns = pipeline.sent_ns / 2 / max(int(crossing.sum()), 1)
        passes = nothing[None] if values is None else values[self.figures[:, PASSES]].T
        return PassTimes(
            passes=passes * self.problem.unit_ns,
            hops=np.append(crossing * each_ns, 0.0),
            begins=nothing,
            ends=nothing,
        )

    def in_order_ns(self, values: Floats) -> float:
        """Nanoseconds of a solution until its last gradient, without the update."""
        pipeline = self.problem.pipeline
        cost = (pipeline.microbatches - pipeline.ramp) * values[self.pace]
        cost += pipeline.ramp * values[self.left].sum() + values[self.waits]
        return float(cost) * self.problem.unit_ns + pipeline.sent_ns

    def _waited(self, hops_ns: float) -> float:
        """Time of a path's transfers beyond those of every step, in the problem's unit."""
        return (hops_ns - self.problem.pipeline.sent_ns) / self.problem.unit_ns

    def step_ns(self, cost: float) -> float:
        """Step time of a solution, or a bound of it, by the program's cost."""
        return cost * self.problem.unit_ns + self.problem.pipeline.sent_ns

    def prices(self, answer: IntegerSolution) -> Floats:
        """Nanoseconds [K, F] that one more of each figure of each chunk adds to the step."""
        assert answer.multipliers is not None, "a relaxation has them"
        multipliers = np.maximum(answer.multipliers[self.links], 0.0)
        return multipliers * (self.problem.unit_ns / self.problem.scale)

    def memory_prices(self, answer: IntegerSolution) -> Floats:
        """Nanoseconds [S] that one more byte of each stage's limit takes off the step."""
        multipliers = answer.multipliers
        assert multipliers is not None, "a relaxation has them"
        stage_multipliers = np.array([-multipliers[moments].sum() for moments in self.memory])
        return np.asarray(
            np.maximum(stage_multipliers, 0.0) * self.problem.unit_ns / self.problem.limit_bytes
        )

    def branch(self, branch: Branch, time_ns: float) -> list[int]:
        """Take one side of a split of all plans by how many blocks of the longest run a place has.

        Places are stages, or chunks where rows wait for their longest. Evenly none has more than
        the fewest that can be the most; unevenly one has, and takes as long. On either side the
        longest of all rows have an even share of the blocks at least.

        Parameters
        ----------
        branch : Branch
        time_ns : float
            Least time of a block of the run for a microbatch.
        """
        problem = self.problem
        run, most = problem.even_blocks
        blocks, pipeline = problem.runs[run][1], problem.pipeline
        longest = -(-blocks // pipeline.stages)
        added = []
        if branch is Branch.EVEN:
            added += self._hold_at_most(run, most)
        else:
            # Every row has a block of the run, unless others fill one.
            rest = sum(count for _, count in problem.runs) - blocks
            others = pipeline.rows - 1 if pipeline.stages > rest else 0
            longest = max(longest, most + 1 + others)
        last = longest * time_ns / problem.unit_ns
        return [*added, self._row(self.levels, [1.0] * len(self.levels), last)]

    def _hold_at_most(self, run: int, most: int) -> list[int]:
        """Let no place have more blocks of a run."""
        places: dict[int, list[int]] = {}
        for (chunk, of), column in self.counts.items():
            if of == run:
                place = self.problem.pipeline.place_of(chunk)
                places.setdefault(place, []).append(column)
        return [
            self._row(columns, [1.0] * len(columns), -np.inf, float(most))
            for columns in places.values()
        ]

    def _row(
        self,
        columns: Sequence[int] | Ints,
        values: Sequence[float] | Floats,
        lower: float = 0.0,
        upper: float = np.inf,
    ) -> int:
        row = self.program.add_rows(1, lower, upper)
        self.program.enter(row, columns, values)
        return row

    def _add_counts(self, whole_blocks: bool) -> None:
        problem = self.problem
        for run, (_, blocks) in enumerate(problem.runs):
            on = problem.open_chunks(run)
            first = self.program.add_columns(
                np.zeros(len(on)), integer=whole_blocks, highest=float(blocks)
            )
            self.counts |= {(k, run): first + offset for offset, k in enumerate(on)}
            run_columns = first + np.arange(len(on))
            self._row(run_columns, np.ones(len(on)), float(blocks), float(blocks))
        for k in range(problem.pipeline.positions):
            chunk_columns = [column for (chunk, _), column in self.counts.items() if chunk == k]
            self._row(chunk_columns, [1.0] * len(chunk_columns), 1.0)
        for run in range(len(problem.runs) - 1):
            self._add_order(run)

    def _add_order(self, run: int) -> None:
        """Let the first chunks hold no smaller share of a run than of the next."""
        (_, blocks), (_, later) = self.problem.runs[run : run + 2]
        for k in self.problem.open_chunks(run + 1)[:-1]:
            if k >= self.problem.open_chunks(run)[-1]:
                break  # all of the run lies on these chunks
            run_columns = [self.counts[j, run] for j in self.problem.open_chunks(run) if j <= k]
            next_columns = [
                self.counts[j, run + 1] for j in self.problem.open_chunks(run + 1) if j <= k
            ]
            values = [1 / blocks] * len(run_columns) + [-1 / later] * len(next_columns)
            self._row([*run_columns, *next_columns], values)

    def _times(self, chunks: Iterable[int]) -> list[int]:
        """Columns whose sum is the time of some chunks for one microbatch."""
        return [int(self.figures[k, figure]) for k in chunks for figure in PASSES]

    def _add_pace(self) -> None:
        """Let the pace be no less than the time of each further microbatch."""
        pipeline = self.problem.pipeline
        share, stages, rows = pipeline.row_share, pipeline.stages, pipeline.rows
        self.pace = pace = self.program.add_columns(pipeline.microbatches - pipeline.ramp)
        longest = self.program.add_columns(0.0)
        self.levels = [longest]
        for stage in range(stages):
            times = self._times(np.flatnonzero(self.stages == stage).tolist())
            self._row([longest, *times], [1.0] + [-1.0] * len(times))
        columns, values = [pace, longest], [1.0, share - 1.0]
        if share:
            most = self.program.add_columns(0.0)  # the mean of the longest row
            columns.append(most)
            values.append(-pipeline.lag * rows)
            self.levels = []
            for row in range(rows):
                level = self.program.add_columns(0.0)
                self.levels.append(level)
                here = range(row * stages, (row + 1) * stages)
                for k in here:
                    self._row([level, *self._times([k])], [1.0] + [-1.0] * len(PASSES))
                times = self._times(here)
                self._row([most, *times], [1.0] + [-1.0 / stages] * len(times))
                columns += [level, *times]
                values += [-share] + [pipeline.lag / stages] * len(times)
        self._row(columns, values)
        if pipeline.in_turn:
            times = self._times(range(pipeline.positions))
            sent = pipeline.sent_ns / self.problem.unit_ns
            self._row([pace, *times], [float(stages)] + [-1.0] * len(times), sent)

    def _add_ramp(self) -> None:
        """Let `left` be the time of one microbatch on each chunk, but for deferred gradients."""
        pipeline = self.problem.pipeline
        chunks = pipeline.positions
        left = self.program.add_columns(np.full(chunks, pipeline.ramp))
        self.left = left + np.arange(chunks)
        filled = 2 * (1 - 1 / pipeline.stages) if pipeline.defers_weight_gradients else 0.0
        rows = self.program.add_rows(chunks, lower=0.0) + np.arange(chunks)
        self.program.enter(rows, left + np.arange(chunks), 1.0)
        for figure in PASSES:
            self.program.enter(rows, self.figures[:, figure], -1.0)
        self.program.enter(rows, self.figures[:, DEFERRABLE], filled)

    def _add_update(self) -> None:
        update = self.program.add_columns(1.0)
        rows = self.program.add_rows(self.problem.pipeline.stages, lower=0.0)
        self.program.enter(rows + np.arange(self.problem.pipeline.stages), update, 1.0)
        self.program.enter(rows + self.stages, self.figures[:, STEP], -1.0)

    def _add_memory(self) -> None:
        """Let no stage keep more than its limit, whichever moment it is."""
        self.memory: list[Ints] = []  # rows of every stage
        problem = self.problem
        for stage, counts in enumerate(problem.moments):
            on = np.flatnonzero(self.stages == stage)
            limit = problem.limits[problem.pipeline.kinds[stage]] / problem.limit_bytes
            rows = self.program.add_rows(len(counts), upper=limit) + np.arange(len(counts))
            self.program.enter(rows[:, None], self.figures[on, PERSISTENT][None], 1.0)
            self.program.enter(rows[:, None, None], self.figures[on][None, :, GAPS], counts)
            self.memory.append(rows)
