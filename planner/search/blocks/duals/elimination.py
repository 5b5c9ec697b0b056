"""Elimination: choices with one neighbour are decided beside it, exactly.

Such a choice v of neighbour u goes into what u's options cost::

    own[u, a] += min_o own[v, o] + pair(a, o)

as does a pair whose other side has one state only. Again and again, trees go away, whole; boxing
that readers share stays, as the way it is split may change.

A choice of two neighbours could be replaced by a pair of these in the same way. Bounds rise more
slowly then: the chains that there are, from a gradient through the update to the weight's cast,
would become pairs that lead back to the start of the order.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from millrace.planner.search.blocks.duals.pairs import Pair
from millrace.planner.search.blocks.states import Ints

Floats = NDArray[np.float64]


@dataclass(slots=True, eq=False)
class Eliminated:
    """A choice that is decided once its neighbour is."""

    choice: int
    own: Floats  # [O, K]
    pair: Pair | None  # with the neighbour, where there is one

    def costs(self, chosen: Ints, rows: Ints) -> Floats:
        """Costs of the options beside what the neighbour has: [O, K]."""
        value = self.own
        if self.pair is not None:
            cost, mine, other, theirs = self.pair.seen_from(self.choice)
            value = value + cost[:, theirs[chosen[other]], rows].take(mine, axis=0)
        return value

    def keep(self, rows: Ints) -> None:
        """Leave out all other rows."""
        self.own = self.own.take(rows, axis=1)
        if self.pair is not None:
            self.pair.keep(rows)


def eliminate(own: list[Floats], pairs: list[Pair]) -> tuple[list[Eliminated], list[Pair]]:
    """Take choices out, in order; `own` of the others changes. Return them and the pairs left."""
    beside: list[list[Pair]] = [[] for _ in own]
    for pair in pairs:
        if not pair.shared and 1 in pair.cost.shape[:2]:
            _absorb(own, pair)
            continue
        for end in pair.ends:
            beside[end].append(pair)
    found: list[Eliminated] = []
    gone: set[int] = set()
    waiting = list(range(len(own)))
    while waiting:
        choice = waiting.pop()
        mine = beside[choice]
        if choice in gone or len(mine) > 1 or any(pair.shared for pair in mine):
            continue
        gone.add(choice)
        found.append(Eliminated(choice, own[choice], mine[0] if mine else None))
        if mine:
            cost, mine_at, other, theirs = mine[0].seen_from(choice)
            best = (cost.take(mine_at, axis=0) + own[choice][:, None]).min(axis=0)
            own[other] += best.take(theirs, axis=0)
            beside[other].remove(mine[0])
            beside[choice] = []
            waiting.append(other)
    left = [pair for at, one in enumerate(beside) for pair in one if pair.ends[0] == at]
    return found, left


def _absorb(own: list[Floats], pair: Pair) -> None:
    """Add a pair with one state at an end to the choice at the other."""
    at = 0 if pair.cost.shape[1] == 1 else 1
    cost = pair.cost[0] if at else pair.turned[0]
    own[pair.ends[at]] += cost.take(pair.states[at], axis=0)
