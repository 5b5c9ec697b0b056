"""Enumeration: the exact division over every layout, with no more rows than it takes to prove it.

Rows that take longer than a cap are left out at first. What they could gain is bounded by the cap
itself; where that is not enough, the best division found says how far the cap has to go.

Shapes: V variants of a block, M make-ups of a stage; a figure of every block is [blocks].
"""

from collections.abc import Callable

import numpy as np

from millrace.models.arrays import Floats, Ints
from millrace.planner.search.stages.caps import CapPrices, CapSet, StageDynamicProgram, near, search
from millrace.planner.search.stages.holdings import DEFERRED, KEEPS, STAYS, TIME, UPDATE
from millrace.planner.search.stages.run_layout import Chunks, Model, RunLayout, TooManyError
from millrace.planner.search.stages.shape import Division, fewest

FIRST_CAP = 1.08  # times what stages would take if blocks could be mixed of variants
NEXT_CAP = 1.15  # times the last, while nothing fits
EVERYTHING = 2**60
UNBEATEN = 2**200  # more than any cost


def least_excess(model: Model, limits: tuple[int, ...]) -> tuple[int, int]:
    """Least bytes by which some stage exceeds its limit, and that stage.

    Negative where everything fits.

    Raises
    ------
    TooManyError
        There are too many layouts.
    """
    excesses = [_excess(layout, model, limits) for layout in model.layouts(len(model.blocks))]
    return min(excesses, default=(EVERYTHING, 0))


def _excess(layout: RunLayout, model: Model, limits: tuple[int, ...]) -> tuple[int, int]:
    makeups = layout.makeup_at(0)
    window, states = makeups.shape
    # Row w of the view is the states before, w units back.
    padded = np.full(window - 1 + states, EVERYTHING)
    stride = padded.strides[0]
    before = np.lib.stride_tricks.as_strided(
        padded[window - 1 :], (window, states), (-stride, stride)
    )
    padded[window - 1] = -EVERYTHING
    history = []
    for stage, limit in enumerate(limits):
        over = np.append(least_bytes(layout, model, stage) - limit, EVERYTHING)[
            layout.makeup_at(stage)
        ]
        both = np.maximum(before, over)
        history.append((over, both))
        padded[window - 1 :] = both.min(axis=0)
    # The fullest stage is found on the way back from the last state.
    least, state, worst = int(padded[-1]), states - 1, 0
    for stage in range(len(limits) - 1, -1, -1):
        over, both = history[stage]
        width = int(both[:, state].argmin())
        worst = stage if over[width, state] == least else worst
        state -= width
    return least, worst


def least_bytes(layout: RunLayout, model: Model, stage: int) -> Ints:
    """Bytes of the smallest holding of every make-up of a stage."""
    kind = model.pipeline.kinds[stage]
    levels = model.transient_levels(kind)
    least: Ints = levels
    for palette, inflight, counts in layout.pieces(stage):
        least = least + counts[:, None] * palette.least_bytes(kind, inflight, levels)
    smallest: Ints = least.min(axis=1)
    return smallest


def divided(model: Model, limits: tuple[int, ...], max_gap: float) -> Division:
    """Division of least step time; there must be one that fits.

    Raises
    ------
    TooManyError
        There are too many layouts, or rows.
    """
    prices = CapPrices.of(model.pipeline)
    floor = _Floor(model)
    best: tuple[int, Callable[[], Chunks]] | None = None
    longest = int(max(floor.time, _typical_ns(model, limits)) * FIRST_CAP)
    while True:
        beat, bound = best[0] if best else UNBEATEN, UNBEATEN
        for layout in model.layouts(floor.window(longest)):
            places = layout.places(longest, limits)
            capped = search(
                StageDynamicProgram(places, layout.states, limits, longest), prices, beat, max_gap
            )
            bound = min(bound, capped.bound)
            if capped.choice is not None:
                beat = capped.choice.cost(prices)
                best = (beat, _later(layout.chunks, places, capped.choice))
        # What takes longer than the cap costs so much at least.
        beyond = floor.cost(prices, longest + 1)
        if best is not None and (longest >= floor.longest or near(beyond, beat, max_gap)):
            if longest < floor.longest:
                bound = min(bound, beyond)
            break
        if longest >= floor.longest:
            raise TooManyError  # what fits mixes more variants than are tried
        if best is None:
            longest = min(int(longest * NEXT_CAP) + 1, floor.longest)
        else:
            longest = min(floor.longest_below(prices, beat), floor.longest)
    return Division(
        chunks=best[1](),
        step_ns=beat / prices.unit,
        memory_bytes=0,
        bound_ns=min(bound, beat) / prices.unit,
    )


def _later(chunks: Callable[..., Chunks], places: object, choice: CapSet) -> Callable[[], Chunks]:
    return lambda: chunks(places, choice.rows)


def _typical_ns(model: Model, limits: tuple[int, ...]) -> int:
    """Estimated time of the slowest stage, if blocks could be mixed of variants to fill memory.

    A stage of n blocks takes n times the least time of a mix of an n-th of its bytes.
    """
    palette = max(
        model.palettes, key=lambda palette: model.blocks.count(model.palettes.index(palette))
    )
    blocks = np.arange(1, len(model.blocks) + 1)
    times = []
    for stage, limit in enumerate(limits):
        figures, sections = palette.kinds[model.pipeline.kinds[stage]]
        size = figures[:, STAYS] + figures[:, KEEPS] @ fewest(
            model.inflight[position] for position in model.stages[stage]
        )
        corners = _hull(size.astype(np.float64), figures[:, TIME].astype(np.float64))
        room = (limit - int(sections.max())) / blocks
        time = np.interp(room, size[corners], figures[corners, TIME])
        times.append(np.where(room < size[corners[0]], np.inf, blocks * time))
    # As many stages and numbers of blocks are faster as blocks find a place.
    slowest_ns = float(np.sort(np.concatenate(times))[len(blocks) - 1])
    return int(slowest_ns) if np.isfinite(slowest_ns) else 0


def _hull(size: Floats, time: Floats) -> list[int]:
    """Corners of the lower left hull of points, by ascending size."""
    corners: list[int] = []
    for point in np.lexsort((time, size)).tolist():
        if corners and time[point] >= time[corners[-1]]:
            continue
        while len(corners) > 1:
            a, b = corners[-2], corners[-1]
            if (time[b] - time[a]) * (size[point] - size[a]) < (time[point] - time[a]) * (
                size[b] - size[a]
            ):
                break
            corners.pop()
        corners.append(point)
    return corners


class _Floor:
    """Least time, ramp and update of every division, block by block."""

    def __init__(self, model: Model) -> None:
        figures = [
            np.concatenate([palette.kinds[kind][0] for kind in model.device_kinds])
            for palette in model.palettes
        ]
        stages = model.pipeline.stages
        least = np.array([variant_figures.min(axis=0) for variant_figures in figures])
        ramps = np.array(
            [
                (variant_figures[:, TIME] * stages - variant_figures[:, DEFERRED]).min()
                for variant_figures in figures
            ]
        )
        blocks = np.array(model.blocks)
        self.times: Ints = least[blocks, TIME]
        self.time = max(-(-int(self.times.sum()) // stages), int(self.times.max()))
        self.ramp = int(ramps[blocks].sum())
        updates = least[blocks, UPDATE]
        self.update = max(-(-int(updates.sum()) // stages), int(updates.max()))
        # No stage takes longer than all blocks in their slowest variants.
        most = np.array([variant_figures[:, TIME].max() for variant_figures in figures])
        self.longest = int(most[blocks].sum())

    def cost(self, prices: CapPrices, time: int) -> int:
        """Least cost of a division whose slowest stage takes so long."""
        return prices.cost(time, self.ramp, self.update)

    def longest_below(self, prices: CapPrices, cost: int) -> int:
        """Longest time of a stage that a division of less cost may have."""
        if not prices.per_time:
            return self.longest
        return (cost - prices.cost(0, self.ramp, self.update, waiting=False)) // prices.per_time

    def window(self, longest: int) -> int:
        """Most neighbours that fit into a time."""
        ends = np.concatenate([[0], np.cumsum(self.times)])
        last = np.searchsorted(ends, ends + longest, side="right") - 1
        return int((last - np.arange(len(ends))).max())
