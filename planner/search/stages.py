"""Stages: how many blocks of each variant every chunk of the pipeline holds.

Blocks come in runs (all blocks of one template, in the order of the model); positions k are the
chunks in model order, position k on stage k mod stages. With counts n[k, r, v] of run r in variant
v at position k::

    minimise    (microbatches - ramp) · Σ_c slowest[c] + ramp · Σ_k Σ time[r, v] n[k, r, v] + update
    subject to  Σ_{k, v} n[k, r, v] = blocks of run r
                Σ_{r, v} n[k, r, v] ≥ 1                            no chunk is empty
                n[k, r + 1, v] > 0 only where Σ_{j ≤ k, v} n[j, r, v] is all of run r
                slowest[c] ≥ Σ time[r, v] n[k, r, v]               for the c-th chunk k of any stage
                update ≥ Σ_{k on s} Σ step[r, v] n[k, r, v]        for every stage s
                Σ_{k on s} Σ (stays[r, v] + inflight[k] · keeps[r, v]) n[k, r, v] ≤ limit

Depth enters as counts only, so that 96 blocks cost no more than six.

Notes
-----
The objective is the length of a pipeline without slack (Narayanan et al., "Efficient large-scale
language model training on GPU clusters", 2021, section 2.2): every stage runs once before the
slowest has its remaining microbatches. With several chunks a stage the ramp is that many times
shorter; all stages go through their c-th chunks together, so the slowest of these sets the pace.
"""

from dataclasses import dataclass, replace

import numpy as np

from planner.errors import InfeasibleError
from planner.schedules import schedule_order
from planner.search.integer_program import IntegerProgram
from planner.search.request import MemoryLimitError

DEFERRING = ("zb-h1",)  # schedules that move weight gradients into the ramp


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantFigures:
    """What one block in one variant costs; `deferrable_ns` of its time makes weight gradients."""

    microbatch_ns: int
    deferrable_ns: int
    step_ns: int
    persistent_bytes: int
    inflight_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Equal blocks in a row, and the variants they may run as."""

    template: str
    blocks: tuple[str, ...]
    variants: tuple[VariantFigures, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """The shape of a pipeline: a schedule's name and its numbers."""

    schedule: str
    stages: int
    interleave: int
    microbatches: int

    @property
    def positions(self) -> int:
        """Number of chunks."""
        return self.stages * self.interleave


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """Blocks and variant per position, the predicted step time, and the fullest stage's bytes."""

    chunks: tuple[tuple[tuple[str, int], ...], ...]
    step_ns: float
    memory_bytes: int


def inflight_counts(pipeline: Pipeline) -> tuple[int, ...]:
    """Most microbatches whose activations each position keeps at once."""
    found = [0] * pipeline.positions
    for stage in range(pipeline.stages):
        order = schedule_order(
            pipeline.schedule,
            stage=stage,
            stages=pipeline.stages,
            chunks=pipeline.interleave,
            microbatches=pipeline.microbatches,
        )
        live = [0] * pipeline.interleave
        for slot in order:
            position = slot.chunk * pipeline.stages + stage
            if slot.part == "F":
                live[slot.chunk] += 1
                found[position] = max(found[position], live[slot.chunk])
            elif slot.part in ("W", "BW"):
                live[slot.chunk] -= 1
    return tuple(found)


def divide(
    runs: tuple[Run, ...],
    pipeline: Pipeline,
    limit_bytes: int,
    transient_bytes: int = 0,
    max_gap: float = 0.0,
) -> Division:
    """Divide the blocks over the positions at the least predicted step time.

    Parameters
    ----------
    runs : tuple of Run
        In the order of the model.
    pipeline : Pipeline
    limit_bytes : int
        Memory of one device.
    transient_bytes : int
        What every stage needs besides.
    max_gap : float
        Relative gap at which a division is good enough.

    Raises
    ------
    InfeasibleError
        There are fewer blocks than positions.
    MemoryLimitError
        No division fits; holds the bytes of the fullest stage of the one that needs least.
    """
    blocks = sum(len(run.blocks) for run in runs)
    if blocks < pipeline.positions:
        raise InfeasibleError(
            f"{pipeline.positions} chunks ({pipeline.stages} stages, {pipeline.interleave} each) "
            f"need at least as many blocks, the model has {blocks}: use fewer stages"
        )
    limit = limit_bytes - transient_bytes
    division = _Program(runs, pipeline, limit, False).solve(max_gap) if limit > 0 else None
    if division is not None:
        used = stage_bytes_max(division.chunks, runs, pipeline) + transient_bytes
        return replace(division, memory_bytes=used)
    smallest = _Program(runs, pipeline, limit_bytes, True).solve(max_gap)
    assert smallest is not None, "there are enough blocks"
    needed = stage_bytes_max(smallest.chunks, runs, pipeline) + transient_bytes
    raise MemoryLimitError(needed, limit_bytes)


def stage_bytes_max(
    chunks: tuple[tuple[tuple[str, int], ...], ...], runs: tuple[Run, ...], pipeline: Pipeline
) -> int:
    """Bytes of the fullest stage of a division."""
    variants = {block: run.variants for run in runs for block in run.blocks}
    inflight = inflight_counts(pipeline)
    used = [0] * pipeline.stages
    for k, chunk in enumerate(chunks):
        for block, variant in chunk:
            figures = variants[block][variant]
            used[k % pipeline.stages] += figures.persistent_bytes
            used[k % pipeline.stages] += inflight[k] * figures.inflight_bytes
    return max(used)


class _Program:
    """The program of the module's docstring, in arrays."""

    def __init__(
        self, runs: tuple[Run, ...], pipeline: Pipeline, limit_bytes: int, least_memory: bool
    ) -> None:
        self.runs = runs
        self.pipeline = pipeline
        self.program = IntegerProgram()
        self.kinds = [(r, v) for r, run in enumerate(runs) for v in range(len(run.variants))]
        self.figures = [runs[r].variants[v] for r, v in self.kinds]
        # Counts by position and kind; times and bytes in shares of the whole, so that tolerances
        # mean the same everywhere.
        most = float(max(len(run.blocks) for run in runs))
        self.time_unit = max(
            sum(len(run.blocks) * min(v.microbatch_ns for v in run.variants) for run in runs), 1
        )
        self.byte_unit = float(max(limit_bytes, 1))
        ramp = 1 / pipeline.interleave
        self.counts = np.array(
            [
                self.program.add_columns(
                    [0.0 if least_memory else ramp * self._ramp_share(f) for f in self.figures],
                    integer=True,
                    highest=most,
                )
                + np.arange(len(self.kinds))
                for _ in range(pipeline.positions)
            ]
        )
        self._contiguous()
        weights = (0.0, 0.0, 1.0) if least_memory else (pipeline.microbatches - ramp, 1.0, 0.0)
        for chunk in range(pipeline.interleave):
            slowest = self.program.add_columns(weights[0])
            for k in range(chunk * pipeline.stages, (chunk + 1) * pipeline.stages):
                self._at_least(slowest, [k], [self._share(f) for f in self.figures])
        update, memory = (self.program.add_columns(w) for w in weights[1:])
        for stage in range(pipeline.stages):
            on_stage = list(self._on(stage))
            self._at_least(update, on_stage, [f.step_ns / self.time_unit for f in self.figures])
        self._memory(memory, limited=not least_memory)

    def _share(self, figures: VariantFigures) -> float:
        return figures.microbatch_ns / self.time_unit

    def _ramp_share(self, figures: VariantFigures) -> float:
        """Share of a block's time that the ramp is made of."""
        if self.pipeline.schedule not in DEFERRING:
            return self._share(figures)
        others = 1 - 1 / self.pipeline.stages  # the slowest stage has no ramp of its own
        left = figures.microbatch_ns - 2 * figures.deferrable_ns * others
        return max(left, 0.0) / self.time_unit

    def _contiguous(self) -> None:
        """Every block once, no position empty, a run only after all of the one before."""
        program, positions = self.program, self.pipeline.positions
        run_of = np.array([r for r, _ in self.kinds])
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

    def _on(self, stage: int) -> range:
        return range(stage, self.pipeline.positions, self.pipeline.stages)

    def _at_least(self, column: int, positions: list[int], values: list[float]) -> None:
        """The column is no less than the sum over the blocks at some positions."""
        row = self.program.add_rows(1, lower=0.0)
        self.program.enter(row, column, 1.0)
        for k in positions:
            self.program.enter(row, self.counts[k], [-value for value in values])

    def _memory(self, column: int, limited: bool) -> None:
        """Bytes of every stage stay within the limit, or within the column that is minimised."""
        inflight = inflight_counts(self.pipeline)
        for stage in range(self.pipeline.stages):
            row = self.program.add_rows(1, upper=1.0 if limited else 0.0)
            for k in self._on(stage):
                sizes = [f.persistent_bytes + inflight[k] * f.inflight_bytes for f in self.figures]
                self.program.enter(row, self.counts[k], [size / self.byte_unit for size in sizes])
            if not limited:
                self.program.enter(row, column, -1.0)

    def solve(self, max_gap: float) -> Division | None:
        """Counts as a division; None where nothing is feasible."""
        answer = self.program.solve(max_gap)
        if answer is None:
            return None
        left = [list(run.blocks) for run in self.runs]
        chunks = []
        for columns in self.counts:
            chunk: list[tuple[str, int]] = []
            for (r, variant), column in zip(self.kinds, columns, strict=True):
                for _ in range(round(answer.values[column])):
                    chunk.append((left[r].pop(0), variant))
            chunks.append(tuple(chunk))
        return Division(
            chunks=tuple(chunks),
            step_ns=answer.cost * self.time_unit,
            memory_bytes=0,
        )
