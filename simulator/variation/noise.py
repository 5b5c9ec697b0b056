"""Noise: how much longer or shorter a firing takes, drawn from a counter and never from a state.

A draw depends on the seed, the rank, the actor and the firing alone. So it does not matter in which
order firings happen, and two plans that share actors see the same weather.
"""

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mixed(words: Words) -> Words:
    """Scramble 64-bit words (the finalizer of splitmix64)."""
    with np.errstate(over="ignore"):
        words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return words ^ (words >> np.uint64(31))


def _uniform(words: Words) -> NDArray[np.float64]:
    """Numbers above 0 and up to 1."""
    return ((_mixed(words) >> np.uint64(11)) + np.uint64(1)).astype(np.float64) * 2.0**-53


def factors(jitter: float, seed: int, rank: int, actor: int, count: int) -> NDArray[np.float64]:
    """Factors on the durations of an actor's first `count` firings on one rank.

    Log-normal with mean 1; `jitter` is the standard deviation of the logarithm, close to the
    relative standard deviation of the duration while it is small.

    Parameters
    ----------
    jitter : float
        0 makes every factor 1.
    seed : int
        Of the run.
    rank : int
        Every rank has factors of its own.
    actor : int
        Index of the actor in the rank's program.
    count : int
        Number of factors; of more, the first are the same.

    Returns
    -------
    float array (count,)
        All above 0.

    Notes
    -----
    Counter-based generation after Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
    2011, with the finalizer of Steele, Lea and Flood's SplitMix (2014); normal values by Box and
    Muller (1958).
    """
    key = np.zeros(1, np.uint64)
    with np.errstate(over="ignore"):
        for part in (seed, rank, actor):
            key = _mixed((key + np.uint64(part & 0xFFFFFFFFFFFFFFFF)) * _GOLDEN + _GOLDEN)
        counters = key + np.arange(2 * count, dtype=np.uint64) * _GOLDEN
    first, second = _uniform(counters[::2]), _uniform(counters[1::2])
    normal = np.sqrt(-2.0 * np.log(first)) * np.cos(2.0 * np.pi * second)
    return np.exp(jitter * normal - jitter * jitter / 2)
