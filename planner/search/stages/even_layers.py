"""Even layers: one variant for all blocks of a kind, in chunks of as many layers each.

The first block (an embedding) lies on the first chunk and the last one (a loss) on the last, with
modules that predict further tokens, whatever their layers; what lies between counts as layers. Of
every chunk the first layers, as many on each, may be recomputed.

Shapes: C ways to deal out, K chunks, S stages, P places, D kinds of device, T templates, V
variants, F columns of figures.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from millrace.models.arrays import Floats, Ints
from millrace.planner.errors import InfeasibleError
from millrace.planner.frameworks.capabilities import Capabilities, divided_blocks, layer_counts
from millrace.planner.search.request import MemoryLimitError
from millrace.planner.search.stages.critical_path import PassTimes, path_cut
from millrace.planner.search.stages.measured_steps import moving_ns, table_hops_ns
from millrace.planner.search.stages.shape import (
    BlockRun,
    Division,
    Pipeline,
    VariantFigures,
    fullest_moments,
)

TIME, DEFERRED, UPDATE, STAYS, TRANSIENT = range(5)
KEEPS = slice(5, 8)  # bytes of each lifetime
FORWARD = 8  # part of the time
COLUMNS = 9


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Slopes:
    """Least step time, and least bytes of one stage, as sums over the figures of blocks.

    With figures F [figures of `cost_tables.FIGURES`, T] of one block of every template, a step
    takes at least `sent_ns + Σ time · F`, and the stage at least `Σ memory · F` bytes.
    """

    sent_ns: float
    time: Floats
    memory: Floats
    stage: int


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class EvenFigures:
    """Figures of divisions: step times [C, V], bytes [C, V, S], and layers recomputed [C, V]."""

    step_ns: Floats
    stage_bytes: Ints
    recomputed: Ints


class EvenLayers:
    """Even divisions of a model over the chunks of a pipeline.

    Parameters
    ----------
    blocks : mapping
        Template of every block, in the order of the model.
    pipeline : Pipeline
    rule : str
        How layers are dealt out, as `Capabilities.layers`.
    """

    def __init__(self, blocks: Mapping[str, str], pipeline: Pipeline, rule: str) -> None:
        self.pipeline = pipeline
        self.blocks = list(blocks)
        self.templates = tuple(dict.fromkeys(blocks.values()))
        places = {template: place for place, template in enumerate(self.templates)}
        kinds = np.array([places[template] for template in blocks.values()])
        divided = divided_blocks(self.blocks)
        chunks = pipeline.positions
        self.ways = layer_counts(divided - 2, chunks, rule, len(blocks) - divided)
        if not self.ways:
            ends = " but for the first and the last" if rule == "ends" else ""
            raise InfeasibleError(
                f"{divided - 2} layers do not make {chunks} chunks that are equal{ends}"
            )
        self.bounds = np.zeros((len(self.ways), chunks + 1), np.int64)
        self.bounds[:, 1:] = 1 + np.cumsum(self.ways, axis=1)
        self.bounds[:, -1] = len(blocks)
        before = np.zeros((len(blocks) + 1, len(self.templates)), np.int64)
        before[1:] = np.cumsum(np.eye(len(self.templates), dtype=np.int64)[kinds], axis=0)
        self._before = before  # blocks of every template before each block [blocks + 1, T]
        self.counts = np.diff(before[self.bounds], axis=1)  # [C, K, T]
        # Layers of a chunk begin after the first block of the model, and end before the last.
        self._first = np.maximum(self.bounds[:, :-1], 1)
        self._last = np.minimum(self.bounds[:, 1:], len(blocks) - 1)
        self.longest = int((self._last - self._first).max())
        self.homes = np.array([pipeline.stage_of(k) for k in range(chunks)])
        self._kinds = np.array(pipeline.kinds)[self.homes]  # of every chunk's device
        self._on_stage = np.eye(pipeline.stages, dtype=np.int64)[self.homes]  # [K, S]
        self._places = np.array([pipeline.place_of(k) for k in range(chunks)])
        self._moments = fullest_moments(pipeline)

    def again(self, layers: Ints) -> Ints:
        """Blocks [C, V, K, T] among the first so many layers [C, V] of every chunk."""
        end = np.minimum(self._first[:, None] + layers[:, :, None], self._last[:, None])
        counts: Ints = self._before[end] - self._before[self._first][:, None]
        return counts

    def figures(
        self, plain: Ints, again: Ints | None = None, layers: Ints | None = None
    ) -> EvenFigures:
        """Figures of every way in every variant.

        Parameters
        ----------
        plain : array [D, V, T, F]
            Figures of a block on every kind of device, as `variant_rows` gives them.
        again : array [D, V, T, F], optional
            The same with recomputation.
        layers : array [C, V], optional
            Layers of each chunk that are recomputed.
        """
        on_chunks = plain[self._kinds]
        deferred_ns = np.einsum("ckt,kvt->cv", self.counts, self._deferred_ns(on_chunks))
        if again is None or layers is None:
            layers = np.zeros((len(self.ways), plain.shape[1]), np.int64)
            sums = np.einsum("ckt,kvtf->cvkf", self.counts, on_chunks)
        else:
            some, others = self.again(layers), again[self._kinds]
            sums = np.einsum("cvkt,kvtf->cvkf", self.counts[:, None] - some, on_chunks)
            sums += np.einsum("cvkt,kvtf->cvkf", some, others)
            more_ns = self._deferred_ns(others) - self._deferred_ns(on_chunks)
            deferred_ns += np.einsum("cvkt,kvt->cv", some, more_ns)
        update = sums[..., UPDATE] @ self._on_stage
        return EvenFigures(
            step_ns=self.pipeline.step_ns(self._place_sums(sums[..., TIME]), deferred_ns, update),
            stage_bytes=self._stage_bytes(sums) + self._transient_bytes(plain, again, layers),
            recomputed=layers,
        )

    def least_step_ns(self, block_times: Floats) -> float:
        """Least step of any way in which blocks take such times [D, T], on each kind of device."""
        block = np.zeros((len(block_times), 1, len(self.templates), COLUMNS), np.int64)
        block[..., TIME] = block[..., DEFERRED] = block_times[:, None]  # no more can be deferred
        return float(self.figures(block).step_ns.min())

    def _deferred_ns(self, blocks: Ints) -> Floats:
        """Time of blocks [...] that the schedule takes out of the ramp, as `shape.deferred_ns`."""
        if not self.pipeline.defers_weight_gradients:
            return np.zeros(blocks.shape[:-1])
        others = 1 - 1 / self.pipeline.stages
        deferred: Floats = np.minimum(2 * others * blocks[..., DEFERRED], blocks[..., TIME])
        return deferred

    def _place_sums(self, times: Ints) -> Floats:
        """Times [..., P] of places, from those of chunks [..., K]."""
        places = np.zeros((*times.shape[:-1], int(self._places.max()) + 1))
        for chunk, place in enumerate(self._places.tolist()):
            places[..., place] += times[..., chunk]
        return places

    def _stage_bytes(self, sums: Ints) -> Ints:
        """Bytes [..., S] that stages keep at their fullest moments."""
        kept_bytes = np.zeros((*sums.shape[:-2], self.pipeline.stages), np.int64)
        for stage, moments in enumerate(self._moments):
            on = np.flatnonzero(self.homes == stage)
            alive = np.einsum("mkl,...kl->...m", moments, sums[..., on, KEEPS])
            kept_bytes[..., stage] = sums[..., on, STAYS].sum(axis=-1) + alive.max(axis=-1)
        return kept_bytes

    def _transient_bytes(self, plain: Ints, again: Ints | None, layers: Ints) -> Ints:
        """Bytes [C, V, S] of the largest section of every stage's blocks."""
        largest = plain[..., TRANSIENT]  # [D, V, T]
        if again is not None and layers.any():
            largest = np.maximum(largest, again[..., TRANSIENT])
        on_stages = largest[list(self.pipeline.kinds)].swapaxes(0, 1)  # [V, S, T]
        has = np.einsum("ckt,ks->cst", self.counts, self._on_stage) > 0
        sections: Ints = (has[:, None] * on_stages[None]).max(axis=-1)
        return sections

    def fitted(self, plain: Ints, again: Ints | None, limits: Ints) -> EvenFigures:
        """Figures with as few layers recomputed as fit limits [S], where that is of use.

        Parameters
        ----------
        plain : array [D, V, T, F]
        again : array [D, V, T, F], optional
            None: layers cannot be recomputed apart from others.
        limits : array [S]
        """
        figures = self.figures(plain)
        if again is None:
            return figures
        short = (figures.stage_bytes > limits).any(axis=-1)
        if not short.any():
            return figures
        low = np.zeros(short.shape, np.int64)  # too few
        high = np.where(short, self.longest, 0)
        while (high - low > 1).any():
            middle = np.where(short, (low + high) // 2, 0)
            over = (self.figures(plain, again, middle).stage_bytes > limits).any(axis=-1)
            low, high = np.where(over & short, middle, low), np.where(over, high, middle)
        return self.figures(plain, again, high)

    def slopes(self, way: int, block: Ints, others: float = 0.0) -> Slopes:
        """Slopes of a way's step, and of its fullest stage, where blocks have figures [T, F].

        All devices are of one kind. Every stage besides counts with a weight of `others`, in all,
        so that no figure is free: a stage takes at most the longest one's time, and all have the
        same limit.
        """
        pipeline, counts = self.pipeline, self.counts[way]
        stages = pipeline.stages
        sums = np.einsum("kt,tf->kf", counts, block)
        times = self._place_sums(sums[:, TIME])
        beyond = pipeline.microbatches - pipeline.ramp
        for lagging in (True, False):
            weights = pipeline.pace_slope(times, lagging=lagging)
            time = (beyond * weights[self._places] + pipeline.ramp) @ counts
            if (time >= 0).all():
                break
        slope = np.zeros((5, len(self.templates)))  # cost_tables.FIGURES
        slope[0] = slope[4] = time
        if pipeline.defers_weight_gradients:
            blocks = counts.sum(axis=0)
            later = time - 2 * (1 - 1 / stages) * pipeline.ramp * blocks
            # Where that is below zero: no more is deferred than all of a block's time.
            slope[0] = np.where(later < 0, time - pipeline.ramp * blocks, time)
            slope[4] = np.where(later < 0, slope[0], later)
        update = (sums[:, UPDATE] @ self._on_stage).argmax()
        shares = np.full(stages, others / stages)
        shares[update] += 1 - others
        slope[1] = shares[self.homes] @ counts
        sent_ns = float(pipeline.sent_ns)
        if pipeline.in_turn and (weights == 1 / stages).all():
            sent_ns += beyond * pipeline.sent_ns / stages
        stage = int(self._stage_bytes(sums).argmax())
        shares = np.full(stages, others / stages)
        shares[stage] += 1 - others
        memory = np.zeros_like(slope)
        for home in np.flatnonzero(shares).tolist():
            on = np.flatnonzero(self.homes == home)
            moments = self._moments[home]
            alive = np.einsum("mkl,kl->m", moments, sums[on, KEEPS])
            memory[2] += shares[home] * counts[on].sum(axis=0)
            memory[3] += shares[home] * (moments[alive.argmax(), :, 0] @ counts[on])
        return Slopes(sent_ns=sent_ns, time=slope, memory=memory, stage=stage)

    def path_slopes(
        self, slopes: Slopes, way: int, block: Ints, least_ns: Floats, overlap: float
    ) -> Slopes:
        """Slopes whose time is that of the longest path of the schedule's order.

        A chunk's time counts as often as both its passes lie on the path, and what slows them
        beside transfers as it does for chunks of the least time.

        Parameters
        ----------
        slopes : Slopes
            Those of the formula, whose memory and update stay.
        way : int
        block : array [T, F]
            Figures of a block at which the path is longest.
        least_ns : array [T]
            Least time of a block of every template.
        overlap : float
            Speed of what is computed beside moving data.
        """
        pipeline, counts = self.pipeline, self.counts[way]
        sums = np.einsum("kt,tf->kf", counts, block)
        forward, weight = sums[:, FORWARD], sums[:, DEFERRED]
        hops_ns = table_hops_ns(pipeline)
        backward = np.maximum(sums[:, TIME] - forward - weight, 0)
        slowed = np.array([forward, backward]) > 0  # an embedding makes no gradient of its input
        slower = (1 - overlap) * moving_ns(sums[:, TIME], hops_ns) * slowed
        none = np.zeros(pipeline.positions)
        times = PassTimes(
            passes=np.array([forward + slower[0], backward + slower[1], weight]),
            hops=hops_ns[0],
            begins=none,
            ends=none,
        )
        schedule = pipeline.schedule, pipeline.stages, pipeline.interleave, pipeline.microbatches
        cut = path_cut(*schedule, times)
        time = slopes.time.copy()
        time[0] = time[4] = cut.counts[:2].min(axis=0) @ counts
        if pipeline.defers_weight_gradients:
            time[4] = cut.counts[2] @ counts
        slower = (1 - overlap) * moving_ns(counts @ least_ns, hops_ns) * slowed
        sent_ns = cut.hops @ times.hops + (cut.counts[:2] * slower).sum()
        return replace(slopes, time=time, sent_ns=float(sent_ns))

    def chunks(
        self, way: int, plain: int, again: int | None = None, layers: int = 0
    ) -> tuple[tuple[tuple[str, int], ...], ...]:
        """Blocks of every chunk with the number of their variant, as `Division.chunks`."""
        chunks = []
        bounds = self.bounds[way].tolist()
        for begin, end, first, last in zip(
            bounds, bounds[1:], self._first[way].tolist(), self._last[way].tolist(), strict=False
        ):
            some = range(first, min(first + layers, last)) if again is not None else ()
            chunks.append(
                tuple(
                    (self.blocks[b], again if again is not None and b in some else plain)
                    for b in range(begin, end)
                )
            )
        return tuple(chunks)


def variant_rows(variants: Sequence[VariantFigures]) -> Ints:
    """Figures [T, F] of a block of every template, from those of its variant."""
    rows = [
        (
            figures.microbatch_ns,
            figures.deferrable_ns,
            figures.step_ns,
            figures.persistent_bytes,
            figures.transient_bytes,
            *figures.lifetimes,
            figures.forward_ns,
        )
        for figures in variants
    ]
    return np.array(rows, np.int64)


def divide_evenly(
    runs: tuple[BlockRun, ...],
    pipeline: Pipeline,
    limit_bytes: tuple[int, ...],
    transient_bytes: int,
    allowed: Capabilities,
    recomputed: Mapping[int, int],
) -> Division:
    """Fastest division that fits, all blocks in the variants of one number.

    Where that does not fit, the first layers of every chunk, as few as do, are recomputed.

    Parameters
    ----------
    runs : tuple of BlockRun
        In the order of the model; variants of one number are those of one solution.
    pipeline : Pipeline
    limit_bytes : tuple of int
        Memory of one device, of every kind.
    transient_bytes : int
        Bytes that every stage needs besides.
    allowed : Capabilities
        How a framework deals out layers.
    recomputed : mapping
        Numbers of the same variants with recomputation, where some layers may have it.

    Raises
    ------
    InfeasibleError
        The layers cannot be dealt out so.
    MemoryLimitError
        No division fits; holds the bytes of the fullest stage of the one that needs least.
    """
    blocks = {block: run.template for run in runs for block in run.blocks}
    even = EvenLayers(blocks, pipeline, allowed.layers)
    of_template = {run.template: run for run in runs}
    variants = range(min(len(run.variants) for run in runs))
    rows = np.array(
        [
            [
                variant_rows([of_template[name].on(kind)[v] for name in even.templates])
                for v in variants
            ]
            for kind in range(max(pipeline.kinds) + 1)
        ]
    )
    limits = np.array([limit_bytes[kind] - transient_bytes for kind in pipeline.kinds])
    best: Division | None = None
    nearest: tuple[int, int, int] | None = None  # bytes above the limit, the limit and the stage
    for some in (True, False):
        numbers = [v for v in variants if (v in recomputed) == some]
        if not numbers:
            continue
        others = rows[:, [recomputed[v] for v in numbers]] if some else None
        figures = even.fitted(rows[:, numbers], others, limits)
        over = figures.stage_bytes - limits
        fullest = over.argmax(axis=-1)
        most = over.max(axis=-1)
        fits = most <= 0
        way, place = np.unravel_index(most.argmin(), most.shape)
        stage = int(fullest[way, place])
        least = int(most[way, place]), int(limits[stage]), stage
        nearest = min(nearest or least, least)
        step_ns = np.where(fits, figures.step_ns, np.inf)
        way, place = np.unravel_index(step_ns.argmin(), step_ns.shape)
        if not fits.any() or (best is not None and best.step_ns <= step_ns[way, place]):
            continue
        stage = int(fullest[way, place])
        variant = numbers[int(place)]
        chunks = even.chunks(
            int(way), variant, recomputed.get(variant), int(figures.recomputed[way, place])
        )
        best = Division(
            chunks=chunks,
            step_ns=float(step_ns[way, place]),
            memory_bytes=int(limits[stage] + most[way, place]) + transient_bytes,
            bound_ns=float(step_ns[way, place]),
        )
    if best is not None:
        return best
    assert nearest is not None, "there is a variant, and a way"
    excess, limit, stage = nearest
    raise MemoryLimitError(limit + excess + transient_bytes, limit + transient_bytes, stage)
