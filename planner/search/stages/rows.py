"""Rows: several chunks a stage, where all stages wait for the longest chunk of every row.

With levels, one a row, that no chunk of it exceeds, the blocks that find a place are counted chunk
by chunk, and a dynamic program over the rows finds the levels of least sum that hold them all. That
bounds every division. Where memory is short, stages run blocks in a smaller variant too, first
those of which most microbatches are in flight: rows grow in the same order on every stage.

Shapes: K positions (chunks in model order), `stages` a row; per row [levels] ascending, and the
blocks that it holds at each.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from millrace.models.arrays import Ints
from millrace.planner.search.stages.run_layout import Chunks, Ends, TooManyError, end_layouts
from millrace.planner.search.stages.shape import (
    BlockRun,
    Pipeline,
    VariantFigures,
    lifetime_counts,
    step_time_ns,
)

LAID_OUT = 3  # ways to lay out the ends that are filled
NEVER = 2**61


class Rows:
    """One way to lay out the ends of the model; the longest run lies between.

    Parameters
    ----------
    runs : tuple of BlockRun
    pipeline : Pipeline
    ends : Ends
    times : sequence
        Per run and stage, the nanoseconds of a block.
    """

    def __init__(
        self,
        runs: tuple[BlockRun, ...],
        pipeline: Pipeline,
        ends: Ends,
        times: Sequence[Sequence[int]],
    ) -> None:
        self.ends = ends
        self.total = len(runs[ends.main].blocks)
        positions = np.arange(pipeline.positions)
        stages = [pipeline.stage_of(k) for k in positions.tolist()]
        self.ends_ns = np.zeros(len(positions), np.int64)
        for run, position in ends.places:
            self.ends_ns[position] += times[run][stages[position]]
        self.block = np.array([max(times[ends.main][stage], 1) for stage in stages])
        self.open = (positions >= ends.low) & (positions <= ends.high)
        self.due = np.ones(len(positions), np.int64)
        self.due[[position for _, position in ends.places]] = 0
        shape = pipeline.rows, pipeline.stages
        self.times = self.ends_ns, self.block, self.due
        options_of: dict[tuple[bytes, ...], tuple[Ints, Ints]] = {}
        self.options = []
        for row in positions.reshape(shape):
            alike = tuple(array[row].tobytes() for array in (*self.times, self.open))
            if alike not in options_of:
                options_of[alike] = self._options(row)
            self.options.append(options_of[alike])

    def _options(self, row: Ints) -> tuple[Ints, Ints]:
        """Levels that a row may have, and the blocks that it holds at each of them."""
        ends_ns, block = self.ends_ns[row], self.block[row]
        least = int((ends_ns + self.due[row] * block).max())
        counts = np.arange(self.total + 1)
        kinds = np.unique(np.stack([ends_ns, block], axis=1), axis=0)
        levels = np.unique(kinds[:, :1] + kinds[:, 1:] * counts)
        levels = np.append(least, levels[levels > least])
        room: Ints = ((levels[:, None] - ends_ns) // block * self.open[row]).sum(axis=1)
        first = np.flatnonzero(np.diff(np.minimum(room, self.total), prepend=-1))
        return levels[first], room[first]

    def filled(self, most_ns: float = np.inf) -> "FilledRows | None":
        """Levels of least sum that hold all blocks; None where there are too few blocks, or chunks.

        No row of chunks takes longer than `most_ns` in all.
        """
        total = self.total - int(self.due.sum())
        if total < 0:
            return None
        best = np.full(total + 1, NEVER)
        best[0] = 0
        taken = []
        for (levels, room), ends_ns, block, due in zip(
            self.options,
            *(array.reshape(len(self.options), -1) for array in self.times),
            strict=True,
        ):
            spare = (most_ns - int(ends_ns.sum()) - int(due @ block)) / int(block.min())
            if spare < 0:
                return None
            extra = np.minimum(room - int(due.sum()), min(int(min(spare, total)), total))
            before = np.maximum(np.arange(total + 1) - extra[:, None], 0)
            sums = np.minimum(best[before], NEVER) + levels[:, None]
            choice = sums.argmin(axis=0)
            taken.append((choice, before, levels, int(due.sum())))
            best = sums.min(axis=0)
        if best[-1] >= NEVER:
            return None
        picks, left = [], total
        for choice, before, levels, due in reversed(taken):
            option = int(choice[left])
            picks.append((int(levels[option]), due + left - int(before[option, left])))
            left = int(before[option, left])
        return FilledRows(
            levels=tuple(level for level, _ in picks[::-1]),
            block_counts=tuple(n for _, n in picks[::-1]),
        )

    def ways(self) -> Iterator["FilledRows"]:
        """Levels of least sum, then likewise for ever shorter rows, while all find a place."""
        most_ns = np.inf
        while (way := self.filled(most_ns)) is not None:
            yield way
            most_ns = max(self._row_ns(way)) - 1

    def least_ns(self, way: "FilledRows", pipeline: Pipeline) -> float:
        """Step time that no division of these levels and rows undercuts, but for memory."""
        loads = self._row_ns(way)
        share, mean = pipeline.row_share, sum(loads) / pipeline.stages
        lag = pipeline.lag * (len(loads) * max(loads) / pipeline.stages - mean)
        pace = (1 - share) * mean + share * sum(way.levels) + lag
        return (pipeline.microbatches - pipeline.ramp) * pace + pipeline.ramp * sum(loads)

    def _row_ns(self, way: "FilledRows") -> list[int]:
        """Least nanoseconds of each row, in all of its chunks."""
        ends_rows, block_rows, _ = (array.reshape(len(self.options), -1) for array in self.times)
        return [
            int(ends_ns.sum()) + count * int(block_ns.min())
            for ends_ns, block_ns, count in zip(
                ends_rows, block_rows, way.block_counts, strict=True
            )
        ]

    def counts(self, way: "FilledRows", sizes: Ints, stages: Ints) -> Ints:
        """Blocks of the longest run per chunk; the fullest stages have the fewest.

        `sizes` are bytes of one of its blocks by position, `stages` where each position lies.
        """
        row = len(self.block) // len(way.levels)
        room = np.repeat(np.array(way.levels), row) - self.ends_ns
        counts: Ints = np.where(self.open, np.minimum(room // self.block, self.total), 0)
        for number, wanted in enumerate(way.block_counts):
            on_row = slice(number * row, (number + 1) * row)
            for _ in range(int(counts[on_row].sum()) - wanted):
                used = np.bincount(stages, weights=counts * sizes)
                spare = np.where(counts > self.due, used[stages], -1.0)[on_row]
                counts[on_row.start + int(spare.argmax())] -= 1
        return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledRows:
    """Nanoseconds that no chunk of each row exceeds, and the number of blocks in the row."""

    levels: tuple[int, ...]
    block_counts: tuple[int, ...]


def least_rows_ns(runs: tuple[BlockRun, ...], pipeline: Pipeline) -> float:
    """Least sum of all rows' longest chunks, whatever the memory: blocks at their fastest."""
    times = [
        [min(figures.microbatch_ns for figures in run.on(kind)) for kind in pipeline.kinds]
        for run in runs
    ]
    least = [rows.filled() for rows in _laid_out(runs, pipeline, times)]
    return min((float(sum(way.levels)) for way in least if way is not None), default=0.0)


def _laid_out(
    runs: tuple[BlockRun, ...],
    pipeline: Pipeline,
    times: Sequence[Sequence[int]],
    most: int | None = None,
) -> list[Rows]:
    try:
        layouts = list(end_layouts(runs, pipeline.positions))
    except TooManyError:
        return []
    return [Rows(runs, pipeline, ends, times) for ends in layouts[:most]]


def filled(
    runs: tuple[BlockRun, ...], pipeline: Pipeline, limits: tuple[int, ...], best_ns: float
) -> Iterator[tuple[float, Chunks]]:
    """Divisions that fit, with their step times, ever better ones; `limits` are bytes of stages."""
    main = max(range(len(runs)), key=lambda r: len(runs[r].blocks))
    wanted = []
    for order in (_time, _size):
        wanted.append(
            tuple(
                min(range(len(run.variants)), key=lambda v, run=run: order(run.variants[v]))  # type: ignore[misc]
                if number != main
                else 0
                for number, run in enumerate(runs)
            )
        )
    for ends in dict.fromkeys(wanted):
        for step_ns, chunks in _filled(runs, pipeline, limits, ends, best_ns):
            best_ns = min(best_ns, step_ns)
            yield step_ns, chunks


def _filled(
    runs: tuple[BlockRun, ...],
    pipeline: Pipeline,
    limits: tuple[int, ...],
    ends: Sequence[int],
    best_ns: float,
) -> Iterator[tuple[float, Chunks]]:
    main = max(range(len(runs)), key=lambda r: len(runs[r].blocks))
    for usual, figures in enumerate(runs[main].variants):
        default_variants = [*ends[:main], usual, *ends[main + 1 :]]
        times = [
            [run.on(kind)[v].microbatch_ns for kind in pipeline.kinds]
            for run, v in zip(runs, default_variants, strict=True)
        ]
        smaller = [
            v
            for v, other in enumerate(runs[main].variants)
            if _size(other) < _size(figures) and other.microbatch_ns > figures.microbatch_ns
        ]
        for rows in _laid_out(runs, pipeline, times, LAID_OUT):
            filling = _Filling(runs, pipeline, limits, rows, default_variants)
            for way in rows.ways():
                if rows.least_ns(way, pipeline) >= best_ns:
                    continue
                for number, small in enumerate((usual, *smaller)):
                    if (chunks := filling.chunks(way, small)) is None:
                        continue
                    step_ns = step_time_ns(chunks, runs, pipeline)
                    best_ns = min(best_ns, step_ns)
                    yield step_ns, chunks
                    if not number:  # where memory is not short, nothing smaller is of use
                        break


def _time(figures: VariantFigures) -> tuple[int, int]:
    return figures.microbatch_ns, figures.step_ns


def _size(figures: VariantFigures) -> int:
    return figures.bytes_with((1, 1, 1)) + figures.transient_bytes


class _Filling:
    """One way to lay out the ends, filled within each stage's bytes."""

    def __init__(
        self,
        runs: tuple[BlockRun, ...],
        pipeline: Pipeline,
        limits: tuple[int, ...],
        rows: Rows,
        default_variants: Sequence[int],
    ) -> None:
        self.runs = runs
        self.pipeline = pipeline
        self.limits = limits
        self.rows = rows
        self.default_variants = default_variants  # variant of each run, where nothing else is said
        self.inflight = lifetime_counts(pipeline)
        self.stages = np.array([pipeline.stage_of(k) for k in range(pipeline.positions)])
        self._ends_bytes = [0] * pipeline.stages  # bytes of the ends
        self._sections = [0] * pipeline.stages
        for run, position in rows.ends.places:
            stage = int(self.stages[position])
            self._ends_bytes[stage] += self._bytes(run, default_variants[run], position)
            section = self._figures(run, default_variants[run], position).transient_bytes
            self._sections[stage] = max(self._sections[stage], section)
        main = rows.ends.main
        variants = range(len(runs[main].variants))
        positions = range(pipeline.positions)
        self._sizes = [np.array([self._bytes(main, v, k) for k in positions]) for v in variants]
        self._working = [
            [run.transient_bytes for run in (runs[main].on(kind)[v] for kind in pipeline.kinds)]
            for v in variants
        ]

    def chunks(self, way: FilledRows, small: int) -> Chunks | None:
        """Blocks and variants per position; as few as need be in the small variant."""
        usual = self.default_variants[self.rows.ends.main]
        block_counts = self.rows.counts(way, self._sizes[usual], self.stages)
        small_counts = np.zeros_like(block_counts)
        if small != usual:
            used = self._used(block_counts, small_counts, small)
            for stage, (size, limit) in enumerate(zip(used, self.limits, strict=True)):
                if size > limit:
                    self._shrink(small_counts, block_counts, stage, size - limit, small)
        used = self._used(block_counts, small_counts, small)
        if any(size > limit for size, limit in zip(used, self.limits, strict=True)):
            return None
        return self._named(block_counts, small_counts, small)

    def _used(self, block_counts: Ints, small_counts: Ints, small: int) -> list[int]:
        """Bytes of every stage."""
        usual = self.default_variants[self.rows.ends.main]
        sizes = (block_counts - small_counts) * self._sizes[usual] + small_counts * self._sizes[
            small
        ]
        most = np.zeros((3, self.pipeline.stages), np.int64)  # of all, and of either variant
        for row, counts in enumerate((sizes, block_counts - small_counts, small_counts)):
            np.add.at(most[row], self.stages, counts)
        return [
            int(size)
            + ends_bytes
            + max(
                section,
                self._working[usual][stage] * bool(usually),
                self._working[small][stage] * bool(smaller),
            )
            for stage, (size, usually, smaller, ends_bytes, section) in enumerate(
                zip(*most, self._ends_bytes, self._sections, strict=True)
            )
        ]

    def _shrink(
        self, small_counts: Ints, block_counts: Ints, stage: int, over: int, small: int
    ) -> None:
        """Run blocks of a stage in the small variant until it needs so many bytes less."""
        usual = self.default_variants[self.rows.ends.main]
        on = [k for k in range(len(block_counts)) if self.stages[k] == stage]
        # Sections shrink only where all blocks do: until then the larger one counts.
        over += max(0, self._working[small][stage] - self._working[usual][stage])
        for k in sorted(on, key=lambda k: (-sum(self.inflight[k]), k)):
            saved = int(self._sizes[usual][k] - self._sizes[small][k])
            if over <= 0 or saved <= 0:
                continue
            small_counts[k] = min(int(block_counts[k]), -(-over // saved))
            over -= int(small_counts[k]) * saved

    def _figures(self, run: int, variant: int, position: int) -> VariantFigures:
        return self.runs[run].on(self.pipeline.kinds[int(self.stages[position])])[variant]

    def _bytes(self, run: int, variant: int, position: int) -> int:
        figures = self._figures(run, variant, position)
        return figures.bytes_with(self.inflight[position])

    def _named(self, block_counts: Ints, small_counts: Ints, small: int) -> Chunks:
        """Chunks as the names and variants of their blocks."""
        main = self.rows.ends.main
        kinds: list[list[tuple[int, int]]] = [[] for _ in block_counts]
        for run, position in self.rows.ends.places:
            kinds[position].append((run, self.default_variants[run]))
        for k, chunk in enumerate(kinds):
            chunk += [(main, small)] * int(small_counts[k])
            chunk += [(main, self.default_variants[main])] * int(block_counts[k] - small_counts[k])
        left = [list(run.blocks) for run in self.runs]
        return tuple(
            tuple((left[run].pop(0), variant) for run, variant in sorted(chunk)) for chunk in kinds
        )
