"""Terms: what every option, every boxing and every kept tensor of block programs costs at prices.

Costs are in units of which a row's options cost about one in all. What is illegal costs infinity
where solutions are measured, and `ILLEGAL` where bounds are sought; boxing may be rounded down to
single precision there. Shapes: O options, A sources,
B targets, U uses, K rows, R columns of a solution.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from millrace.planner.search.blocks.duals.pairs import Pair
from millrace.planner.search.blocks.space import Use
from millrace.planner.search.blocks.states import Bools, Ints
from millrace.planner.search.blocks.tables import (
    INFLIGHT,
    MICROBATCH,
    PERSISTENT,
    STEP,
    Choice,
    Net,
    Tables,
)

Floats = NDArray[np.float64]
Shares = NDArray[np.floating[Any]]
T = TypeVar("T", bound=np.generic)

# What is illegal costs this much, in units of which a row's options cost about one in all.
ILLEGAL = 1e6
TINY = 1e-30  # no cost: what costs nothing is split into nothings
EVENLY = 0.1  # share of boxing that readers have alike of what none of them needs


class Terms:
    """The costs of tables at prices.

    Attributes
    ----------
    unit : array [K]
        What all choices cost at their mean.
    kept : list of array
        Per choice the options that are legal in some row; all terms are over these.
    own : list of array [O, K]
        What the options of every choice cost.
    pairs : list of Pair
        Boxing: a term for every use of a net.
    shared : list of Shared
        The pairs of every net that has several readers.
    joints : list of Pair
        What reading a solution off counts besides: boxing and kept tensors of nets apart.
    """

    def __init__(
        self,
        tables: Tables,
        prices: Floats,
        *,
        whole: bool,
        precision: type[np.floating[Any]] = np.float64,
        apart: Sequence[Net] = (),
    ) -> None:
        self.rows = tables.rows
        self._precision = precision
        self.kept = [_legal(choice, whole=whole) for choice in tables.choices]
        raw = [
            choice.count * np.einsum("fok,fk->ok", choice.figures, prices)
            for choice in tables.choices
        ]
        self.unit = _unit(tables, raw)
        self._scaled = prices / self.unit
        self._paid: list[Floats] = []  # per choice, infinite where it is illegal
        self.own: list[Floats] = []
        for choice, cost, kept in zip(tables.choices, raw, self.kept, strict=True):
            cost /= self.unit
            cost[~choice.legal] = np.inf
            self._paid.append(cost)
            self.own.append(cost.take(kept, axis=0))
        self.pairs: list[Pair] = []
        self.shared: list[Shared] = []
        self.joints: list[Pair] = []
        held = self._hold(tables.nets, self._add_held)
        for own in self.own:
            np.minimum(own, ILLEGAL, out=own)
        self._alone = [self._box(tables.nets, self._add_net), held]
        self._joined = [self._box(apart, self._add_joints), self._hold(apart)]

    def measured(self, chosen: Ints, places: Ints) -> tuple[Floats, Floats]:
        """Cost of one option per choice on some rows, infinite where that is illegal: [R].

        First without the nets apart, then with them.
        """
        cost = np.zeros(len(places))
        for paid, option in zip(self._paid, chosen, strict=True):
            cost += paid[option, places]
        alone = cost + _total(self._alone, chosen, places)
        unit = self.unit[places]
        return alone * unit, (alone + _total(self._joined, chosen, places)) * unit

    def _hold(
        self, nets: Sequence[Net], add: Callable[[Net, Floats], None] | None = None
    ) -> "Counted | None":
        """What is kept for readers."""
        price = self._scaled[INFLIGHT]
        holding = [net for net in nets if any(use.holds for use in net.uses)]
        if not price.any() or not holding:
            return None
        costs = [net.held_bytes * (net.count * price) for net in holding]
        if add is not None:
            for net, cost in zip(holding, costs, strict=True):
                add(net, cost)
        starts = np.cumsum([0, *(len(cost) for cost in costs[:-1])]).tolist()
        paid = list(zip(holding, starts, strict=True))
        return Counted.of(np.concatenate(costs), paid, sources=False)

    def _add_held(self, net: Net, cost: Floats) -> None:
        """Add an even share of what is kept to the options of every reader that keeps it."""
        holders = [use for use in net.uses if use.holds]
        for use in holders:
            wants = use.wants[self.kept[use.choice]]
            self.own[use.choice] += (cost / len(holders)).take(wants, axis=0)

    def _box(self, nets: Sequence[Net], add: Callable[[Net, Floats], None]) -> "Counted | None":
        """What boxing costs; nets with any cost are added."""
        starts = np.cumsum([0, *(net.reachable[..., 0].size for net in nets)]).tolist()
        cost = np.empty((starts[-1], self.rows))
        paid = []
        for net, start, end in zip(nets, starts[:-1], starts[1:], strict=True):
            boxing = cost[start:end].reshape(net.reachable.shape)
            if self._price(net, boxing):
                add(net, boxing)
                paid.append((net, start))
        return Counted.of(cost, paid, sources=True) if paid else None

    def _price(self, net: Net, cost: Floats) -> bool:
        """Note what every boxing of a net costs [A, B, K]; whether any costs something."""
        price = net.count * self._scaled
        np.multiply(net.duration_ns, price[STEP if net.step else MICROBATCH], out=cost)
        bytes_too = bool(net.buffer_bytes.any())
        if bytes_too and price[PERSISTENT].any():
            cost += net.buffer_bytes * price[PERSISTENT]
        whole = bool(net.reachable.all())
        if whole and not bytes_too and not cost.any():
            return False
        if not whole:
            np.copyto(cost, np.inf, where=~net.reachable)
        return True

    def _add_net(self, net: Net, cost: Floats) -> None:
        """Add the pairs of a net, and what boxing costs of options that read what they make."""
        parts = self._shares(net, cost)
        pairs: list[Pair] = []
        wanted_by: list[Ints] = []
        for number, (use, (columns, states)) in enumerate(zip(net.uses, parts.wants, strict=True)):
            if use.choice == net.producer:
                self.own[use.choice] += parts.share[parts.made, columns[states]]
                continue
            mine = np.array(_of(parts.share, columns, 1), copy=len(net.uses) > 1)
            pairs.append(parts.pair(net, number, mine))
            wanted_by.append(columns)
        self.pairs += pairs
        if len(pairs) > 1:
            reachable = net.reachable.take(parts.sources, axis=0)
            self.shared.append(Shared.of(pairs, wanted_by, parts.share, reachable))

    def _add_joints(self, net: Net, cost: Floats) -> None:
        """Add the pairs of a net apart: its boxing, and the bytes that its readers keep."""
        parts = self._shares(net, cost)
        holders = sum(use.holds for use in net.uses)
        price = net.count * self._scaled[INFLIGHT] / max(holders, 1)
        for number, (use, (columns, _)) in enumerate(zip(net.uses, parts.wants, strict=True)):
            if use.choice != net.producer:
                boxing = parts.share.take(columns, axis=1)
                if use.holds:
                    boxing += net.held_bytes[columns] * price
                self.joints.append(parts.pair(net, number, boxing))

    def _shares(self, net: Net, cost: Floats) -> "Split":
        """Split what boxing costs evenly among the uses that want a target, rounded down."""
        wants = [_distinct(use.wants[self.kept[use.choice]], cost.shape[1]) for use in net.uses]
        wanted = np.zeros(cost.shape[1])
        for columns, _ in wants:
            wanted[columns] += 1
        sources, made = _distinct(net.makes[self.kept[net.producer]], cost.shape[0])
        # However the shares are rounded later, they never come to more than the cost.
        lower = 1 - (len(net.uses) + 8) * np.finfo(self._precision).eps
        share: Shares = np.empty(cost.shape, self._precision)
        factor = (lower / np.maximum(wanted, 1))[:, None]
        np.multiply(cost, factor, out=share, casting="same_kind")
        share = _of(share, sources, 0)
        np.minimum(share, ILLEGAL, out=share)
        return Split(share, sources, made, wants)


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """A net's boxing, in even shares of its uses.

    Attributes
    ----------
    share : array [A, B, K]
        Over the sources that options make.
    sources, made : arrays
        These sources, and which of them every option makes.
    wants : list of pairs of arrays
        Per use, the targets that its options want, and which of them each does.
    """

    share: Shares
    sources: Ints
    made: Ints
    wants: list[tuple[Ints, Ints]]

    def pair(self, net: Net, number: int, cost: Shares) -> Pair:
        """The pair of one use, at this cost."""
        columns, states = self.wants[number]
        return Pair(
            ends=(net.producer, net.uses[number].choice),
            states=(self.made, states),
            cost=cost,
            numbers=(self.sources, columns),
            use=(net.number, number),
        )


@dataclass(slots=True, eq=False)
class Shared:
    """Pairs of one net, between which the cost of boxing may be split in any way."""

    pairs: list[Pair]
    columns: list[Ints | slice]  # of every pair: which of the targets its reader wants
    total: Shares  # [A, B, K]: what the pairs cost together, of targets that some reader wants
    takers: Shares  # [B, 1]: of how many pairs a target is one
    closed: Bools | None  # [A, B, K]: what no pair can be boxed by, whatever the split

    @classmethod
    def of(
        cls, pairs: list[Pair], wanted: Sequence[Ints], share: Shares, reachable: Bools
    ) -> "Shared":
        """The pairs of readers that want these targets, at this share each."""
        for pair in pairs:
            pair.shared = True
        counts = np.bincount(np.concatenate(wanted))
        every = np.flatnonzero(counts)
        takers = counts[every, None].astype(share.dtype)
        total = _of(share, every, 1) * takers
        closed = ~_of(reachable, every, 1)
        if closed.any():
            total[closed] = 0.0
        columns = [_slice(np.searchsorted(every, one)) for one in wanted]
        return cls(pairs, columns, total, takers, closed if closed.any() else None)

    def split(self, room: Shares) -> None:
        """Leave every pair what both ends have taken out of it, and split the rest anew.

        Most goes where much was taken, `EVENLY` as much of the whole to all alike.
        """
        for pair in self.pairs:
            np.add(pair.taken[0][:, None], pair.taken[1], out=pair.cost)
            np.maximum(pair.cost, 0.0, out=pair.cost)
        self.fit(room)

    def begin(self, room: Shares) -> None:
        """Split the cost in proportion to what the pairs have for theirs."""
        used, scale = room[: 2 * self.total.size].reshape(2, *self.total.shape)
        self._add_up(used)
        np.divide(self.total, used + TINY, out=scale)
        np.multiply(self.total, used < TINY, out=used)
        used /= self.takers
        self._set(scale, used)

    def fit(self, room: Shares) -> None:
        """Let the pairs together cost what they may; `room` is for two arrays like `total`."""
        used, scale = room[: 2 * self.total.size].reshape(2, *self.total.shape)
        self._add_up(used)
        np.multiply(self.total, EVENLY, out=scale)
        scale += used
        scale += TINY
        np.divide(self.total, scale, out=scale)
        np.subtract(self.total, used, out=used)
        used *= scale
        used *= EVENLY / self.takers
        scale *= 1 + EVENLY
        self._set(scale, used)

    def _set(self, scale: Shares, extra: Shares) -> None:
        """Multiply what pairs cost, and add something."""
        if self.closed is not None:
            np.copyto(extra, ILLEGAL, where=self.closed)
        for pair, columns in zip(self.pairs, self.columns, strict=True):
            pair.cost *= scale[:, columns]
            pair.cost += extra[:, columns]
            np.copyto(pair.turned, pair.cost.swapaxes(0, 1))

    def _add_up(self, used: Shares) -> None:
        """What the pairs cost together."""
        used.fill(0.0)
        for pair, columns in zip(self.pairs, self.columns, strict=True):
            used[:, columns] += pair.cost

    def keep(self, rows: Ints) -> None:
        """Leave out all other rows; pairs are left to `Pair.keep`."""
        self.total = self.total.take(rows, axis=2)
        if self.closed is not None:
            self.closed = self.closed.take(rows, axis=2)


@dataclass(frozen=True, slots=True, eq=False)
class Counted:
    """Uses of nets whose costs add up, each once whichever uses of its net want it."""

    cost: Floats  # [cells, K]
    start: Ints  # [U, 1]: first cell of the use's net
    width: Ints  # [U, 1]: its targets; 0 where the source does not matter
    ends: tuple[Ints, Ints]  # [U]: producers and readers
    states: tuple[Ints, Ints]  # of all options of all uses' ends, one use after the other
    firsts: tuple[Ints, Ints]  # [U, 1]: where in these a use's begin
    twins: tuple[Ints, Ints]  # earlier and later use of one net

    def total(self, chosen: Ints, places: Ints) -> Floats:
        """What a solution pays: [R]."""
        source, target = (
            states[first + chosen[end]]
            for states, first, end in zip(self.states, self.firsts, self.ends, strict=True)
        )
        paid = self.cost[self.start + source * self.width + target, places]
        earlier, later = self.twins
        again, row = np.nonzero(target[earlier] == target[later])
        paid[later[again], row] = 0.0
        found: Floats = paid.sum(axis=0)
        return found

    @classmethod
    def of(cls, cost: Floats, nets: Sequence[tuple[Net, int]], *, sources: bool) -> "Counted":
        """Uses of nets, each with its first cell: with sources all of them, else what holds."""
        start: list[int] = []
        used: list[tuple[Net, Use]] = []
        twins: list[tuple[int, int]] = []
        for net, first in nets:
            uses = [use for use in net.uses if sources or use.holds]
            many = range(len(used), len(used) + len(uses))
            twins += combinations(many, 2)
            start += [first] * len(uses)
            used += [(net, use) for use in uses]
        states = [net.makes for net, _ in used], [use.wants for _, use in used]
        width = [net.held_bytes.shape[0] if sources else 0 for net, _ in used]
        pairs = np.array(twins, np.int64).reshape(-1, 2)
        return cls(
            cost=cost,
            start=np.array(start)[:, None],
            width=np.array(width)[:, None],
            ends=(np.array([n.producer for n, _ in used]), np.array([u.choice for _, u in used])),
            states=(np.concatenate(states[0]), np.concatenate(states[1])),
            firsts=(_firsts(states[0]), _firsts(states[1])),
            twins=(pairs[:, 0], pairs[:, 1]),
        )


def _total(counted: "Sequence[Counted | None]", chosen: Ints, places: Ints) -> Floats:
    """What a solution pays of all of these: [R]."""
    paid = np.zeros(len(places))
    for one in counted:
        if one is not None:
            paid += one.total(chosen, places)
    return paid


def _of(values: NDArray[T], places: Ints, axis: int) -> NDArray[T]:
    """Some of the values along an axis, as they are where that is all."""
    return values if len(places) == values.shape[axis] else values.take(places, axis=axis)


def _slice(places: Ints) -> Ints | slice:
    """Places as a slice where they are one after the other: much faster to read."""
    first, last = int(places[0]), int(places[-1])
    return slice(first, last + 1) if last - first == len(places) - 1 else places


def _firsts(arrays: Sequence[Ints]) -> Ints:
    found: Ints = np.cumsum([0, *(len(one) for one in arrays[:-1])])[:, None]
    return found


def _distinct(states: Ints, count: int) -> tuple[Ints, Ints]:
    """The states that occur, and for each of these its place among them."""
    return _occurring(states.tobytes(), count)


@lru_cache(maxsize=4_000)
def _occurring(states: bytes, count: int) -> tuple[Ints, Ints]:
    found = np.frombuffer(states, np.int64)
    occurs: Bools = np.bincount(found, minlength=count) > 0
    return np.flatnonzero(occurs), (np.cumsum(occurs) - 1)[found]


def _legal(choice: Choice, *, whole: bool) -> Ints:
    """The options that are legal in some row; all where none is."""
    found = np.flatnonzero(choice.legal.any(axis=1))
    return np.arange(len(choice.legal)) if whole or not len(found) else found


def _unit(tables: Tables, raw: Sequence[Floats]) -> Floats:
    """What all choices cost at their mean, so that costs are of the order of one."""
    total = np.zeros(tables.rows)
    for choice, cost in zip(tables.choices, raw, strict=True):
        legal = choice.legal
        total += (cost * legal).sum(axis=0) / np.maximum(legal.sum(axis=0), 1)
    found: Floats = np.maximum(total, 1e-30)
    return found
