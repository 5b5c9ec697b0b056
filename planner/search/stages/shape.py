"""Shape: runs of blocks, the pipeline that they are divided over, and the cost of a division.

Blocks come in runs (all blocks of one template, in the order of the model); positions k are the
chunks in model order, position k on stage `stage_of(schedule, k, stages)`. With blocks and variants
per position, ramp = one over the chunks of a stage, and no chunk empty::

    time[s]  = Σ microbatch over the blocks on stage s
    step     = (microbatches - ramp) · pace + ramp · Σ_s (time[s] - Σ deferred) + sent
               + max_s Σ step
    bytes[s] = Σ_{k on s} Σ (persistent + Σ_lifetimes count[k] · bytes) + max transient ≤ limit

The pace is the time of each further microbatch, where `sent` is that of one from stage to stage to
the last chunk and back, besides computing::

    pace     = max_s time[s]                              one chunk a stage, or chunks in a V
             ≥ (Σ_s time[s] + sent) / stages              one chunk, and nothing is deferred
             = max_s time[s] / stages                     chunks in rows (interleaved): see below
               + (1 - 1 / stages) · Σ_rows max chunk[row]
               + lag · (rows · max_row mean chunk[row] - Σ_rows mean chunk[row])

Notes
-----
The objective is the length of a pipeline without slack (Narayanan et al., "Efficient large-scale
language model training on GPU clusters", 2021, section 2.2): every stage runs once before the
slowest has its remaining microbatches. With several chunks a stage the ramp is that many times
shorter. Schedules that defer weight gradients fill the ramp with them (Qi et al., "Zero bubble
pipeline parallelism", 2023, section 2.2): with equal times for forward, input and weight gradients
what is left is the way to the last stage.

1F1B has as many microbatches under way as there are stages, so that each has to be through all of
them, and back, in as many paces. What stages hand each other is hidden where they wait anyway.
Schedules that defer weight gradients, or interleave, have others to run meanwhile.

Interleaved stages run the chunks of one row (the first of every stage, the second, …) at a time,
`stages` microbatches long, and each waits for the one before it: a row takes as long as its longest
chunk, wherever the next row's longest lies, but for what is gained between the two. Stages are up
to two rows apart, so that all wait for the longer of two rows, the more stages there are. These two
weights are no theorem: they are fitted to orders that ran with the times of chunks.
`python -m benchmarks.planner.pipelines` holds all of this against the simulator.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from millrace.models.arrays import Floats, Ints
from millrace.planner.errors import PlanError
from millrace.planner.schedules import Schedule, schedule_of

# Share of what a row is longer that others wait for it: LAG (1 - LESS_LAG / stages), no less than
# LAG_MIN. Fitted (2026-11) to orders of 2 to 16 stages of 2 to 6 chunks.
LAG, LESS_LAG, LAG_MIN = 0.7, 3, 0.2


Lifetimes = tuple[int, ...]
"""A number for each lifetime, as `millrace.planner.schedules.counting.LIFETIMES` has them."""

# Weights of lifetimes beside one another, for the moment that dividing counts: Llama-2 7B's blocks
# keep 537, 492 and 792 MiB of a microbatch, those of GPT-3 13B 281, 360 and 440 (2026-11).
USUAL_WEIGHTS = (2, 2, 3)
# Share of the most kept, by which a more even moment may keep less; by eye, from 2 to 8 stages.
UNEVEN = 0.125


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantFigures:
    """Costs of one block in one variant.

    Attributes
    ----------
    microbatch_ns, step_ns : int
        Time per microbatch and per step; `deferrable_ns` of the former makes weight gradients.
    persistent_bytes, inflight_bytes : int
        Memory all step long, and per microbatch from its forward to the gradients of its inputs.
    weight_bytes, between_bytes : int
        Bytes kept for deferred weight gradients per microbatch: from its forward, and from the
        gradients of its inputs.
    transient_bytes : int
        The largest section; sections of a stage share their memory.
    forward_ns : int
        Time per microbatch of the forward pass.
    handover : object
        Way to hand tensors to neighbours: a division mixes only variants where it is equal.
    """

    microbatch_ns: int
    deferrable_ns: int
    step_ns: int
    persistent_bytes: int
    inflight_bytes: int
    transient_bytes: int = 0
    forward_ns: int = 0
    handover: object = None
    weight_bytes: int = 0
    between_bytes: int = 0

    @property
    def lifetimes(self) -> Lifetimes:
        """Bytes per microbatch by lifetime: forward → input and weight gradients, and between."""
        return self.inflight_bytes, self.weight_bytes, self.between_bytes

    def bytes_with(self, counts: Lifetimes) -> int:
        """Bytes of one block of which so many microbatches of each lifetime are alive."""
        return self.persistent_bytes + dot(self.lifetimes, counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRun:
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
    """Shape of a pipeline: a schedule's name and its numbers, and every stage's kind of device.

    No kinds: all devices are alike. `sent_ns` is what a microbatch's tensors take from stage to
    stage, and their gradients back.
    """

    schedule: str
    stages: int
    interleave: int
    microbatches: int
    kind_of_stage: tuple[int, ...] = ()
    sent_ns: int = 0

    def __post_init__(self) -> None:
        if self.kind_of_stage and len(self.kind_of_stage) != self.stages:
            raise PlanError(
                f"{self.stages} stages with kinds of device for {len(self.kind_of_stage)}: name "
                f"one for each stage"
            )

    @property
    def record(self) -> Schedule:
        """Record of the schedule."""
        return schedule_of(self.schedule)

    @property
    def defers_weight_gradients(self) -> bool:
        """True if the schedule moves weight gradients into the ramp."""
        return self.record.defers_weight_gradients

    @property
    def positions(self) -> int:
        """Number of chunks."""
        return self.stages * self.interleave

    @property
    def ramp(self) -> float:
        """Share of a microbatch's time that one stage waits for the next."""
        return 1 / self.interleave

    @property
    def lifetimes(self) -> int:
        """Lifetimes that are told apart: all of them where weight gradients are deferred."""
        return 3 if self.defers_weight_gradients else 1

    @property
    def rows(self) -> int:
        """Rows of chunks that wait for their longest."""
        return 1 if self.record.folded else self.interleave

    @property
    def in_turn(self) -> bool:
        """True if every microbatch is through all stages, and back, before others take its place.

        Then stages have nothing else to do while tensors travel.
        """
        return self.interleave == 1 and self.stages > 1 and not self.defers_weight_gradients

    @property
    def kinds(self) -> tuple[int, ...]:
        """Kind of every stage's device."""
        return self.kind_of_stage or (0,) * self.stages

    def stage_of(self, position: int) -> int:
        """Stage of a chunk."""
        return self.record.stage_of(position, self.stages)

    def place_of(self, position: int) -> int:
        """Place that a chunk's time counts in: its stage, or itself where rows wait for it."""
        return position if self.rows > 1 else self.stage_of(position)

    @property
    def lag(self) -> float:
        """Nanoseconds that rows wait for each by which the longest row's mean is above theirs."""
        if self.rows == 1 or self.stages == 1:
            return 0.0
        return max(LAG_MIN, LAG * (1 - LESS_LAG / self.stages)) / (self.rows - 1)

    @property
    def row_share(self) -> float:
        """Share of the pace in which rows wait for their longest chunk, not stages for theirs."""
        return 1 - 1 / self.stages if self.rows > 1 else 0.0

    def pace(self, times: Sequence[float] | Floats) -> Floats:
        """Nanoseconds of each further microbatch [...], from the times of every place [..., P]."""
        every = np.asarray(times, np.float64)
        stages, share = self.stages, self.row_share
        rows = every.reshape(*every.shape[:-1], -1, stages)
        pace_ns = (1 - share) * rows.sum(axis=-2).max(axis=-1)
        if share:
            means = rows.mean(axis=-1)
            pace_ns = pace_ns + share * rows.max(axis=-1).sum(axis=-1)
            unlike = rows.shape[-2] * means.max(axis=-1) - means.sum(axis=-1)
            pace_ns = pace_ns + self.lag * unlike
        if self.in_turn:
            pace_ns = np.maximum(pace_ns, (every.sum(axis=-1) + self.sent_ns) / stages)
        return np.asarray(pace_ns)

    def pace_slope(self, times: Floats, *, lagging: bool = True) -> Floats:
        """Weights [P] of the places, at which the pace of any times is at least their sum.

        At the times given [P] it is equal, where none is sent. Without `lagging` no weight is below
        zero, and what rows wait for one another is left out.
        """
        stages, share = self.stages, self.row_share
        rows = times.reshape(-1, stages)
        if self.in_turn and times.sum() + self.sent_ns > stages * rows.sum(axis=0).max():
            return np.full(len(times), 1 / stages)
        weights = np.zeros_like(rows)
        weights[:, rows.sum(axis=0).argmax()] = 1 - share
        if share:
            weights[np.arange(len(rows)), rows.argmax(axis=1)] += share
        if share and lagging:
            weights -= self.lag / stages
            weights[rows.mean(axis=1).argmax()] += self.lag * len(rows) / stages
        return weights.ravel()

    def step_ns(self, times: Floats, deferred: Floats, update: Floats) -> Floats:
        """Step times [...] by the formula that this module begins with, nanoseconds.

        Parameters
        ----------
        times : array [..., P]
            Time for a microbatch of every place.
        deferred : array [...]
            Time that the schedule takes out of the ramp.
        update : array [..., S]
            Time once a step of every stage.
        """
        paces = (self.microbatches - self.ramp) * self.pace(times)
        ramp = self.ramp * (times.sum(axis=-1) - deferred)
        return np.asarray(paces + ramp + self.sent_ns + update.max(axis=-1))


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
        Bytes of the stage with the least room left.
    """

    chunks: tuple[tuple[tuple[str, int], ...], ...]
    step_ns: float
    memory_bytes: int
    bound_ns: float = 0.0


@lru_cache(maxsize=4096)
def lifetime_counts(pipeline: Pipeline) -> tuple[Lifetimes, ...]:
    """Microbatches alive of every position when its stage keeps most, by lifetime."""
    counts: list[Lifetimes] = [(0, 0, 0)] * pipeline.positions
    positions: list[list[int]] = [[] for _ in range(pipeline.stages)]
    for position in range(pipeline.positions):
        positions[pipeline.stage_of(position)].append(position)
    for on, moments in zip(positions, fullest_moments(pipeline), strict=True):
        for position, (first, second, third) in zip(on, _usual(moments).tolist(), strict=True):
            counts[position] = first, second, third
    return tuple(counts)


def _usual(moments: Ints) -> Ints:
    """Moment [chunks, 3] of these for which a stage is divided.

    It is the most even of those at which nearly most is kept, so that little is won by moving
    blocks to a chunk that keeps little then, and much at another moment. Its chunks have an order,
    each keeping no less of anything than the one before.
    """
    weights = moments @ USUAL_WEIGHTS
    kept_weights = weights.sum(axis=1)
    ranked = np.take_along_axis(moments, weights.argsort(axis=1)[:, :, None], axis=1)
    ordered = (np.diff(ranked, axis=1) >= 0).all(axis=(1, 2))
    share = weights.max(axis=1) / np.maximum(kept_weights, 1)
    rank = np.lexsort(
        (kept_weights, -share, kept_weights >= (1 - UNEVEN) * kept_weights.max(), ordered)
    )
    usual: Ints = moments[rank[-1]]
    return usual


def fullest_moments(pipeline: Pipeline) -> list[Ints]:
    """Versions alive at the fullest moments of every stage [K, chunks, 3].

    Where both gradients are made together, the first two lifetimes are one.
    """
    shape = pipeline.stages, pipeline.interleave, pipeline.microbatches
    told_apart = np.arange(3) < pipeline.lifetimes
    return [moments * told_apart for moments in pipeline.record.moments(*shape)]


def inflight_counts(pipeline: Pipeline) -> tuple[int, ...]:
    """Microbatches that every position keeps from forward to input gradients at that moment."""
    return tuple(first for first, _, _ in lifetime_counts(pipeline))


def fewest(counts: Iterable[Lifetimes]) -> Lifetimes:
    """Least of every lifetime's counts."""
    return tuple(map(min, zip(*counts, strict=True)))


def beyond(counts: Lifetimes, least: Lifetimes) -> Lifetimes:
    """Excess of each lifetime's count over the least."""
    return tuple(a - b for a, b in zip(counts, least, strict=True))


def dot(some: Lifetimes, others: Lifetimes) -> int:
    """Sum of the products of three numbers with three others."""
    return some[0] * others[0] + some[1] * others[1] + some[2] * others[2]


def deferred_ns(figures: VariantFigures, pipeline: Pipeline) -> float:
    """Time of a block that a schedule takes out of the ramp; the slowest stage has no ramp.

    Parameters
    ----------
    figures : VariantFigures
        Times of the block per microbatch, nanoseconds.
    pipeline : Pipeline
        Schedule and stages; 0 where the schedule does not defer weight gradients.

    Returns
    -------
    float
        Nanoseconds per microbatch: at most the block's own time.

    Notes
    -----
    Qi et al., "Zero bubble pipeline parallelism", 2023, section 2.2.
    """
    if not pipeline.defers_weight_gradients:
        return 0.0
    others = 1 - 1 / pipeline.stages
    return min(2 * figures.deferrable_ns * others, float(figures.microbatch_ns))


def step_time_ns(
    chunks: tuple[tuple[tuple[str, int], ...], ...], runs: tuple[BlockRun, ...], pipeline: Pipeline
) -> float:
    """Predicted step time of a division, nanoseconds, by the formula that this module begins with.

    Parameters
    ----------
    chunks : tuple of tuple of (str, int)
        Per position, block and number of its variant, as `Division.chunks`.
    runs : tuple of BlockRun
        Figures of the variants of every block, on each kind of device.
    pipeline : Pipeline
        Schedule, each stage's kind of device, and `sent_ns` for what stages send.
    """
    run_of = {block: run for run in runs for block in run.blocks}
    times = [0] * (pipeline.stages * pipeline.rows)
    update = [0] * pipeline.stages
    deferred = 0.0
    for position, chunk in enumerate(chunks):
        stage, place = pipeline.stage_of(position), pipeline.place_of(position)
        for block, variant in chunk:
            figures = run_of[block].on(pipeline.kinds[stage])[variant]
            times[place] += figures.microbatch_ns
            update[stage] += figures.step_ns
            deferred += deferred_ns(figures, pipeline)
    return float(pipeline.step_ns(np.array(times, float), np.array(deferred), np.array(update)))


def peak_bytes(
    chunks: tuple[tuple[tuple[str, int], ...], ...], runs: tuple[BlockRun, ...], pipeline: Pipeline
) -> tuple[int, ...]:
    """Bytes of every stage of a division when it keeps most, whichever moment that is.

    `stage_bytes` counts one moment for all divisions, so that it is linear in their blocks.

    Parameters
    ----------
    chunks : tuple of tuple of (str, int)
        Per position, block and number of its variant, as `Division.chunks`.
    runs : tuple of BlockRun
        Figures of the variants of every block, on each kind of device.
    pipeline : Pipeline
        Schedule, which says what is alive at a time, and each stage's kind of device.

    Returns
    -------
    tuple of int
        Per stage, of one device: persistent, in flight and the largest section.
    """
    run_of = {block: run for run in runs for block in run.blocks}
    stays, transient = [0] * pipeline.stages, [0] * pipeline.stages
    keeps: list[list[Lifetimes]] = [[] for _ in range(pipeline.stages)]  # of every chunk
    for position, chunk in enumerate(chunks):
        stage = pipeline.stage_of(position)
        figures = [run_of[block].on(pipeline.kinds[stage])[variant] for block, variant in chunk]
        stays[stage] += sum(block_figures.persistent_bytes for block_figures in figures)
        transient[stage] = max(
            [transient[stage], *(block_figures.transient_bytes for block_figures in figures)]
        )
        keeps[stage].append(
            tuple(
                map(sum, zip(*(block_figures.lifetimes for block_figures in figures), strict=True))
            )
        )
    most = [
        int((moments * np.array(stage_keeps)).sum(axis=(1, 2)).max())
        for moments, stage_keeps in zip(fullest_moments(pipeline), keeps, strict=True)
    ]
    return tuple(map(sum, zip(stays, transient, most, strict=True)))


def stage_bytes(
    chunks: tuple[tuple[tuple[str, int], ...], ...], runs: tuple[BlockRun, ...], pipeline: Pipeline
) -> tuple[int, ...]:
    """Bytes of every stage of a division, of one device.

    One moment counts for all divisions, that of `lifetime_counts`: `peak_bytes` has the fullest.

    Parameters
    ----------
    chunks : tuple of tuple of (str, int)
        Per position, block and number of its variant, as `Division.chunks`.
    runs : tuple of BlockRun
        Figures of the variants of every block, on each kind of device.
    pipeline : Pipeline
        Schedule, which says how many microbatches are alive, and each stage's kind of device.
    """
    run_of = {block: run for run in runs for block in run.blocks}
    used, transient = [0] * pipeline.stages, [0] * pipeline.stages
    for position, (chunk, counts) in enumerate(zip(chunks, lifetime_counts(pipeline), strict=True)):
        stage = pipeline.stage_of(position)
        for block, variant in chunk:
            figures = run_of[block].on(pipeline.kinds[stage])[variant]
            used[stage] += figures.bytes_with(counts)
            transient[stage] = max(transient[stage], figures.transient_bytes)
    return tuple(a + b for a, b in zip(used, transient, strict=True))
