"""Prefixes: options of the first choices in an order, extended choice by choice.

A prefix is dropped where its bound (`completion.py`) exceeds the budget, where a boxing of it does
not exist and, where criteria are given, where another that leaves the same open (`once.py`) is no
worse in any of them: whatever completes the one completes the other. Shapes: O options, L
prefixes, V criteria.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import numpy as np

from millrace.planner.search.blocks.enumeration.completion import CompletionBounds
from millrace.planner.search.blocks.enumeration.dominance import numbered, undominated
from millrace.planner.search.blocks.enumeration.once import (
    Charge,
    Floats,
    Given,
    boxing,
    keeping,
)
from millrace.planner.search.blocks.states import Bools, Ints
from millrace.planner.search.blocks.tables import INFLIGHT, MICROBATCH, PERSISTENT, STEP, Tables

CELLS = 1 << 16  # prefixes times options that are extended together: for memory alone


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Prefixes:
    """Prefixes of solutions.

    Attributes
    ----------
    chosen : array [choices, L]
        Options; 0 where none is given.
    paid : array [L]
        The bound on what is closed.
    least : array [choices, L]
        The least that every choice still adds; 0 where it is given.
    totals : array [V, L]
        The criteria of all that is closed.
    """

    chosen: Ints
    paid: Floats
    least: Floats
    totals: Floats

    @property
    def count(self) -> int:
        """Number of prefixes."""
        return len(self.paid)

    def picked(self, places: Ints | Bools | slice) -> "Prefixes":
        """Return some of them."""
        return Prefixes(
            chosen=self.chosen[:, places],
            paid=self.paid[places],
            least=self.least[:, places],
            totals=self.totals[:, places],
        )


def _joined(parts: Sequence[Prefixes]) -> Prefixes:
    return Prefixes(
        chosen=np.concatenate([part.chosen for part in parts], axis=1),
        paid=np.concatenate([part.paid for part in parts]),
        least=np.concatenate([part.least for part in parts], axis=1),
        totals=np.concatenate([part.totals for part in parts], axis=1),
    )


class PrefixSearch:
    """The solutions within a budget, or those of them that none dominates.

    Parameters
    ----------
    tables : Tables
        With one row and legal options only.
    bounds : CompletionBounds
    budget : float
    criteria : array [V, F]
        Weights of the figures; with no rows, nothing is dominated.
    most : int
        Of prefixes that are looked at.
    """

    def __init__(
        self, tables: Tables, bounds: CompletionBounds, budget: float, criteria: Floats, most: int
    ) -> None:
        self.tables = tables
        self.bounds = bounds
        self.limit = budget + bounds.rounding
        self.criteria = criteria
        self.charges = _charges(tables, criteria)
        self.left = most

    def solutions(self) -> Ints | None:
        """Options [choices, R]; None where there are more prefixes than may be looked at."""
        given: Given = frozenset()
        prefixes = Prefixes(
            chosen=np.zeros((len(self.tables.choices), 1), np.int64),
            paid=np.zeros(1),
            least=self.bounds.least[:, None],
            totals=np.zeros((len(self.criteria), 1)),
        )
        for at in _order(self.tables):
            longer = self._extended(prefixes, at, given)
            if longer is None:
                return None
            given |= {at}
            prefixes = self._undominated(longer, given) if len(self.criteria) else longer
        return prefixes.chosen

    def _extended(self, prefixes: Prefixes, at: int, given: Given) -> Prefixes | None:
        """Give one more choice, in every way that stays within the budget."""
        batch = max(1, CELLS // len(self.bounds.own[at]))
        parts = []
        for first in range(0, prefixes.count, batch):
            part = self._children(prefixes.picked(slice(first, first + batch)), at, given)
            self.left -= part.count
            if self.left < 0:
                return None
            parts.append(part)
        return _joined(parts) if parts else prefixes

    def _children(self, parents: Prefixes, at: int, given: Given) -> Prefixes:
        costs = parents.paid[:, None] + self.bounds.costs(at, given, parents.chosen)
        others = parents.least.sum(axis=0) - parents.least[at]
        parent, option = np.nonzero(costs + others[:, None] <= self.limit)
        children = parents.picked(parent)
        chosen, least = children.chosen, children.least
        chosen[at], least[at] = option, 0.0
        paid = costs[parent, option] + self.bounds.owed(at, given, chosen)
        for other in self.bounds.neighbours(at) - given:
            least[other] = self.bounds.costs(other, given | {at}, chosen).min(axis=1)
        fine = paid + least.sum(axis=0) <= self.limit
        choice = self.tables.choices[at]
        totals = children.totals + choice.count * self.criteria @ choice.figures[:, option, 0]
        for charge in self.charges:
            due, exists = charge.due(given, at, chosen)
            totals += due
            fine &= exists
        return Prefixes(chosen=chosen, paid=paid, least=least, totals=totals).picked(fine)

    def _undominated(self, prefixes: Prefixes, given: Given) -> Prefixes:
        """Leave out those that others of the same open states dominate."""
        states = [
            column
            for charge in self.charges
            for column in charge.once.open_states(given, prefixes.chosen)
        ]
        groups = numbered(states, prefixes.count)
        return prefixes.picked(undominated(prefixes.totals, groups))


def _charges(tables: Tables, criteria: Floats) -> list[Charge]:
    """Costs of nets in the criteria, and where boxing is missing."""
    charges = []
    for net in tables.nets:
        weights = net.count * criteria
        cost = np.multiply.outer(
            weights[:, STEP if net.step else MICROBATCH], net.duration_ns[..., 0]
        )
        cost += np.multiply.outer(weights[:, PERSISTENT], net.buffer_bytes[..., 0])
        reachable = net.reachable[..., 0]
        if cost.any() or not reachable.all():
            charges.append(Charge(once=boxing(net), cost=cost, reachable=reachable))
        held = np.multiply.outer(weights[:, INFLIGHT], net.held_bytes[None, :, 0])
        if held.any() and any(use.holds for use in net.uses):
            every = np.ones(held.shape[1:], np.bool_)
            charges.append(Charge(once=keeping(net), cost=held, reachable=every))
    return charges


def _order(tables: Tables) -> list[int]:
    """Choices in an order that leaves few states open: greedily, by their options."""
    beside: list[set[int]] = [set() for _ in tables.choices]
    for net in tables.nets:
        for use in net.uses:
            beside[net.producer].add(use.choice)
            beside[use.choice].add(net.producer)
    sizes = [log(len(choice.options)) for choice in tables.choices]
    left, order = set(range(len(beside))), list[int]()

    def width(at: int) -> tuple[float, int]:
        after = left - {at}
        return sum(sizes[one] for one in (*order, at) if not after.isdisjoint(beside[one])), at

    while left:
        order.append(min(left, key=width))
        left.remove(order[-1])
    return order
