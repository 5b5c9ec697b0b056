"""Dominance: a column that another is no worse than in every figure is never needed."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from millrace.planner.search.blocks.states import Ints
from millrace.planner.search.blocks.tables import Array


def undominated(
    figures: NDArray[np.int64] | NDArray[np.float64], groups: Ints | None = None
) -> Ints:
    """Columns that no other column of their group is no worse than in every figure.

    Parameters
    ----------
    figures : array [F, R]
        The less the better.
    groups : array [R], optional
        A number per column; default: all columns are of one group.

    Returns
    -------
    kept : array
        Places in ascending order; of equal columns the first.

    Examples
    --------
    >>> undominated(np.array([[1, 2, 2, 1], [5, 4, 6, 5]]))
    array([0, 1])
    """
    group = np.zeros(figures.shape[1], np.int64) if groups is None else groups
    # A column has a lower rank than all that it dominates, whatever the units of the figures.
    rank = np.zeros(figures.shape[1], np.int64)
    for figure in figures:
        rank += np.unique(figure, return_inverse=True)[1]
    left = np.lexsort((rank, group))
    kept: list[Ints] = []
    while len(left):
        fresh = np.diff(group[left], prepend=-1) != 0
        leaders = left[fresh]
        kept.append(leaders)
        leader = leaders[np.cumsum(fresh) - 1]
        worse = np.all(figures[:, left] >= figures[:, leader], axis=0)
        left = left[~worse]
    return np.sort(np.concatenate(kept)) if kept else np.zeros(0, np.int64)


def numbered(columns: Sequence[Array], count: int) -> Ints:
    """One number per distinct combination of values ≥ -1, given as columns [`count`]."""
    number = np.zeros(count, np.int64)
    for column in columns:
        number = number * (int(column.max(initial=0)) + 2) + column + 1
        number = np.unique(number, return_inverse=True)[1]
    return number
