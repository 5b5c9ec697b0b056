"""Prices: what a nanosecond or a byte of each block figure is worth, as vectors on a common grid.

Shapes: F block figures, in the order of `template_tables`.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

OCTAVE_SHARE = 0.5  # of an octave between neighbours on the grid: bounds of either serve the other
# Of the highest price of a figure's kind: a lower one is worth nothing, but is not none, so that of
# what costs the same the smaller and the faster is taken.
LEAST_SHARE = 1e-4


def snapped(prices: Floats) -> Floats:
    """Prices relative to the first, a nanosecond of microbatch time, each to the nearest on a grid.

    Whatever programs have asked for, near prices become equal, and are asked for once.
    """
    ratios = prices / prices[0]
    some = ratios > 0
    found: Floats = np.zeros_like(ratios)
    steps = np.round(np.log2(ratios[some]) / OCTAVE_SHARE)
    found[some] = 2.0 ** (steps * OCTAVE_SHARE)
    return found
