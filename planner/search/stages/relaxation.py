"""Relaxation of the division: a bound where blocks may be parts of several variants.

For a stage and a make-up, any price of memory bounds the least of a figure within its bytes: the
sum over its blocks of the least figure plus priced bytes, less the price of all there is. Each
figure (time, ramp, update) is bounded by itself, and the stages put together as rows always are.

Shapes: V variants of a piece, M make-ups of a stage, P prices of memory; bounds are [M].
"""

from itertools import combinations

import numpy as np

from millrace.models.arrays import Floats, Ints
from millrace.planner.search.stages.caps import CapPrices, StageDynamicProgram, search
from millrace.planner.search.stages.enumeration import EVERYTHING, UNBEATEN, least_bytes
from millrace.planner.search.stages.holdings import DEFERRED, KEEPS, STAYS, TIME, UPDATE, Holdings
from millrace.planner.search.stages.run_layout import Model, Piece, RunLayout, StagePlace


def relaxed_bound_ns(model: Model, limits: tuple[int, ...]) -> float:
    """Step time that no division undercuts, however many variants a stage mixes."""
    prices = CapPrices.of(model.pipeline)
    bound = UNBEATEN
    for layout in model.layouts(len(model.blocks)):
        places = [_place(layout, model, stage, limit) for stage, limit in enumerate(limits)]
        program = StageDynamicProgram(places, layout.states, limits, EVERYTHING)
        bound = min(bound, search(program, prices, UNBEATEN, 0.0).bound)
    return bound / prices.unit


def _place(layout: RunLayout, model: Model, stage: int, limit: int) -> StagePlace:
    """Place with one row for every make-up: each figure less than that of any row that fits."""
    kind, stages = model.pipeline.kinds[stage], model.pipeline.stages
    pieces = layout.pieces(stage)
    room = limit - int(model.transient_levels(kind).min())
    time, update = (_least(pieces, kind, room, (row,)) for row in (TIME, UPDATE))
    size = least_bytes(layout, model, stage)
    holdings = Holdings(
        makeup=np.arange(len(size)),
        time=time,
        ramp=_least(pieces, kind, room, (TIME, DEFERRED), stages),
        update=update,
        base=size,
        keeps=np.zeros((len(size), 0), np.int64),
        picks=np.zeros((len(size), 0), np.int64),
    )
    return StagePlace(holdings=holdings, makeup_at=layout.makeup_at(stage), inflight=())


def _least(
    pieces: list[Piece], kind: int, room: int, columns: tuple[int, ...], times: int = 1
) -> Ints:
    """Least of a figure over mixtures that fit, for every make-up; whole, and no higher."""
    figures: list[Floats] = []
    sizes: list[Floats] = []
    for palette, inflight, _ in pieces:
        rows = palette.kinds[kind][0][list(palette.numbers)].astype(np.float64)
        less = rows[:, columns[1]] if len(columns) > 1 else 0.0
        figures.append(rows[:, columns[0]] * times - less)
        sizes.append(rows[:, STAYS] + rows[:, KEEPS] @ inflight)
    prices = np.unique(
        [0.0, *(p for x, b in zip(figures, sizes, strict=True) for p in _slopes(x, b))]
    )
    total: Floats = np.zeros((len(prices), len(pieces[0][2])))
    for (_, _, counts), x, size in zip(pieces, figures, sizes, strict=True):
        least = (x + prices[:, None] * size).min(axis=1)
        total += least[:, None] * counts
    bounds = (total - prices[:, None] * room).max(axis=0)
    # Rounding may not lift a bound.
    floors: Ints = np.floor(bounds - 1e-9 * np.abs(bounds)).astype(np.int64)
    return floors


def _slopes(figures: Floats, sizes: Floats) -> list[float]:
    """Prices of a byte at which two variants are equally good."""
    slopes = []
    for a, b in combinations(range(len(figures)), 2):
        more = sizes[b] - sizes[a]
        if more and (figures[a] - figures[b]) / more > 0:
            slopes.append(float((figures[a] - figures[b]) / more))
    return slopes
