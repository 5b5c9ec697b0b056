"""Prices: what a nanosecond or a byte of each block figure is worth, as vectors on a common grid.

Shapes: F block figures, in the order of `template_tables`.
"""

import numpy as np

from millrace.models.arrays import Floats
from millrace.planner.search.blocks.cost_tables import (
    DEFERRABLE,
    INFLIGHT,
    MICROBATCH,
    PERSISTENT,
    STEP,
)
from millrace.planner.search.decomposition.template_tables import FORWARD

# Octaves between neighbours on the grid: where they are near, the bound of either serves the other.
GRIDS = (0.5, 0.25, 0.125)
# Least prices beside that of a microbatch's time (for its time, beside that of all memory), so that
# the faster and the smaller is taken where costs are the same.
TIME_SHARE, STEP_SHARE, DEFERRABLE_SHARE, BYTE_SHARE = 1e-3, 1e-4, 0.02, 1e-3


def with_floors(prices: Floats) -> Floats:
    """Prices [F] raised so that none that counts is zero, where all figures are about one."""
    floored = prices.copy()
    for figure in (MICROBATCH, FORWARD):
        if floored[figure] <= 0:
            floored[figure] = TIME_SHARE * max(floored.max(), 1e-9)
    time = floored[MICROBATCH]
    for figure, share in (
        (STEP, STEP_SHARE),
        (DEFERRABLE, DEFERRABLE_SHARE),
        (PERSISTENT, BYTE_SHARE),
    ):
        floored[figure] = max(floored[figure], share * time)
    floored[INFLIGHT] = max(floored[INFLIGHT], floored[PERSISTENT])
    return floored


def snapped(prices: Floats, grid: float = GRIDS[0]) -> Floats:
    """Prices relative to the first, a nanosecond of microbatch time, each to the nearest on a grid.

    Whatever programs have asked for, near prices become equal, and are asked for once.
    """
    ratios = prices / prices[0]
    positive = ratios > 0
    nearest: Floats = np.zeros_like(ratios)
    nearest[positive] = 2.0 ** (np.round(np.log2(ratios[positive]) / grid) * grid)
    return nearest
