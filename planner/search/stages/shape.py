"""What is divided, over what, and what a division costs.

Blocks come in runs (all blocks of one template, in the order of the model); positions k are the
chunks in model order, position k on stage `stage_of(schedule, k, stages)`. With blocks and variants
per position::

    time[s]  = max(Σ microbatch, Σ lane) over the blocks on stage s
    step     = (microbatches - ramp) · max_s time[s]
               + ramp · Σ_s (time[s] - Σ deferred) + max_s Σ step
    bytes[s] = Σ_{k on s} Σ (persistent + inflight[k] · inflight bytes) + max transient ≤ limit

where ramp is one over the chunks of a stage, and no chunk is empty.

Notes
-----
The objective is the length of a pipeline without slack (Narayanan et al., "Efficient large-scale
language model training on GPU clusters", 2021, section 2.2): every stage runs once before the
slowest has its remaining microbatches. With several chunks a stage the ramp is that many times
shorter. Schedules that defer weight gradients fill the ramp with them (Qi et al., "Zero bubble
pipeline parallelism", 2023, section 2.2): with equal times for forward, input and weight gradients
what is left is the way to the last stage.
"""

from dataclasses import dataclass

from planner.errors import PlanError
from planner.schedules import kept_counts, stage_of

DEFERRING = ("zb-h1", "zb-v")  # schedules that move weight gradients into the ramp


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantFigures:
    """What one block in one variant costs.

    Attributes
    ----------
    microbatch_ns, step_ns : int
        Time per microbatch and per step; `deferrable_ns` of the former makes weight gradients.
    persistent_bytes, inflight_bytes : int
        Memory all step long, and per microbatch in flight.
    transient_bytes : int
        The largest section; sections of a stage share their memory.
    lane_ns : int
        Communication per microbatch that runs beside computation.
    handover : object
        How tensors are handed to neighbours: a division mixes only variants where it is equal.
    """

    microbatch_ns: int
    deferrable_ns: int
    step_ns: int
    persistent_bytes: int
    inflight_bytes: int
    transient_bytes: int = 0
    lane_ns: int = 0
    handover: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Equal blocks in a row, and the variants they may run as.

    `elsewhere` has the figures of the same variants on the second, third, … kind of device.
    """

    template: str
    blocks: tuple[str, ...]
    variants: tuple[VariantFigures, ...]
    elsewhere: tuple[tuple[VariantFigures, ...], ...] = ()

    def on(self, kind: int) -> tuple[VariantFigures, ...]:
        """Figures of the variants on one kind of device."""
        return self.elsewhere[kind - 1] if kind else self.variants


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """The shape of a pipeline: a schedule's name and its numbers, and every stage's kind of device.

    No kinds: all devices are alike.
    """

    schedule: str
    stages: int
    interleave: int
    microbatches: int
    kind_of_stage: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.kind_of_stage and len(self.kind_of_stage) != self.stages:
            raise PlanError(
                f"{self.stages} stages with kinds of device for {len(self.kind_of_stage)}: name "
                f"one for each stage"
            )

    @property
    def positions(self) -> int:
        """Number of chunks."""
        return self.stages * self.interleave

    @property
    def ramp(self) -> float:
        """Share of a microbatch's time that one stage waits for the next."""
        return 1 / self.interleave

    @property
    def kinds(self) -> tuple[int, ...]:
        """Kind of every stage's device."""
        return self.kind_of_stage or (0,) * self.stages

    def stage_of(self, position: int) -> int:
        """Return the stage of a chunk."""
        return stage_of(self.schedule, position, self.stages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """Blocks and variant per position, and what they cost.

    Attributes
    ----------
    chunks : tuple
        Per position, (block, variant) in the order of the model.
    step_ns, bound_ns : float
        Predicted step time, and the proven least of every division.
    memory_bytes : int
        Of the stage with the least room left.
    """

    chunks: tuple[tuple[tuple[str, int], ...], ...]
    step_ns: float
    memory_bytes: int
    bound_ns: float = 0.0


def inflight_counts(pipeline: Pipeline) -> tuple[int, ...]:
    """Most microbatches whose activations each position keeps at once."""
    return kept_counts(
        pipeline.schedule, pipeline.stages, pipeline.interleave, pipeline.microbatches
    )


def deferred_ns(figures: VariantFigures, pipeline: Pipeline) -> float:
    """Time of a block that a schedule takes out of the ramp; the slowest stage has no ramp."""
    if pipeline.schedule not in DEFERRING:
        return 0.0
    others = 1 - 1 / pipeline.stages
    return min(2 * figures.deferrable_ns * others, float(figures.microbatch_ns))


def step_time_ns(
    chunks: tuple[tuple[tuple[str, int], ...], ...], runs: tuple[Run, ...], pipeline: Pipeline
) -> float:
    """Predicted step time of a division."""
    run_of = {block: run for run in runs for block in run.blocks}
    busy, lane, update = ([0] * pipeline.stages for _ in range(3))
    deferred = 0.0
    for position, chunk in enumerate(chunks):
        stage = pipeline.stage_of(position)
        for block, at in chunk:
            figures = run_of[block].on(pipeline.kinds[stage])[at]
            busy[stage] += figures.microbatch_ns
            lane[stage] += figures.lane_ns
            update[stage] += figures.step_ns
            deferred += deferred_ns(figures, pipeline)
    times = [max(pair) for pair in zip(busy, lane, strict=True)]
    pace = (pipeline.microbatches - pipeline.ramp) * max(times)
    return pace + pipeline.ramp * (sum(times) - deferred) + max(update)


def stage_bytes(
    chunks: tuple[tuple[tuple[str, int], ...], ...], runs: tuple[Run, ...], pipeline: Pipeline
) -> tuple[int, ...]:
    """Bytes of every stage of a division."""
    run_of = {block: run for run in runs for block in run.blocks}
    used, transient = [0] * pipeline.stages, [0] * pipeline.stages
    for position, (chunk, kept) in enumerate(zip(chunks, inflight_counts(pipeline), strict=True)):
        stage = pipeline.stage_of(position)
        for block, at in chunk:
            figures = run_of[block].on(pipeline.kinds[stage])[at]
            used[stage] += figures.persistent_bytes + kept * figures.inflight_bytes
            transient[stage] = max(transient[stage], figures.transient_bytes)
    return tuple(a + b for a, b in zip(used, transient, strict=True))


def stage_bytes_max(
    chunks: tuple[tuple[tuple[str, int], ...], ...], runs: tuple[Run, ...], pipeline: Pipeline
) -> int:
    """Bytes of the fullest stage of a division."""
    return max(stage_bytes(chunks, runs, pipeline))
