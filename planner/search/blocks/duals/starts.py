"""Starts: the duals of an ascent, from which another at other prices may start.

Any duals give a bound. Those that were best at prices near by, each in its own unit, are nearly
the best, above all as they say how boxing is split among its readers.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from millrace.planner.search.blocks.duals.pairs import ENOUGH, Floats, Level, Pair
from millrace.planner.search.blocks.duals.sharing import Shared
from millrace.planner.search.blocks.states import Ints

Key = tuple[int, int, int]  # net, use and end


@dataclass(frozen=True, slots=True, eq=False)
class Duals:
    """What choices have taken out of pairs, row by row.

    Attributes
    ----------
    states : dict of arrays [S]
        Per end of a pair its states, as numbers of the net's sources or targets, ascending.
    taken : dict of arrays [S, K]
    """

    states: dict[Key, Ints]
    taken: dict[Key, Floats]

    @classmethod
    def of(cls, pairs: Iterable[Pair], rows: Ints) -> "Duals":
        """The duals that pairs have now, of some rows."""
        ends = [(pair, end) for pair in pairs for end in (0, 1)]
        return cls(
            {(*pair.use, end): pair.numbers[end] for pair, end in ends},
            {(*pair.use, end): pair.taken[end].take(rows, axis=1) for pair, end in ends},
        )

    @classmethod
    def joined(cls, parts: "Sequence[Duals]", places: Sequence[Ints]) -> "Duals":
        """The rows of several, each at its places."""
        back = np.argsort(np.concatenate(places))
        first = parts[0]
        taken = {
            key: np.concatenate([part.taken[key] for part in parts], axis=1).take(back, axis=1)
            for key in first.taken
        }
        return cls(first.states, taken)

    def take(self, rows: Ints) -> "Duals":
        """Some of the rows, in this order."""
        return Duals(self.states, {key: one.take(rows, axis=1) for key, one in self.taken.items()})

    def begin(self, levels: Sequence[Level], shared: Sequence[Shared], room: Floats) -> None:
        """Let an ascent begin here; states that were not there begin with nothing."""
        for level in levels:
            for side in level.sides:
                taken = np.zeros_like(side.taken)
                for (pair, end), place in zip(side.pairs, side.slices, strict=True):
                    key = *pair.use, end
                    if key in self.taken:
                        taken[place] = _at(pair.numbers[end], self.states[key], self.taken[key])
                # What is out of all proportion is illegal, which is found again.
                taken[np.abs(taken) > ENOUGH] = 0.0
                level.own += side.take(taken)
        for one in shared:
            one.split(room)


def _at(wanted: Ints, states: Ints, taken: Floats) -> Floats:
    """What was taken of these states, nothing where they were not there."""
    if np.array_equal(wanted, states):
        return taken
    at = np.searchsorted(states, wanted).clip(max=len(states) - 1)
    found: Floats = np.where((states[at] == wanted)[:, None], taken[at], 0.0)
    return found
