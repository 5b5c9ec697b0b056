"""Solutions: all of a block program that cost no more than a budget.

Notes
-----
Baldacci, Christofides and Mingozzi, "An exact algorithm for the vehicle routing problem based on
the set partitioning formulation with additional cuts", Mathematical Programming 115(2), 2008: once
a bound and a plan are known, all columns whose reduced cost is below the gap are listed, with
completion bounds from the duals, and the integer master over these is the optimum.
"""

from dataclasses import dataclass

import numpy as np

from millrace.planner.search.blocks.ascent import Ascent
from millrace.planner.search.blocks.enumeration.completion import CompletionBounds, rounding
from millrace.planner.search.blocks.enumeration.once import Floats
from millrace.planner.search.blocks.enumeration.prefixes import PrefixSearch
from millrace.planner.search.blocks.states import Ints
from millrace.planner.search.blocks.tables import (
    FIGURES,
    Tables,
    compact,
    reachable_options,
    totals,
)

SWEEPS = 300


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Enumeration:
    """Solutions of a block program, the cheapest first.

    Attributes
    ----------
    options : array [choices, R]
        By their place in the tables.
    figures : array [F, R]
    """

    options: Ints
    figures: Ints


def solutions_within(
    tables: Tables,
    prices: Floats,
    budget: float,
    most: int,
    *,
    criteria: Floats | None = None,
) -> Enumeration | None:
    """List every solution whose figures cost at most `budget` at the prices.

    Parameters
    ----------
    tables : Tables
        With one row.
    prices : array [F]
        Of one unit of each figure; none negative.
    budget : float
        In the unit of the prices.
    most : int
        Of solutions. A search whose bounds were exact would look at so many prefixes of solutions
        for every choice at most: where more are looked at, it is given up.
    criteria : array [V, F], optional
        Weights of the figures, none negative, by which solutions are compared: those that another
        is no worse than in every criterion are left out, of equal ones all but one. The prices
        have to be a sum of multiples of criteria. Default: every solution is listed.

    Returns
    -------
    Enumeration or None
        None where there are more than `most`, or the search was given up.
    """
    if (narrowed := _narrowed(tables, prices, budget)) is None:
        none = np.zeros((len(tables.choices), 0), np.int64)
        return Enumeration(options=none, figures=np.zeros((len(FIGURES), 0), np.int64))
    keep, ascent = narrowed
    weights = np.zeros((0, len(FIGURES))) if criteria is None else criteria
    chosen = PrefixSearch(
        ascent.tables,
        CompletionBounds(ascent, prices),
        budget,
        weights,
        most * len(keep),
    ).solutions()
    if chosen is None:
        return None
    options = np.stack([kept[row] for kept, row in zip(keep, chosen, strict=True)])
    figures, legal = totals(tables, options, np.zeros(options.shape[1], np.int64))
    cost = prices @ figures
    fine = np.flatnonzero(legal & (cost <= budget))
    order = fine[np.lexsort((*options[::-1, fine], cost[fine]))]
    if len(order) > most:
        return None
    return Enumeration(options=options[:, order], figures=figures[:, order])


def _narrowed(tables: Tables, prices: Floats, budget: float) -> tuple[list[Ints], Ascent] | None:
    """Per choice the options that may be within the budget, and an ascent of these; None: none."""
    keep = reachable_options(tables)
    if not all(map(len, keep)):
        return None
    ascent = _ascended(compact(tables, keep), prices, budget)
    room = budget - float(ascent.bounds[0]) + rounding(ascent)
    left = [np.flatnonzero(lift <= room) for lift in ascent.lifts()]
    if not all(map(len, left)):
        return None
    if sum(map(len, left)) < sum(map(len, keep)):
        keep = [kept[some] for kept, some in zip(keep, left, strict=True)]
        ascent = _ascended(compact(tables, keep), prices, budget)
    return keep, ascent


def _ascended(tables: Tables, prices: Floats, budget: float) -> Ascent:
    """An ascent that ends with a sweep, whatever it was split by last."""
    ascent = Ascent(tables, prices.reshape(-1, 1), whole=True)
    ascent.ascend(SWEEPS, 0.0, np.array([budget]))
    ascent.sweep()
    return ascent
