"""Tables of a measured GPU: what its memory adds to durations that go by work alone.

* A kernel takes no less than its bytes take.
* What other ops do behind a product, in its kernel, is done once a tile is multiplied: the bytes
  that it moves beyond the product's own come on top. A product's own hide behind its arithmetic.
* Attention is several kernels, of which some only move bytes. A short sequence moves more of them
  per FLOP than the long one that was timed, which comes on top too.
* A kernel that moves bytes, beyond the largest that was timed, takes longer as the last two differ:
  where most of a duration is that of starting, it does not grow with the work.
* A convolution of stride 1 and the gradient of its input are one computation with the channels
  exchanged. Where one was timed to take longer, it was by a kernel that is not the best there is,
  and a run chooses among them anew.
"""

import numpy as np

from millrace.models.arrays import Floats, Ints
from millrace.planner.costs.tables.profile_tables import Points, interpolated_ns, whole_ns

MIRRORS = {"conv": "conv_grad_input", "conv_grad_input": "conv"}


def sooner(points: Points, others: Points) -> Points:
    """Points with the shorter duration where others have the same work.

    Parameters
    ----------
    points, others : points
        (work, duration_ns), ascending.

    Examples
    --------
    >>> sooner(((1, 10), (2, 20), (3, 30)), ((2, 15), (3, 40)))
    ((1, 10), (2, 15), (3, 30))
    """
    by_work = dict(others)
    return tuple((work, min(ns, by_work.get(work, ns))) for work, ns in points)


def moving_ns(
    durations_ns: Ints, moved_bytes: Ints, beside: Ints | int, bytes_per_s: float
) -> Ints:
    """Durations of products with the time that their memory takes.

    Parameters
    ----------
    durations_ns : int array
        By their FLOPs.
    moved_bytes, beside : int array
        All that they move, and what of it ops behind them move.
    bytes_per_s : float
        Bandwidth of the device's memory.

    Examples
    --------
    >>> moving_ns(np.array([100, 100]), np.array([50, 400]), np.array([20, 20]), 1e9).tolist()
    [120, 400]
    """
    beside_bytes = np.asarray(beside, float)
    alone_ns = np.maximum(durations_ns, (moved_bytes - beside_bytes) / bytes_per_s * 1e9)
    return whole_ns(alone_ns + beside_bytes / bytes_per_s * 1e9)


def short_ns(work: Floats, moved_bytes: Floats, timed_bytes: Points, bytes_per_s: float) -> Floats:
    """Nanoseconds of the bytes that attention moves beyond what its probe of equal FLOPs moved.

    Parameters
    ----------
    work, moved_bytes : array
        FLOPs and bytes.
    timed_bytes : points
        (FLOPs, bytes) of every probe of its table; none: nothing is added.
    bytes_per_s : float
        Bandwidth of the device's memory.
    """
    if not timed_bytes:
        return np.zeros(np.shape(work))
    beyond = moved_bytes - interpolated_ns(timed_bytes, work)
    seconds: Floats = np.maximum(beyond, 0) / bytes_per_s
    return seconds * 1e9


def traffic_ns(points: Points, work: Floats, bytes_per_s: float) -> Ints:
    """Durations of kernels that move bytes: those of the table, and beyond it by its last slope.

    The slope is no less than the memory's own, and no more than the last point's rate.

    Parameters
    ----------
    points : points
        (bytes, duration_ns), ascending.
    work : float array
        Bytes.
    bytes_per_s : float
        Bandwidth of the device's memory.

    Examples
    --------
    >>> traffic_ns(((256, 1_000), (65_536, 1_100)), np.array([256.0, 1e8]), 1e12).tolist()
    [1000, 154186]
    """
    work = np.asarray(work, float)
    last, last_ns = points[-1]
    slope = 0.0
    if len(points) > 1:
        before, before_ns = points[-2]
        slope = (last_ns - before_ns) / (last - before)
    slope = min(max(slope, 1e9 / bytes_per_s), last_ns / last)
    within_ns = interpolated_ns(points, np.minimum(work, last))
    return within_ns + whole_ns(np.maximum(work - last, 0.0) * slope)
