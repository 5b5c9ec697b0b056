"""Mixed devices: the block program of a pipeline whose stages lie on unlike sites.

Every block lies on some stage, but on which is not decided yet. With shares α of the sites' stages
(`Σ α = 1` over the stages), the slowest stage takes at least `Σ_s α_s · time[s]`, so that a block
on a site of share α adds to the step time at least::

    ((m - r) · α + r) · time          r: 1 / chunks a stage, m: microbatches

Of every figure the least over the sites is taken, so that a program's bound stays one whatever
stages its blocks come to lie on. It is tight where a block costs the same on every site.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from millrace.models.arrays import Floats, Ints
from millrace.planner.search.blocks.cost_tables import (
    DEFERRABLE,
    FIGURES,
    MICROBATCH,
    STEP,
    CostTables,
)
from millrace.planner.search.blocks.strategy_costs import StrategyCosts
from millrace.planner.search.stages import Pipeline

TIMES = (MICROBATCH, STEP, DEFERRABLE)
PACE_MIN = 1e-9  # microbatches beyond the ramp: fewer are none


class MixedDeviceCosts:
    """Figures of one space on K rows, each the least over several sites.

    Parameters
    ----------
    parts : sequence of StrategyCosts
        Strategy costs of each site; rows and space are equal.
    pipelines : sequence of Pipeline
        Pipeline of every row, with `kind_of_stage` counting the sites.
    """

    def __init__(self, parts: Sequence[StrategyCosts], pipelines: Sequence[Pipeline]) -> None:
        self.parts = tuple(parts)
        self.pipelines = tuple(pipelines)
        first = self.parts[0]
        self.space, self.tensors, self.legal = first.space, first.tensors, first.legal
        self.scales = _scales(self.parts, self.pipelines)
        self.figures = [
            _least([_scaled(part.figures[index], s) for part, s in self._pairs()])
            for index in range(len(self.space.choices))
        ]

    def _pairs(self) -> list[tuple[StrategyCosts, Floats]]:
        return list(zip(self.parts, self.scales, strict=True))

    def take(self, rows: Ints) -> "MixedDeviceCosts":
        """Blend of some of the rows."""
        taken = [part.take(rows) for part in self.parts]
        return MixedDeviceCosts(taken, [self.pipelines[row] for row in rows])

    def tables(self) -> tuple[CostTables, list[CostTables]]:
        """Choices and edges of all rows, and those of each site."""
        tables_by_site = [part.tables() for part in self.parts]
        choices = tuple(
            replace(choice, figures=figures)
            for choice, figures in zip(tables_by_site[0].choices, self.figures, strict=True)
        )
        edges = tuple(
            replace(
                together[0],
                duration_ns=_least(
                    [
                        np.floor(edge.duration_ns * scale[edge.figure])
                        for edge, scale in zip(together, self.scales, strict=True)
                    ]
                ),
            )
            for together in zip(*(site_tables.edges for site_tables in tables_by_site), strict=True)
        )
        return CostTables(choices=choices, edges=edges), tables_by_site


class Least(NamedTuple):
    """Least time of a choice's options that divide, where all times are in one column: [K]."""

    column: int
    time: Floats


def least_times(strategy_costs: StrategyCosts | MixedDeviceCosts) -> list[Least | None]:
    """Least time of every choice; None where options have times in several columns."""
    least: list[Least | None] = []
    for figures, legal in zip(strategy_costs.figures, strategy_costs.legal, strict=True):
        columns = [column for column in TIMES if figures[column].any()] or [MICROBATCH]
        if len(columns) > 1:
            least.append(None)
        else:
            time = np.where(legal, figures[columns[0]], np.inf).min(axis=0)
            least.append(Least(columns[0], time))
    return least


def least_block_times(strategy_costs: StrategyCosts | MixedDeviceCosts) -> Floats:
    """Least times [T, K] of one block of every template for a microbatch, without boxing.

    Parameters
    ----------
    strategy_costs : StrategyCosts or MixedDeviceCosts
        Figures of every option on K rows.
    """
    space = strategy_costs.space
    totals = np.zeros((len(space.templates), strategy_costs.legal[0].shape[1]))
    for home, choice, figures, legal in zip(
        space.homes, space.choices, strategy_costs.figures, strategy_costs.legal, strict=True
    ):
        time = figures[MICROBATCH] + figures[DEFERRABLE]
        least = np.where(legal, time, np.inf).min(axis=0)
        totals[home] += choice.count * np.where(np.isinf(least), 0, least)
    times: Floats = totals / space.block_counts[:, None]
    return times


def cheapest(
    strategy_costs: StrategyCosts | MixedDeviceCosts,
    least: Sequence[Least | None],
    rows: Ints,
    prices: Floats,
) -> Floats:
    """Sum of every choice at its cheapest option, of some rows at their prices [F, rows].

    Infinite where an op has no legal option.

    Parameters
    ----------
    strategy_costs : StrategyCosts or MixedDeviceCosts
        Figures of every option on K rows.
    least : sequence of (Least or None)
        Entry of each choice, as `least_times` gives them for these costs; None: its options are
        compared at the prices.
    rows : int array (R,)
        Rows of the costs.
    prices : float array (F, R)
        Price of one unit of each figure, in the order of `FIGURES`; those of bytes are not read.

    Returns
    -------
    float array (R,)
        Figures at the prices, without boxing: a lower bound of each program's cost.
    """
    total = np.zeros(len(rows))
    for index, (choice, least_time) in enumerate(
        zip(strategy_costs.space.choices, least, strict=True)
    ):
        if least_time is not None:
            time = least_time.time[rows]
            cost = np.where(np.isinf(time), np.inf, time * prices[least_time.column])
        else:
            figures, legal = strategy_costs.figures[index], strategy_costs.legal[index]
            costs = np.zeros((choice.size, len(rows)))
            for column in TIMES:
                costs += figures[column].take(rows, axis=1) * prices[column]
            costs[~legal.take(rows, axis=1)] = np.inf
            cost = costs.min(axis=0)
        total += choice.count * cost
    return total


def _scaled(figures: Ints, scale: Floats) -> Floats:
    """Figures [F, O, K] times a scale [F, K]."""
    scaled: Floats = np.floor(figures * scale[:, None, :])
    return scaled


def _least(alternatives: Sequence[Floats]) -> Ints:
    least: Ints = np.minimum.reduce(alternatives).astype(np.int64)
    return least


def _scales(parts: Sequence[StrategyCosts], pipelines: Sequence[Pipeline]) -> list[Floats]:
    """Weight of each site's figures in a program of equal stages: [F, K] per site."""
    stages = np.array([pipeline.stages for pipeline in pipelines], np.float64)
    on = np.array(
        [[pipeline.kinds.count(site) for pipeline in pipelines] for site in range(len(parts))],
        float,
    )
    m = np.array([pipeline.microbatches for pipeline in pipelines], np.float64)
    r = np.array([pipeline.ramp for pipeline in pipelines])
    even_weight = m - r + r * stages  # the weight of a time where all stages are alike
    filled = (
        np.array([2 * (pipeline.defers_weight_gradients) for pipeline in pipelines])
        * r
        * (stages - 1)
    )
    later = np.maximum(even_weight - filled, 0.0)  # the weight of a time which fills the ramp
    times = _times(parts, (MICROBATCH, DEFERRABLE))
    # A ramp counts without what gradients of weights fill of it, in shares of a stage's time.
    ramp = r - filled / stages * (_times(parts, (DEFERRABLE,)) / times).mean(axis=0)
    shares = _shares(1 / times, on, ramp, m - r)
    speed = 1 / _times(parts, (STEP,))
    updates = speed / (on * speed).sum(axis=0)
    scales = []
    for share, update in zip(shares, updates, strict=True):
        scale = np.ones((len(FIGURES), len(pipelines)))
        weight = ((m - r) * share + r) * stages
        scale[MICROBATCH] = weight / even_weight
        scale[DEFERRABLE] = np.maximum(weight - filled, 0.0) / np.maximum(later, 1e-9)
        scale[STEP] = update * stages
        scales.append(scale)
    return scales


def _shares(speed: Floats, on: Floats, ramp: Floats, pace: Floats) -> Floats:
    """Share α of a stage on each site, at which a block costs the same on every site.

    That is where `(pace · α + ramp) / speed` is equal; a site so slow that its ramps alone cost
    more has none.
    """
    paced = pace > PACE_MIN
    pace = np.maximum(pace, PACE_MIN)  # so that rounding leaves a site that is alone its share
    has = np.ones(speed.shape, np.bool_)
    while True:
        counted_stages = on * has
        level = (pace + (counted_stages * ramp).sum(axis=0)) / (counted_stages * speed).sum(axis=0)
        shares: Floats = np.where(has, (level * speed - ramp) / pace, 0.0)
        if (shares >= 0).all():
            # Without a pace any shares will do.
            return np.where(paced, shares, 1 / on.sum(axis=0))
        has &= shares >= 0


def _times(parts: Sequence[StrategyCosts], columns: tuple[int, ...]) -> Floats:
    """Time of all work at the cheapest options of each site, one at least: [sites, K]."""
    times = []
    for part in parts:
        total = np.zeros(part.rows)
        for choice, figures, legal in zip(
            part.space.choices, part.figures, part.legal, strict=True
        ):
            cost = figures[list(columns)].sum(axis=0)
            least = np.where(legal, cost, np.iinfo(np.int64).max).min(axis=0)
            total += choice.count * np.where(legal.any(axis=0), least, 0)
        times.append(np.maximum(total, 1.0))
    return np.array(times)
