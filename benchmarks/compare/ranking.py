"""Rankings: how well predicted step times order plans that were run."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np


def spearman(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """Rank correlation of two columns; those of equal value share the mean of their ranks.

    It is 1 where one column does not differ, so that nothing can be out of order.
    """
    ranks = [_ranks(column) for column in (predicted, measured)]
    if min(map(np.std, ranks)) == 0:  # all are equal: there is nothing to order
        return 1.0
    return float(np.corrcoef(*ranks)[0, 1])


def in_order(
    predicted: Sequence[float], measured: Sequence[float], spreads: Sequence[float]
) -> tuple[int, int]:
    """Pairs that are predicted in the order in which they were measured, and pairs that count.

    Those count whose measured times differ by more than the wider spread of the two (a share).
    """
    rows = list(zip(predicted, measured, spreads, strict=True))
    counted = [
        (before - other_before) * (after - other_after) > 0
        for (before, after, spread), (other_before, other_after, other_spread) in combinations(
            rows, 2
        )
        if abs(after - other_after) > max(spread, other_spread) * min(after, other_after)
    ]
    return sum(counted), len(counted)


def settled(measured: Sequence[float], spreads: Sequence[float]) -> list[float]:
    """Measured times, those of plans that differ by less than their spread made equal.

    In ascending order a plan joins the group before it while it is within the spread of the group's
    first.
    """
    order = sorted(range(len(measured)), key=measured.__getitem__)
    levels = [0.0] * len(measured)
    first = order[0]
    for index in order:
        apart = measured[index] - measured[first]
        if apart > max(spreads[index], spreads[first]) * measured[first]:
            first = index
        levels[index] = measured[first]
    return levels


def _ranks(column: Sequence[float]) -> list[float]:
    values = np.asarray(column, float)
    return [float(np.mean(np.flatnonzero(np.sort(values) == value))) for value in values]
