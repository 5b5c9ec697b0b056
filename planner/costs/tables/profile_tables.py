"""Measured tables: durations between, below and above the points that a profile holds."""

from functools import lru_cache
from itertools import accumulate

import numpy as np

from millrace.models.arrays import Floats, Ints
from millrace.planner.errors import ClusterError

Points = tuple[tuple[int, int], ...]

# Longer than anything is asked about (146 years), and within 64 bits.
DURATION_NS_MAX = 2**62


@lru_cache(maxsize=512)
def _columns(points: Points) -> tuple[Floats, Floats]:
    """Work and duration; durations made monotone against noise."""
    usable = [(work, duration) for work, duration in points if work > 0 and duration > 0]
    if not usable:
        raise ClusterError("a measured table has no point with positive work and duration")
    durations = list(accumulate((duration for _, duration in usable), max))
    return np.array([work for work, _ in usable], float), np.array(durations, float)


def whole_ns(durations: Floats) -> Ints:
    """Durations rounded up to whole nanoseconds, within 64 bits."""
    return np.minimum(np.ceil(durations), float(DURATION_NS_MAX)).astype(np.int64)


def interpolated_ns(points: Points, work: Floats) -> Ints:
    """Durations for an array of `work` from measured (work, duration_ns) points sorted by work.

    Straight lines between the points on a log-log scale; the first duration below them (a floor:
    starting costs), the last rate above them. Never decreases with `work`.

    Parameters
    ----------
    points : Points
        Measured amounts of work, ascending, and nanoseconds of each.
    work : float array
        Bytes or FLOPs, as the table counts them.

    Raises
    ------
    ClusterError
        No point has a positive work and duration.
    """
    works, durations = _columns(points)
    beyond = durations[-1] * np.maximum(work / works[-1], 1.0)
    if len(works) == 1:
        return whole_ns(beyond)
    inside = np.clip(work, works[0], works[-1])
    between = np.rint(np.exp(np.interp(np.log(inside), np.log(works), np.log(durations))))
    above = np.clip(np.searchsorted(works, inside), 1, len(works) - 1)
    clamped = np.clip(between, durations[above - 1], durations[above])
    clamped = np.where(work <= works[0], durations[0], clamped)
    return whole_ns(np.where(work >= works[-1], beyond, clamped))


def interpolate_ns(points: Points, work: int) -> int:
    """Duration for one amount of `work`, see `interpolated_ns`.

    Parameters
    ----------
    points : Points
        Measured amounts of work, ascending, and nanoseconds of each.
    work : int
        Bytes or FLOPs, as the table counts them.

    Examples
    --------
    >>> interpolate_ns(((100, 1_000), (10_000, 100_000)), 1_000)
    10000
    """
    return int(interpolated_ns(points, np.array([work], float))[0])
