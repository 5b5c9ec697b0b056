"""Prices: what a nanosecond or a byte of each block figure is worth, as vectors on a common grid.

Shapes: F block figures, in the order of `template_tables`.
"""

import numpy as np
from numpy.typing import NDArray

from millrace.planner.search.blocks.tables import (
    DEFERRABLE,
    INFLIGHT,
    MICROBATCH,
    PERSISTENT,
    STEP,
)
from millrace.planner.search.decomposition.template_tables import FORWARD

Floats = NDArray[np.float64]

# Octaves between neighbours on the grid: where they are near, the bound of either serves the other.
GRIDS = (0.5, 0.25, 0.125)
# Least prices beside that of a microbatch's time (of its time, beside that of all memory), so that
# of what costs the same the faster and the smaller is taken.
TIME_SHARE, STEP_SHARE, DEFERRABLE_SHARE, BYTE_SHARE = 1e-3, 1e-4, 0.02, 1e-3


def with_floors(prices: Floats) -> Floats:
    """Prices [F] of which none that counts is zero, in units in which all figures are about one."""
    found = prices.copy()
    for figure in (MICROBATCH, FORWARD):
        if found[figure] <= 0:
            found[figure] = TIME_SHARE * max(found.max(), 1e-9)
    time = found[MICROBATCH]
    for figure, share in (
        (STEP, STEP_SHARE),
        (DEFERRABLE, DEFERRABLE_SHARE),
        (PERSISTENT, BYTE_SHARE),
    ):
        found[figure] = max(found[figure], share * time)
    found[INFLIGHT] = max(found[INFLIGHT], found[PERSISTENT])
    return found


def snapped(prices: Floats, grid: float = GRIDS[0]) -> Floats:
    """Prices relative to the first, a nanosecond of microbatch time, each to the nearest on a grid.

    Whatever programs have asked for, near prices become equal, and are asked for once.
    """
    ratios = prices / prices[0]
    some = ratios > 0
    found: Floats = np.zeros_like(ratios)
    found[some] = 2.0 ** (np.round(np.log2(ratios[some]) / grid) * grid)
    return found
