"""Masks of attention: which keys a query sees, read from values that are added to scores."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

MASK_BELOW = -1e4
"""Additive masks hide a score with this or less; no trained value is so large."""


class KeyVisibility(NamedTuple):
    """Keys that a query sees: all; those up to its own (`causal`); of these the last `window`."""

    causal: bool
    window: int = 0


def mask_of(mask: NDArray[Any], queries: int, keys: int) -> KeyVisibility | None:
    """Read an additive (or boolean) mask over [..., queries, keys]; None where it is another.

    Parameters
    ----------
    mask
        Values over [..., queries, keys]: added to scores, or true where a key is seen.
    queries, keys
        Lengths of the last two dims.
    """
    additive = mask.dtype != bool
    visible = np.atleast_2d(mask > MASK_BELOW if additive else mask)
    if additive and np.any(np.atleast_2d(mask)[visible] != 0):
        return None
    planes = visible.reshape(-1, *visible.shape[-2:])
    if np.any(planes != planes[:1]):
        return None
    plane = np.broadcast_to(planes[0], (queries, keys))
    if plane.all():
        return KeyVisibility(False)
    distance = np.subtract.outer(np.arange(queries), np.arange(keys))
    window = int(plane[-1].sum())
    if queries != keys or not np.array_equal(plane, (distance >= 0) & (distance < window)):
        return None
    return KeyVisibility(True, window if window < keys else 0)
