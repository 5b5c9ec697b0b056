"""Completion: bounds on all solutions with given options of some choices, from an ascent's duals.

The duals write the cost of a solution as a sum of terms of one choice or two, where boxing that
readers share is split among them. With the options of some choices given::

    cost ≥ Σ_{c given} own[c] + Σ_{both ends given} pair + Σ owed        (closed)
         + Σ_{c not given} min_o (own[c, o] + Σ_{other end given} pair)  (left)

where `owed` are the shares of readers that do not take a target which others do. With all options
given the bound is the cost. Shapes: O options, A sources, B targets, L prefixes.
"""

from typing import NamedTuple

import numpy as np

from millrace.planner.search.blocks.ascent import Ascent
from millrace.planner.search.blocks.duals.terms import ILLEGAL, Shared
from millrace.planner.search.blocks.enumeration.once import Floats, Given, Once, SharedCost, keeping
from millrace.planner.search.blocks.states import Ints
from millrace.planner.search.blocks.tables import INFLIGHT, Tables

# The rounding of sums in which what is illegal costs `ILLEGAL`, in units of an ascent: a thousand
# sums one after the other.
ROUNDING = 1e3 * ILLEGAL * float(np.finfo(np.float64).eps)


def rounding(ascent: Ascent) -> float:
    """By how much a bound from the duals of the only row may exceed the cost, in its unit."""
    return ROUNDING * float(ascent.unit[0])


class Residual(NamedTuple):
    """The cost that an ascent has left in a pair, seen from one of its choices."""

    other: int
    states: Ints  # of the other's options
    cost: Floats  # [states, my options]


class CompletionBounds:
    """Bounds from the duals of the only row, in the unit of the prices.

    Attributes
    ----------
    own : list of array [O]
        The costs of each choice's options, as the ascent left them.
    least : array [choices]
        The least of these.
    rounding : float
        By how much a bound may exceed the cost.
    """

    def __init__(self, ascent: Ascent, prices: Floats) -> None:
        self.rounding = rounding(ascent)
        unit = float(ascent.unit[0])
        self.own = [own[:, 0] * unit for own in ascent.own]
        self.least = np.array([own.min() for own in self.own])
        self.beside: list[list[Residual]] = [[] for _ in self.own]
        for pair in ascent.pairs:
            left = (pair.cost - pair.taken[0][:, None] - pair.taken[1])[..., 0] * unit
            (first, second), (mine, theirs) = pair.ends, pair.states
            self.beside[first].append(Residual(second, theirs, left.T[:, mine]))
            self.beside[second].append(Residual(first, mine, left[:, theirs]))
        self.shared = [_boxed(shared, unit) for shared in ascent.terms.shared]
        self.shared += _kept(ascent.tables, float(prices[INFLIGHT]))

    def neighbours(self, at: int) -> set[int]:
        """The choices that a choice has a term with."""
        return {residual.other for residual in self.beside[at]}

    def costs(self, at: int, given: Given, chosen: Ints) -> Floats:
        """Cost that every option of a choice adds beside the given ones: [L, O]."""
        cost = np.broadcast_to(self.own[at], (chosen.shape[1], len(self.own[at])))
        for residual in self.beside[at]:
            if residual.other in given:
                cost = cost + residual.cost[residual.states[chosen[residual.other]]]
        return cost

    def owed(self, at: int, given: Given, chosen: Ints) -> Floats:
        """Shares that are owed besides when choice `at` is given too: [L]."""
        owed = np.zeros(chosen.shape[1])
        for shared in self.shared:
            owed += shared.due(given, at, chosen)
        return owed


def _boxed(shared: Shared, unit: float) -> SharedCost:
    """The boxing of a net, as it is split in the end."""
    shares = []
    for pair, columns in zip(shared.pairs, shared.columns, strict=True):
        share = np.zeros((len(pair.cost), len(shared.takers)))
        share[:, columns] = pair.cost[..., 0] * unit
        shares.append(share)
    targets = np.arange(len(shared.takers))
    once = Once(
        producer=shared.pairs[0].ends[0],
        makes=shared.pairs[0].states[0],
        readers=tuple(pair.ends[1] for pair in shared.pairs),
        wants=tuple(
            targets[columns][pair.states[1]]
            for pair, columns in zip(shared.pairs, shared.columns, strict=True)
        ),
    )
    return SharedCost(once=once, shares=tuple(shares))


def _kept(tables: Tables, price: float) -> list[SharedCost]:
    """Tensors that several readers keep, in even shares."""
    kept = []
    for net in tables.nets:
        holders = [use for use in net.uses if use.holds]
        if price and len(holders) > 1:
            share = price * net.count * net.held_bytes[None, :, 0] / len(holders)
            kept.append(SharedCost(once=keeping(net), shares=(share,) * len(holders)))
    return kept
