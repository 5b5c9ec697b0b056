"""Messages: cost that moves between choices and the terms over the states of two of them.

Choices of one level have no pair among them, so that a sweep deals with all of them at once. What
they have taken out of their pairs with earlier choices lies in one array, and so does what they
have taken out of those with later ones. Arrays end in the rows. Shapes: O options of a level, S
states of all pairs of a side, K rows.

Notes
-----
Costs of pairs, and what is taken out of them, may be single precision: `messages` are then exact
for what they are, as the options' costs (in double precision) change by just what they change by.
Going back, what is taken is lowered by more than the subtraction before may have rounded up, so
that no cell of a pair is left with less than nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from millrace.models.arrays import Floats, Ints, Reals

# What is illegal costs this much, in units of which a row's options cost about one in all.
ILLEGAL = 1e6
ENOUGH = 100.0  # no state is handed more: it can only be illegal, and large numbers are coarse
CELLS = 2**16  # cells that are subtracted before their least is sought: they stay in the cache


class Options(NamedTuple):
    """The options of all states of a side, states with about as many together.

    Attributes
    ----------
    every : array
        Options, class after class: the first of every state, then the second …, and the first again
        where others of the class have more.
    classes : list
        Where in `every` those of a class are, of how many states, and the places of these.
    order : array [S]
        The place of every state.
    """

    every: Ints
    classes: list[tuple[slice, int, slice]]
    order: Ints


@dataclass(slots=True, eq=False)
class StatePair:
    """A term over the states of two choices: of boxing the producer's, and a reader's."""

    ends: tuple[int, int]  # choices
    states: tuple[Ints, Ints]  # [options] → state, at either end
    cost: Reals  # [states, states, K]
    turned: Reals = field(init=False)  # the same from the other end, in memory as well
    messages: list[Reals] = field(init=False)  # what either end has taken out: [states, K]
    shared: bool = False  # with other readers, so that the cost may change

    def __post_init__(self) -> None:
        self.turned = self.cost.swapaxes(0, 1).copy()
        self.messages = [self.cost[:, 0], self.turned[:, 0]]  # until sides hold them

    def seen_from(self, choice: int) -> tuple[Reals, Ints, int, Ints]:
        """Cost [own, other, K] from a choice's end, its states, the other choice and its states."""
        end = self.ends.index(choice)
        cost = self.turned if end else self.cost
        return cost, self.states[end], self.ends[1 - end], self.states[1 - end]

    def keep(self, rows: Ints) -> None:
        """Leave out all other rows."""
        self.cost = self.cost.take(rows, axis=2)
        self.turned = self.cost.swapaxes(0, 1).copy()


@dataclass(slots=True, eq=False)
class SweepLevel:
    """Choices with no pair among them, and what their options cost.

    Attributes
    ----------
    choices : tuple of int
    option_costs : array [O, K]
        Costs of all options, choice after choice.
    slices : list of slice
        Where those of every choice are.
    earlier, later : LevelSide, optional
        The pairs with choices of earlier levels, and of later ones.
    """

    choices: tuple[int, ...]
    option_costs: Floats
    slices: list[slice]
    earlier: "LevelSide | None" = None
    later: "LevelSide | None" = None

    @property
    def sides(self) -> "list[LevelSide]":
        """Sides that there are, the earlier one first."""
        return [side for side in (self.earlier, self.later) if side is not None]

    def forth(self) -> None:
        """Take in what pairs with earlier choices hold, and hand on an even share to the others."""
        if self.earlier is not None:
            self.option_costs += self.earlier.collect()
        if self.later is not None:
            self.option_costs += self.later.hand(self.option_costs)

    def back(self) -> None:
        """Take in what pairs with later choices hold, and hand on an even share to the others."""
        if self.later is not None:
            self.option_costs += self.later.collect(lowered=True)
        if self.earlier is not None:
            self.option_costs += self.earlier.hand(self.option_costs)

    def least(self) -> Floats:
        """Least cost of every choice's options: [choices, K]."""
        least_costs: Floats = np.array(
            [self.option_costs[place].min(axis=0) for place in self.slices]
        )
        return least_costs

    def keep(self, rows: Ints) -> None:
        """Leave out all other rows; pairs are left to `StatePair.keep`."""
        self.option_costs = self.option_costs.take(rows, axis=1)
        for side in self.sides:
            side.hold(side.messages.take(rows, axis=1))


class LevelSide:
    """The pairs of a level's choices with earlier choices, or those with later ones: one at least.

    Parameters
    ----------
    level : SweepLevel
    pairs : sequence of sequences of StatePair
        Per choice of the level.
    most : sequence of int
        Per choice the number of its pairs on the side where there are more.

    Attributes
    ----------
    messages : array [S, K]
        What the choices have taken out of these pairs.
    slices : list of slice
        Which of it lies in which pair.
    """

    def __init__(
        self, level: SweepLevel, pairs: Sequence[Sequence[StatePair]], most: Sequence[int]
    ) -> None:
        ends = zip(level.choices, pairs, strict=True)
        pair_ends = [
            (pair, pair.ends.index(choice))
            for choice, choice_pairs in ends
            for pair in choice_pairs
        ]
        homes = [number for number, choice_pairs in enumerate(pairs) for _ in choice_pairs]
        # Pairs whose other ends have as many states lie side by side: one minimum serves them.
        order = sorted(
            range(len(pair_ends)),
            key=lambda number: pair_ends[number][0].cost.shape[1 - pair_ends[number][1]],
        )
        self.pairs = tuple(pair_ends[number] for number in order)
        homes = [homes[number] for number in order]
        counts = tuple(pair.cost.shape[end] for pair, end in self.pairs)
        states = tuple(pair.states[end].tobytes() for pair, end in self.pairs)
        starts = tuple(place.start for place in level.slices)
        self.slices, self.state, self.options = _layout(
            counts, states, tuple(homes), starts, len(level.option_costs)
        )
        shares = np.array([1 / most[home] for home in homes])
        self._shares = np.repeat(shares, counts)[:, None]
        self.hold(np.zeros((sum(counts), level.option_costs.shape[1]), self.pairs[0][0].cost.dtype))

    def hold(self, messages: Reals) -> None:
        """Set what was taken, and make scratch arrays of its shape."""
        self.messages = messages
        self._next_messages = np.empty_like(messages)
        self._gift, self._least = np.empty((2, *messages.shape))
        self._moved = np.zeros(
            (len(messages) + 1, messages.shape[1])
        )  # the last row stands for no state
        for (pair, end), place in zip(self.pairs, self.slices, strict=True):
            pair.messages[end] = messages[place]

    def lay_out(self, room: Reals) -> None:
        """Note where `collect` reads and writes, once for every sweep; `room` is for its use."""
        self._groups: list[tuple[list[tuple[Reals, Reals, Reals]], Reals, Reals]] = []
        for first, last in self._runs():
            cells = slice(self.slices[first].start, self.slices[last].stop)
            depth = self._depth(first)
            shape = depth, cells.stop - cells.start, self.messages.shape[1]
            left = room[: shape[0] * shape[1] * shape[2]].reshape(shape)
            links = []
            for number in range(first, last + 1):
                (pair, end), place = self.pairs[number], self.slices[number]
                into = left[:, place.start - cells.start : place.stop - cells.start]
                cost = pair.cost if end else pair.turned
                links.append((cost, pair.messages[1 - end][:, None], into))
            self._groups.append((links, left, self._next_messages[cells]))

    def room(self) -> int:
        """Number of cells that `lay_out` needs."""
        runs = (
            (self.slices[a].start, self.slices[b].stop, self._depth(a)) for a, b in self._runs()
        )
        most: int = max((stop - start) * depth for start, stop, depth in runs)
        return most * len(self.messages[0])

    def _depth(self, number: int) -> int:
        """Number of states at a pair's other end."""
        pair, end = self.pairs[number]
        return len(pair.turned if end == 0 else pair.cost)

    def _runs(self) -> list[tuple[int, int]]:
        """First and last pair of those whose least is sought at once."""
        runs: list[tuple[int, int]] = []
        for number, place in enumerate(self.slices):
            depth = self._depth(number)
            if runs and self._depth(runs[-1][0]) == depth:
                cells = (place.stop - self.slices[runs[-1][0]].start) * depth
                if cells * self.messages.shape[1] <= CELLS:
                    runs[-1] = runs[-1][0], number
                    continue
            runs.append((number, number))
        return runs

    def collect(self, *, lowered: bool = False) -> Floats:
        """Take all that is left for each state out of the pairs; return the sums for an option."""
        for links, left, least in self._groups:
            for cost, other, into in links:
                np.subtract(cost, other, out=into)
            np.minimum.reduce(left, axis=0, out=least)
        if lowered and self.messages.dtype == np.float32:
            self._next_messages -= np.abs(self._next_messages) * np.finfo(np.float32).eps
        return self.take(self._next_messages)

    def hand(self, option_costs: Floats) -> Floats:
        """Put a share of the options' least cost into every pair; return what an option gains."""
        options, classes, order = self.options
        offered = option_costs.take(options, axis=0)
        if len(classes) > 1:
            for cells, count, into in classes:
                each = offered[cells].reshape(-1, count, option_costs.shape[1])
                np.minimum.reduce(each, axis=0, out=self._least[into])
            self._least.take(order, axis=0, out=self._gift, mode="clip")
        else:
            each = offered.reshape(-1, len(order), option_costs.shape[1])
            np.minimum.reduce(each, axis=0, out=self._gift)
        self._gift *= self._shares
        np.minimum(self._gift, ENOUGH, out=self._gift)
        np.subtract(self.messages, self._gift, out=self._next_messages, casting="same_kind")
        return self.take(self._next_messages)

    def take(self, messages: Reals) -> Floats:
        """Take so much instead of what was taken before; return the difference for an option."""
        np.subtract(messages, self.messages, out=self._moved[:-1], dtype=np.float64)
        np.copyto(self.messages, messages)
        return self.spread(self._moved)

    def conditional_costs(self, chosen: Ints, rows: Ints) -> Floats:
        """Costs left in pairs for an option, given the options of their other ends: [O, K]."""
        for (pair, end), place in zip(self.pairs, self.slices, strict=True):
            cost = pair.turned if end else pair.cost
            states = pair.states[1 - end][chosen[pair.ends[1 - end]]]
            np.subtract(cost[:, states, rows], pair.messages[end], out=self._moved[place])
        return self.spread(self._moved)

    def spread(self, values: Floats) -> Floats:
        """Sum of the values of an option's states: [O, K], from values [S + 1, K]."""
        sums: Floats = values.take(self.state[0], axis=0)
        for state in self.state[1:]:
            sums += values.take(state, axis=0)
        return sums


def levels_of(
    order: Sequence[int], option_costs: Sequence[Floats], pairs: Sequence[StatePair]
) -> list[SweepLevel]:
    """Levels of choices by the longest way from one without earlier ones; pairs lead to later ones.

    Parameters
    ----------
    order : sequence of int
        The choices.
    option_costs : sequence of arrays
        Costs of the options of every choice.
    pairs : sequence of StatePair
        All pairs between them.
    """
    beside: dict[int, tuple[list[StatePair], list[StatePair]]] = {
        choice: ([], []) for choice in order
    }
    for pair in pairs:
        beside[max(pair.ends)][0].append(pair)
        beside[min(pair.ends)][1].append(pair)
    depth: dict[int, int] = {}
    for choice in order:
        depth[choice] = max((depth[min(pair.ends)] + 1 for pair in beside[choice][0]), default=0)
    levels = []
    for number in range(max(depth.values(), default=-1) + 1):
        choices = tuple(choice for choice in order if depth[choice] == number)
        ends = np.cumsum([0, *(len(option_costs[choice]) for choice in choices)]).tolist()
        costs = np.concatenate([option_costs[choice] for choice in choices])
        level = SweepLevel(choices, costs, [slice(a, b) for a, b in pairwise(ends)])
        most = [max(map(len, beside[choice])) for choice in choices]
        earlier, later = ([beside[choice][side] for choice in choices] for side in (0, 1))
        level.earlier = LevelSide(level, earlier, most) if any(earlier) else None
        level.later = LevelSide(level, later, most) if any(later) else None
        levels.append(level)
    return levels


@lru_cache(maxsize=2_000)
def _layout(
    counts: tuple[int, ...],
    states: tuple[bytes, ...],
    homes: tuple[int, ...],
    starts: tuple[int, ...],
    options: int,
) -> tuple[list[slice], Ints, Options]:
    """Places of the states of all pairs of a side, one pair after the other, and options' states.

    Parameters
    ----------
    counts, states, homes : tuples
        Per pair its number of states, which of them the choice's options have, and the choice's
        place.
    starts : tuple
        The first option of every choice.
    options : int
        Number of options of all choices.

    Returns
    -------
    slices : list
        Where the states of every pair are.
    state : array [pairs of a choice, O]
        One behind the last state where a choice has fewer pairs than others.
    options : Options
    """
    firsts = np.cumsum([0, *counts])
    rank = [homes[:number].count(home) for number, home in enumerate(homes)]
    state = np.full((max(rank) + 1, options), firsts[-1])
    flat: list[Ints] = []
    for number, state_bytes in enumerate(states):
        option_states = np.frombuffer(state_bytes, np.int64) + firsts[number]
        start = starts[homes[number]]
        state[rank[number], start : start + len(option_states)] = option_states
        flat.append(np.stack([option_states, np.arange(start, start + len(option_states))]))
    places, option = np.concatenate(flat, axis=1)
    slices = [slice(a, b) for a, b in pairwise(firsts.tolist())]
    return slices, state, _alike(places, option[np.argsort(places, kind="stable")])


def _alike(states: Ints, options: Ints) -> Options:
    """Options of all states, from options in the order of their states."""
    sizes = np.bincount(states)
    first = np.cumsum(sizes) - sizes
    kinds = np.frexp(sizes - 0.5)[1]  # the class of a size: up to 1, 2, 4, 8 …
    order = np.argsort(kinds, kind="stable")
    classes: list[tuple[slice, int, slice]] = []
    every: list[Ints] = []
    cells = done = 0
    for kind in np.unique(kinds).tolist():
        where = np.flatnonzero(kinds == kind)
        turn = np.arange(int(sizes[where].max()))[:, None]
        place = first[where] + np.where(turn < sizes[where], turn, 0)
        every.append(options[place].ravel())
        into = slice(done, done + len(where))
        classes.append((slice(cells, cells + place.size), len(where), into))
        cells, done = cells + place.size, done + len(where)
    return Options(np.concatenate(every), classes, np.argsort(order))
