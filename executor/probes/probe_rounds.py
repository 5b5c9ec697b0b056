"""Rounds of probes: every probe is timed once a round, and rounds go on until they agree.

A burst of other work falls into one round of all probes rather than into all repeats of one.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import sqrt
from statistics import median

import numpy as np

Points = dict[str, list[tuple[int, int]]]
"""Measured points (work, duration in nanoseconds) by table, in the order of the probes."""

ROUNDS_MIN = 3  # fewer have no middle one
# Rounds agree where the median of the usual probe, and of nine in ten, is as sure as this.
SURE_USUALLY, SURE_MOSTLY = 0.05, 0.15
# Standard error of a median, over the median deviation of n values / sqrt(n), for normal noise:
# sqrt(pi / 2) / 0.6745.
MEDIAN_ERROR = 1.858


def combined(rounds: Sequence[Points]) -> Points:
    """Points of the median over rounds, probe by probe."""
    return {
        table: [
            (same_probe[0][0], round(median(duration_ns for _, duration_ns in same_probe)))
            for same_probe in zip(*(points[table] for points in rounds), strict=True)
        ]
        for table in rounds[0]
    }


def spreads(rounds: Sequence[Points]) -> dict[str, list[float]]:
    """Median deviation of rounds from their median, as a share of it, of every probe by table."""
    return {
        table: [
            _deviation([duration_ns for _, duration_ns in same_probe])
            for same_probe in zip(*(points[table] for points in rounds), strict=True)
        ]
        for table in rounds[0]
    }


def agree(spread_by_table: Mapping[str, Iterable[float]], rounds: int) -> bool:
    """True where so many rounds differ by so little that their medians are sure enough."""
    shares = [share for table in spread_by_table.values() for share in table]
    if not shares:
        return True
    usually, mostly = MEDIAN_ERROR / sqrt(rounds) * np.quantile(shares, (0.5, 0.9))
    return bool(usually <= SURE_USUALLY and mostly <= SURE_MOSTLY)


def _deviation(durations_ns: Sequence[int]) -> float:
    middle = median(durations_ns)
    return median(abs(duration_ns - middle) for duration_ns in durations_ns) / max(middle, 1)
