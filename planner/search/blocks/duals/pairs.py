"""Pairs: terms over the states of two choices, and how cost moves between them and the choices.

What a choice has taken out of its pairs with earlier choices lies in one array, and so does what
it has taken out of those with later ones, so that a choice deals with all of a side at once.
Arrays end in the rows. Shapes: O options, S states of all pairs of a side, K rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from millrace.planner.search.blocks.states import Ints

Floats = NDArray[np.float64]


@dataclass(slots=True, eq=False)
class Pair:
    """A term over the states of two choices: of boxing the producer's, and a reader's."""

    ends: tuple[int, int]  # choices
    states: tuple[Ints, Ints]  # [options] → state, at either end
    cost: Floats  # [states, states, K]
    turned: Floats = field(init=False)  # the same from the other end, in memory as well
    taken: list[Floats] = field(init=False)  # what either end has taken out: [states, K]
    shared: bool = False  # with other readers, so that the cost may change

    def __post_init__(self) -> None:
        self.turned = self.cost.swapaxes(0, 1).copy()
        self.taken = [self.cost[:, 0], self.turned[:, 0]]  # until sides hold them

    def seen_from(self, choice: int) -> tuple[Floats, Ints, int, Ints]:
        """Cost [mine, theirs, K] and my states, then the other choice and its states."""
        at = self.ends.index(choice)
        cost = self.turned if at else self.cost
        return cost, self.states[at], self.ends[1 - at], self.states[1 - at]

    def keep(self, rows: Ints) -> None:
        """Leave out all other rows."""
        self.cost = self.cost.take(rows, axis=2)
        self.turned = self.cost.swapaxes(0, 1).copy()


class Side:
    """The pairs of one choice with earlier choices, or those with later ones: one at least.

    Attributes
    ----------
    taken : array [S, K]
        What the choice has taken out of these pairs.
    slices : list of slice
        Which of it lies in which pair.
    """

    def __init__(self, choice: int, pairs: Sequence[Pair], rows: int) -> None:
        self.pairs = tuple((pair, pair.ends.index(choice)) for pair in pairs)
        counts = tuple(pair.cost.shape[at] for pair, at in self.pairs)
        states = tuple(pair.states[at].tobytes() for pair, at in self.pairs)
        self.slices, self.state, self.options, self.plain = _layout(counts, states)
        self.hold(np.zeros((sum(counts), rows)))

    def hold(self, taken: Floats) -> None:
        """Take this for what was taken."""
        self.taken = taken
        self.found = np.empty_like(taken)
        for (pair, at), place in zip(self.pairs, self.slices, strict=True):
            pair.taken[at] = taken[place]

    def lay_out(self, room: Floats) -> None:
        """Note where `collect` reads and writes, once for every sweep; `room` is for its use."""
        self.links = []
        for (pair, at), place in zip(self.pairs, self.slices, strict=True):
            cost = pair.cost if at else pair.turned
            mine = room[: cost.size].reshape(cost.shape)
            self.links.append((cost, pair.taken[1 - at][:, None], mine, self.found[place]))

    def collect(self) -> Floats:
        """Take all that is left for each state out of the pairs; what that is for an option."""
        for cost, other, room, least in self.links:
            np.subtract(cost, other, out=room)
            np.minimum.reduce(room, axis=0, out=least)
        gain = self.spread(self.found - self.taken)
        np.copyto(self.taken, self.found)
        return gain

    def hand(self, own: Floats, share: float) -> None:
        """Put a share of the least that options cost into every pair."""
        gift: Floats
        if len(self.options) == 1:
            gift = own.take(self.options[0], axis=0)
        else:
            gift = np.minimum.reduce(own.take(self.options, axis=0), axis=0)
        gift *= share
        self.taken -= gift
        own -= self.spread(gift)

    def spread(self, values: Floats) -> Floats:
        """What the values of its states come to for an option: [O, K] of [S, K]."""
        if self.plain:
            return values
        found: Floats
        if len(self.state) == 1:
            found = values.take(self.state[0], axis=0)
            return found
        found = np.add.reduce(values.take(self.state, axis=0), axis=0)
        return found


@lru_cache(maxsize=2_000)
def _layout(
    counts: tuple[int, ...], states: tuple[bytes, ...]
) -> tuple[list[slice], Ints, Ints, bool]:
    """How options fall on the states of all pairs of a side, laid one after the other.

    Returns
    -------
    slices : list
        Where the states of every pair are.
    state : array [pairs, O]
    options : array [·, S]
        The options of every state, the first of them again where others have more.
    plain : bool
        Whether there is one pair, and a state of it is an option.
    """
    starts = np.cumsum([0, *counts])
    own = np.stack([np.frombuffer(one, np.int64) for one in states])
    state = own + starts[:-1, None]
    flat = state.ravel()
    sizes = np.bincount(flat, minlength=int(starts[-1]))
    rank = np.arange(int(sizes.max()))[:, None]
    place = np.cumsum(sizes) - sizes + np.where(rank < sizes, rank, 0)
    options = np.argsort(flat, kind="stable")[place] % state.shape[1]
    plain = len(states) == 1 and bool((own[0] == np.arange(own.shape[1])).all())
    return [slice(a, b) for a, b in pairwise(starts.tolist())], state, options, plain
