"""Starts: the duals of an ascent, from which another at other prices may start.

Any duals give a bound. Those that were best at prices near by, each in its own unit, are nearly
the best, above all how boxing is split among its readers.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from millrace.planner.search.blocks.duals.pairs import ENOUGH, Floats, Level, Pair
from millrace.planner.search.blocks.duals.sharing import Shared
from millrace.planner.search.blocks.states import Ints

Key = tuple[int, int, int]  # net, use, and the end, or 2 for the cost of the pair


@dataclass(frozen=True, slots=True, eq=False)
class Duals:
    """What choices have taken out of pairs, and what shared pairs cost, row by row.

    Attributes
    ----------
    numbers : dict
        Per entry the states of its axes, as numbers of the net's sources and targets.
    values : dict of arrays [..., K]
    """

    numbers: dict[Key, tuple[Ints, ...]]
    values: dict[Key, Floats]

    @classmethod
    def of(cls, pairs: Iterable[Pair]) -> "Duals":
        """The duals that pairs have now."""
        numbers: dict[Key, tuple[Ints, ...]] = {}
        values: dict[Key, Floats] = {}
        for pair in pairs:
            for end in (0, 1):
                numbers[*pair.use, end] = (pair.numbers[end],)
                values[*pair.use, end] = pair.taken[end]
            if pair.shared:
                numbers[*pair.use, 2], values[*pair.use, 2] = pair.numbers, pair.cost
        return cls(numbers, values)

    @classmethod
    def joined(cls, parts: "Sequence[Duals]", places: Sequence[Ints]) -> "Duals":
        """The rows of several, each at its places."""
        back = np.argsort(np.concatenate(places))
        first = parts[0]
        values = {
            key: np.concatenate([part.values[key] for part in parts], axis=-1).take(back, axis=-1)
            for key in first.values
        }
        return cls(first.numbers, values)

    def take(self, rows: Ints) -> "Duals":
        """Some of the rows, in this order."""
        values = {key: value.take(rows, axis=-1) for key, value in self.values.items()}
        return Duals(self.numbers, values)

    def begin(self, levels: Sequence[Level], shared: Sequence[Shared], room: Floats) -> None:
        """Let an ascent begin here; states that were not there begin with nothing."""
        for one in shared:
            for pair in one.pairs:
                weights = self._at((*pair.use, 2), pair.numbers, pair.cost)
                np.maximum(weights, 0.0, out=pair.cost)
            one.begin(room)
        for level in levels:
            for side in level.sides:
                taken = np.zeros_like(side.taken)
                for (pair, end), place in zip(side.pairs, side.slices, strict=True):
                    key = *pair.use, end
                    taken[place] = self._at(key, (pair.numbers[end],), taken[place])
                # What is out of all proportion is illegal, which is found again.
                taken[np.abs(taken) > ENOUGH] = 0.0
                level.own += side.take(taken)

    def _at(self, key: Key, numbers: tuple[Ints, ...], other: Floats) -> Floats:
        """Values of these states, and the others' where there are none."""
        if key not in self.values:
            return other
        value = self.values[key]
        known = self.numbers[key]
        if all(map(np.array_equal, numbers, known)):
            return value
        at = [
            np.searchsorted(a, b).clip(max=len(a) - 1) for a, b in zip(known, numbers, strict=True)
        ]
        there = [a[place] == b for a, place, b in zip(known, at, numbers, strict=True)]
        found: Floats = np.where(
            reduce(np.logical_and, np.ix_(*there))[..., None], value[np.ix_(*at)], other
        )
        return found
