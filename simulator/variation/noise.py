"""Noise: how much longer or shorter a firing takes, drawn from a counter and never from a state.

A draw depends on the seed, the rank, the actor and the firing alone. So it does not matter in which
order firings happen, and two plans that share actors see the same weather.
"""

from collections.abc import Sequence

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
    return factors_of_actors(jitter, seed, rank, [(actor, count)])


def factors_of_actors(
    jitter: float, seed: int, rank: int, counts: Sequence[tuple[int, int]]
) -> NDArray[np.float64]:
    """Factors of several actors of a rank, as `factors` has them, one actor behind the other.

    Parameters
    ----------
    jitter, seed, rank
        As for `factors`.
    counts : sequence of (int, int)
        Index of each actor, and the number of its factors.

    Returns
    -------
    float array (sum of the numbers,)
    """
    actors = np.array([actor for actor, _ in counts], np.uint64)
    each = np.array([count for _, count in counts], np.int64)
    keys = np.zeros(len(counts), np.uint64)
    with np.errstate(over="ignore"):
        for part in (_word(seed), _word(rank), actors):
            keys = _mixed((keys + part) * _GOLDEN + _GOLDEN)
        firsts = np.repeat(np.cumsum(each) - each, each)
        firings = (np.arange(len(firsts)) - firsts).astype(np.uint64)
        counters = np.repeat(keys, each) + np.uint64(2) * firings * _GOLDEN
        first, second = _uniform(counters), _uniform(counters + _GOLDEN)
    normal = np.sqrt(-2.0 * np.log(first)) * np.cos(2.0 * np.pi * second)
    factors_drawn: NDArray[np.float64] = np.exp(jitter * normal - jitter * jitter / 2)
    return factors_drawn


def _word(number: int) -> np.uint64:
    return np.uint64(number & 0xFFFFFFFFFFFFFFFF)
