"""Stages: how many blocks of each variant every chunk of the pipeline holds.

Blocks come in runs (all blocks of one template, in the order of the model); positions k are the
chunks in model order, position k on stage k mod stages. With counts n[k, r, v] of run r in variant
v at position k::

    minimise    (microbatches - 1) · slowest + Σ_k Σ time[r, v] n[k, r, v] / chunks + longest_update
    subject to  Σ_{k, v} n[k, r, v] = blocks of run r
                Σ_{r, v} n[k, r, v] ≥ 1                            no chunk is empty
                n[k, r + 1, v] > 0 only where Σ_{j ≤ k, v} n[j, r, v] is all of run r
                slowest ≥ Σ_{k on s} Σ time[r, v] n[k, r, v]       for every stage s
                longest_update ≥ the same of the time per step
                Σ_{k on s} Σ (stays[r, v] + inflight[k] · keeps[r, v]) n[k, r, v] ≤ limit

Depth enters as counts only, so that 96 blocks cost no more than six.

Notes
-----
The objective is the length of a pipeline without slack: Narayanan et al., "Efficient large-scale
language model training on GPU clusters", 2021, section 2.2; with c chunks a stage the ramp is c
times shorter.
"""

from dataclasses import dataclass

from ortools.math_opt.python import mathopt

from planner.errors import InfeasibleError
from planner.schedules import schedule_order


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantFigures:
    """What one block in one variant costs."""

    microbatch_ns: int
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
    """Blocks and variant per position, the predicted step time and its proven bound."""

    chunks: tuple[tuple[tuple[str, int], ...], ...]
    step_ns: float
    bound_ns: float


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


def step_time_ns(pipeline: Pipeline, stage_ns: list[float], update_ns: list[float]) -> float:
    """Predicted step time from every stage's time per microbatch and per step.

    Work that a schedule moves into the ramp (weight gradients, chunks) shortens the ramp only.
    """
    slowest = max(stage_ns)
    ramp = (sum(stage_ns) - slowest) / pipeline.interleave
    return pipeline.microbatches * slowest + ramp + max(update_ns)


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
        There are fewer blocks than positions, or no division fits the memory.
    """
    blocks = sum(len(run.blocks) for run in runs)
    if blocks < pipeline.positions:
        raise InfeasibleError(
            f"{pipeline.positions} chunks ({pipeline.stages} stages, {pipeline.interleave} each) "
            f"need at least as many blocks, the model has {blocks}: use fewer stages"
        )
    program = _Program(runs, pipeline, limit_bytes - transient_bytes)
    return program.solve(max_gap)


class _Program:
    """The integer program over counts."""

    def __init__(self, runs: tuple[Run, ...], pipeline: Pipeline, limit_bytes: int) -> None:
        self.runs = runs
        self.pipeline = pipeline
        self.model = mathopt.Model(name="stages")
        # Work in shares of the whole model's time, so that tolerances mean the same everywhere.
        whole = sum(len(run.blocks) * min(v.microbatch_ns for v in run.variants) for run in runs)
        self.unit = max(whole, 1)
        self.limit = max(limit_bytes, 1)
        self.counts = [
            [
                [self.model.add_integer_variable(lb=0, ub=len(run.blocks)) for _ in run.variants]
                for run in runs
            ]
            for _ in range(pipeline.positions)
        ]
        self._contiguous()
        self._objective()
        if limit_bytes <= 0 or not self._memory():
            self.model.add_linear_constraint(lb=1, ub=0)

    def _contiguous(self) -> None:
        model, runs = self.model, self.runs
        for r, run in enumerate(runs):
            total = sum(sum(self.counts[k][r]) for k in range(self.pipeline.positions))
            model.add_linear_constraint(total == len(run.blocks))
        for k, position in enumerate(self.counts):
            model.add_linear_constraint(sum(sum(row) for row in position) >= 1)
            for r in range(len(runs) - 1):
                done = model.add_binary_variable()
                before = sum(sum(self.counts[j][r]) for j in range(k + 1))
                model.add_linear_constraint(before >= len(runs[r].blocks) * done)
                later = len(runs[r + 1].blocks)
                model.add_linear_constraint(sum(position[r + 1]) <= later * done)

    def _on(self, stage: int) -> range:
        return range(stage, self.pipeline.positions, self.pipeline.stages)

    def _objective(self) -> None:
        model, pipeline = self.model, self.pipeline
        slowest = model.add_variable(lb=0)
        update = model.add_variable(lb=0)
        times = []
        for stage in range(pipeline.stages):
            time = mathopt.LinearSum(
                v.microbatch_ns / self.unit * n
                for k in self._on(stage)
                for run, row in zip(self.runs, self.counts[k], strict=True)
                for v, n in zip(run.variants, row, strict=True)
            )
            times.append(time)
            model.add_linear_constraint(slowest >= time)
            model.add_linear_constraint(
                update
                >= mathopt.LinearSum(
                    v.step_ns / self.unit * n
                    for k in self._on(stage)
                    for run, row in zip(self.runs, self.counts[k], strict=True)
                    for v, n in zip(run.variants, row, strict=True)
                )
            )
        ramp = 1 / pipeline.interleave
        model.minimize(
            (pipeline.microbatches - ramp) * slowest + ramp * mathopt.LinearSum(times) + update
        )

    def _memory(self) -> bool:
        """Add the memory rows; False where a single block is too large already."""
        inflight = inflight_counts(self.pipeline)
        for stage in range(self.pipeline.stages):
            used = mathopt.LinearSum(
                (v.persistent_bytes + inflight[k] * v.inflight_bytes) / self.limit * n
                for k in self._on(stage)
                for run, row in zip(self.runs, self.counts[k], strict=True)
                for v, n in zip(run.variants, row, strict=True)
            )
            self.model.add_linear_constraint(used <= 1)
        return True

    def solve(self, max_gap: float) -> Division:
        """Counts as a division; raises InfeasibleError when memory allows none."""
        parameters = mathopt.SolveParameters(
            relative_gap_tolerance=max_gap, absolute_gap_tolerance=0.0, random_seed=0
        )
        result = mathopt.solve(self.model, mathopt.SolverType.HIGHS, params=parameters)
        if result.termination.reason not in (
            mathopt.TerminationReason.OPTIMAL,
            mathopt.TerminationReason.FEASIBLE,
        ):
            raise InfeasibleError("no division of the blocks over the stages fits the memory")
        values = result.variable_values()
        left = [list(run.blocks) for run in self.runs]
        chunks = []
        for position in self.counts:
            chunk: list[tuple[str, int]] = []
            for r, row in enumerate(position):
                for variant, n in enumerate(row):
                    for _ in range(round(values[n])):
                        chunk.append((left[r].pop(0), variant))
            chunks.append(tuple(chunk))
        return Division(
            chunks=tuple(chunks),
            step_ns=result.objective_value() * self.unit,
            bound_ns=result.termination.objective_bounds.dual_bound * self.unit,
        )
