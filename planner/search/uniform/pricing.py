"""Pricing: block programs of one shape and mode, and what they prove of pipelines of such blocks.

A block program at prices P gives a *column* (a variant with its figures) and a *cut*: the figures F
of any variant obey ``P · F ≥ least``. A pipeline of even layers takes at least ``sent + a · F`` a
step, and ``b · F`` bytes on a stage, which has no more than its limit, so that for each price μ of
a byte (a Lagrange multiplier)::

    step ≥ sent + (a + μ b) · F - μ limit ≥ sent + r least + (a + μ b - r P) · F - μ limit

with the largest r at which no figure's price is above what is wanted; of what is left over, time
counts for at least as much as blocks take without boxing. A cut that was asked at a + μ b has r = 1
and nothing left over; one that another candidate of the same shape asked for proves a little less.

Shapes: F figures of `cost_tables.FIGURES`, T templates, I cuts, M multipliers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from millrace.models.arrays import Floats
from millrace.planner.search.blocks.cost_tables import (
    DEFERRABLE,
    INFLIGHT,
    MICROBATCH,
    PERSISTENT,
)
from millrace.planner.search.blocks.solver import Solution
from millrace.planner.search.stages.even_layers import Slopes

BYTES = (PERSISTENT, INFLIGHT)


@dataclass(slots=True)
class BlockPool:
    """Cuts and columns of one shape in one mode, as far as asked.

    Attributes
    ----------
    prices : list of array [F, T]
        Nanoseconds that one unit of a figure of one block of each template is worth.
    least : list of float
        Proven least cost at these prices.
    columns : dict
        Solutions that were read off, by their options.
    """

    prices: list[Floats] = field(default_factory=list)
    least: list[float] = field(default_factory=list)
    columns: dict[tuple[int, ...], Solution] = field(default_factory=dict)

    def add(self, prices: Floats, answer: Solution | float) -> None:
        """Add the answer of a program: a solution with its bound, or the bound alone."""
        if isinstance(answer, float):
            bound = answer
        else:
            bound = answer.bound
            self.columns.setdefault(answer.options, answer)
        if np.isfinite(bound):
            self.prices.append(prices)
            self.least.append(max(bound, 0.0))

    def multipliers(self, slopes: Slopes, main: int) -> list[float]:
        """Multipliers at which each cut proves most of a pipeline, by its `main` template."""
        multipliers = []
        for prices in self.prices:
            if not prices[BYTES, main].any():
                continue  # of time alone
            share = slopes.time[MICROBATCH, main] / prices[MICROBATCH, main]
            multipliers.append(
                max(
                    float(share * prices[figure, main] / slopes.memory[figure, main])
                    for figure in BYTES
                    if slopes.memory[figure, main] > 0
                )
            )
        return multipliers

    def proven_ns(
        self,
        slopes: Slopes,
        multipliers: Floats,
        limit_bytes: float,
        least_ns: Floats,
    ) -> Floats:
        """Least step times [M] that the cuts prove at multipliers [M]; zero where there are none.

        Parameters
        ----------
        slopes : Slopes
            Of the pipeline.
        multipliers : array [M]
            Nanoseconds that a byte is worth.
        limit_bytes : float
            Of the stage that the slopes are of.
        least_ns : array [T]
            Time of one block of every template without boxing.
        """
        if not self.prices:
            return np.zeros(len(multipliers))
        prices, least = np.array(self.prices), np.array(self.least)
        wanted = slopes.time + multipliers[:, None, None] * slopes.memory
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.where(prices > 0, wanted[:, None] / prices, np.inf)
        share = ratios.min(axis=(-1, -2))  # [M, I]
        left = wanted[:, None] - share[..., None, None] * prices
        spare_ns = np.maximum(np.minimum(left[..., MICROBATCH, :], left[..., DEFERRABLE, :]), 0)
        proven = share * least + spare_ns @ least_ns
        best: Floats = proven.max(axis=1) + slopes.sent_ns - multipliers * limit_bytes
        return best


def best_multiplier(steps: Floats, over: Floats) -> tuple[float, float]:
    """Multiplier at which the cheapest column costs most, and that cost.

    Parameters
    ----------
    steps : array [V]
        Step times of columns, nanoseconds.
    over : array [V]
        Bytes of each beyond the limit; below zero where there is room.

    Returns
    -------
    multiplier, cost_ns : float
        Infinite where no column fits: any price raises the cost.

    Examples
    --------
    >>> best_multiplier(np.array([10.0, 14.0]), np.array([2.0, -2.0]))
    (1.0, 12.0)
    """
    fits = over <= 0
    if not fits.any():
        return float("inf"), float("inf")
    short, room = np.flatnonzero(~fits), np.flatnonzero(fits)
    slower = steps[room][None] - steps[short][:, None]
    crossings = np.maximum(slower, 0) / (over[short][:, None] - over[room][None])
    prices = np.concatenate([[0.0], crossings.ravel()])
    costs = (steps[None] + prices[:, None] * over[None]).min(axis=1)
    best = int(costs.argmax())
    return float(prices[best]), float(costs[best])


def joined(bounds: Sequence[Floats]) -> float:
    """Bound of plans that mix modes: at each multiplier the least of any, and of these the most."""
    return float(np.minimum.reduce(bounds).max())
