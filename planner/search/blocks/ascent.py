"""Ascent: bounds and solutions of many block programs at once, one per row of a pricing.

A block program takes one option per choice at the least sum of option costs and boxing. Moving
cost between a choice and the boxing beside it changes no sum, but raises the bound that comes from
minimising every term alone::

    cost(o) ≥ Σ_c min_o own[c, o] + Σ_u min_ab pair[u, a, b]

A sweep goes through the choices in order: each takes in what its pairs with earlier choices hold
and hands an even share to its pairs with later ones; then back again. Boxing that several readers
of a net may share is split among them, and the split follows the slack. After a sweep back every
pair is empty at its least, so that the bound is in the choices alone, and a solution is read off
by taking options one after the other, each the best beside those before it.

All arrays end in the rows: one pass of NumPy serves every mesh and microbatch.

Notes
-----
Sequential reweighted message passing: Kolmogorov, "A new look at reweighted message passing", IEEE
TPAMI 37(5), 2015, figure 2, for pairwise terms, where it equals TRW-S.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.search.blocks.states import Bools, Ints
from planner.search.blocks.tables import INFLIGHT, MICROBATCH, PERSISTENT, STEP, Net, Tables, totals

Floats = NDArray[np.float64]

# What is illegal costs this much, in units of which a row's options cost about one in all.
ILLEGAL = 1e6
SETTLED = 1e-9  # gap, as a share of the cost, at which a solution counts as proven
STALE, STALE_SWEEPS = 0.03, 8  # stop when so many sweeps close less than this share of the gap


class Side:
    """How the options of one choice fall on the states of a pair: a state per option."""

    def __init__(self, states: Ints) -> None:
        self.state = states
        self.order = np.argsort(states, kind="stable")
        ordered = states[self.order]
        self.starts = np.flatnonzero(np.diff(ordered, prepend=-1))
        self.plain = bool((states == np.arange(len(states))).all())

    def least(self, values: Floats) -> Floats:
        """The least value of any option per state: [states, K]."""
        if self.plain:
            return values
        found: Floats = np.minimum.reduceat(values[self.order], self.starts, axis=0)
        return found

    def spread(self, values: Floats) -> Floats:
        """The value of its state for every option: [options, K]."""
        return values if self.plain else values[self.state]


@dataclass(slots=True, eq=False)
class Pair:
    """One use of a net as a term over the states of its producer and its reader."""

    first: int  # the choice that comes earlier in the order
    second: int
    sides: tuple[Side, Side]
    columns: Ints  # targets of the net that the reader wants
    swapped: bool  # the reader comes before the producer
    cost: Floats  # [states of first, states of second, K]
    turned: Floats  # the same as [states of second, states of first, K], in memory as well
    taken: list[Floats]  # what each side has taken out of the pair: [states, K]

    def gain(self, at: int) -> Floats:
        """The least that is left for each state of one side."""
        # The least over the first axis is much faster than over the second.
        left, other = (self.turned, self.taken[1]) if at == 0 else (self.cost, self.taken[0])
        least: Floats = (left - other[:, None]).min(axis=0)
        return least - self.taken[at]

    def change(self, by: Floats) -> None:
        """Add to the cost."""
        self.cost += by
        self.turned += by.swapaxes(0, 1)

    def keep(self, rows: Bools) -> None:
        """Leave out all other rows."""
        self.cost, self.turned = self.cost[:, :, rows], self.turned[:, :, rows]
        self.taken = [one[:, rows] for one in self.taken]


class Ascent:
    """The duals of the block programs of all rows of tables, at given prices.

    Parameters
    ----------
    tables : Tables
    prices : array [F, K]
        What one unit of each figure costs, row by row.

    Attributes
    ----------
    bounds : array [K]
        Proven least cost of every row so far.
    costs : array [K]
        Of the best solution that was read off; infinite where none is legal.
    options : array [choices, K]
        That solution.
    """

    def __init__(self, tables: Tables, prices: Floats) -> None:
        self.tables = tables
        self.prices = prices.astype(np.float64)
        self.places = np.arange(tables.rows)  # rows that are still swept
        self.before: list[list[Pair]] = [[] for _ in tables.choices]
        self.after: list[list[Pair]] = [[] for _ in tables.choices]
        self.shared: list[list[Pair]] = []
        self.unit = self._unit()
        self.own = self._own(self.prices)
        for own, choice in zip(self.own, tables.choices, strict=True):
            own[~choice.legal] = ILLEGAL
        for net in tables.nets:
            self._add_net(net)
        self.bounds = np.full(tables.rows, -np.inf)
        self.costs = np.full(tables.rows, np.inf)
        self.options = np.zeros((len(tables.choices), tables.rows), np.int64)

    # -- setting up --------------------------------------------------------------------------

    def _unit(self) -> Floats:
        """What all choices cost at their mean, so that costs are of the order of one."""
        total = np.zeros(self.tables.rows)
        for choice in self.tables.choices:
            own = choice.count * np.einsum("fok,fk->ok", choice.figures, self.prices)
            total += np.where(choice.legal, own, 0).sum(axis=0) / np.maximum(
                choice.legal.sum(axis=0), 1
            )
        return np.maximum(total, 1e-30)

    def _own(self, prices: Floats) -> list[Floats]:
        """What every option costs at these prices, kept bytes included."""
        scaled = prices / self.unit
        found = [c.count * np.einsum("fok,fk->ok", c.figures, scaled) for c in self.tables.choices]
        if scaled[INFLIGHT].any():
            for net in self.tables.nets:
                holders = [use for use in net.uses if use.holds]
                for use in holders:
                    held = net.held_bytes * (net.count / len(holders) * scaled[INFLIGHT])
                    found[use.choice] += held[use.wants]
        return found

    def _boxing(self, net: Net, prices: Floats) -> Floats:
        """What every boxing of a net costs at these prices: [A, B, K]."""
        scaled = net.count * prices / self.unit
        cost: Floats = net.duration_ns * scaled[STEP if net.step else MICROBATCH]
        if scaled[PERSISTENT].any():
            cost = cost + net.buffer_bytes * scaled[PERSISTENT]
        return cost

    def _add_net(self, net: Net) -> None:
        cost = self._boxing(net, self.prices)
        if not cost.any() and net.reachable.all() and not net.buffer_bytes.any():
            return
        wanted = np.zeros(net.held_bytes.shape[0])
        for use in net.uses:
            wanted[np.unique(use.wants)] += 1
        share = np.where(net.reachable, cost / wanted[None, :, None], ILLEGAL)
        made: list[Pair] = []
        for use in net.uses:
            if use.choice == net.producer:
                self.own[use.choice] += share[net.makes, use.wants]
            else:
                made.append(self._pair(net, use.choice, use.wants, share))
        if len(made) > 1:
            self.shared.append(made)

    def _pair(self, net: Net, reader: int, wants: Ints, cost: Floats) -> Pair:
        columns, back = np.unique(wants, return_inverse=True)
        sides = Side(net.makes), Side(back.astype(np.int64))
        ends = net.producer, reader
        mine = cost[:, columns]
        swapped = reader < net.producer
        if swapped:
            mine, sides, ends = mine.swapaxes(0, 1), (sides[1], sides[0]), (ends[1], ends[0])
        pair = Pair(
            first=ends[0],
            second=ends[1],
            sides=sides,
            columns=columns,
            swapped=swapped,
            cost=np.array(mine, order="C"),
            turned=np.array(mine.swapaxes(0, 1), order="C"),
            taken=[np.zeros((n, mine.shape[2])) for n in mine.shape[:2]],
        )
        self.after[ends[0]].append(pair)
        self.before[ends[1]].append(pair)
        return pair

    def ascend(self, sweeps: int, max_gap: float = 0.0, cutoffs: Floats | None = None) -> None:
        """Sweep until every row is settled, or its bound has stopped rising.

        Parameters
        ----------
        sweeps : int
            There and back, at most.
        max_gap : float
            Relative gap at which a row is settled.
        cutoffs : array [K], optional
            Bounds at which rows are settled: no solution that costs as much is wanted.
        """
        limit = np.full(self.tables.rows, np.inf) if cutoffs is None else cutoffs
        target = max(max_gap, SETTLED)
        history: list[Floats] = []
        for number in range(sweeps):
            self.sweep()
            if number in (1, 2) and cutoffs is not None:
                self.keep(self.bounds[self.places] < limit[self.places])
                if not len(self.places):
                    break
            if number % 4 == 2 or number == sweeps - 1:
                self.decode()
            history.append(self.bounds.copy())
            gap = self.costs - self.bounds
            settled = np.isfinite(gap) & (gap <= target * np.abs(self.costs))
            going = ~settled & (self.bounds < limit)
            if number >= STALE_SWEEPS:
                risen = self.bounds - history[number - STALE_SWEEPS]
                going &= ~(np.isfinite(gap) & (risen < STALE * gap))
            if not going[self.places].any():
                break
            if number % 2 == 1 and going[self.places].mean() < 0.6:
                self.keep(going[self.places])
            if number % 2 == 0:
                self.reshare()

    # -- sweeping ----------------------------------------------------------------------------

    def sweep(self) -> None:
        """Go through all choices and back; bounds and solutions follow."""
        self._pass(forward=True)
        self._pass(forward=False)
        bound = np.sum([own.min(axis=0) for own in self.own], axis=0) * self.unit
        self.bounds[self.places] = np.maximum(self.bounds[self.places], bound)

    def _pass(self, forward: bool) -> None:
        count = len(self.own)
        at = 1 if forward else 0
        for index in range(count) if forward else range(count - 1, -1, -1):
            collect, hand_on = self.before[index], self.after[index]
            if not forward:
                collect, hand_on = hand_on, collect
            own = self.own[index]
            for pair in collect:
                gain = pair.gain(at)
                pair.taken[at] += gain
                own += pair.sides[at].spread(gain)
            if not hand_on:
                continue
            share = 1 / max(len(collect), len(hand_on))
            gifts = [share * pair.sides[1 - at].least(own) for pair in hand_on]
            for pair, gift in zip(hand_on, gifts, strict=True):
                pair.taken[1 - at] -= gift
                own -= pair.sides[1 - at].spread(gift)

    def reshare(self) -> None:
        """Move the split of shared boxing from uses with slack to the others."""
        for pairs in self.shared:
            shape = [pairs[0].cost.shape[1 if pairs[0].swapped else 0], 0, len(self.places)]
            shape[1] = 1 + max(int(pair.columns[-1]) for pair in pairs)
            pool, takers = np.zeros(shape), np.zeros(shape[1])
            slacks = []
            for pair in pairs:
                rest = pair.cost - pair.taken[0][:, None] - pair.taken[1][None]
                paid = pair.cost
                if pair.swapped:
                    rest, paid = rest.swapaxes(0, 1), paid.swapaxes(0, 1)
                slack = np.clip(rest - rest.min(axis=(0, 1)), 0, paid)
                slacks.append(slack)
                pool[:, pair.columns] += slack
                takers[pair.columns] += 1
            pool /= np.maximum(takers, 1)[None, :, None]
            for pair, slack in zip(pairs, slacks, strict=True):
                change = pool[:, pair.columns] - slack
                pair.change(change.swapaxes(0, 1) if pair.swapped else change)

    def decode(self) -> None:
        """Read a solution off after a sweep, and keep it where it is the best so far."""
        rows = np.arange(len(self.places))
        chosen = np.zeros((len(self.own), len(rows)), np.int64)
        for index, own in enumerate(self.own):
            value = own
            for pair in self.before[index]:
                state = pair.sides[0].state[chosen[pair.first]]
                rest = pair.cost[state, :, rows].T - pair.taken[1]
                value = value + pair.sides[1].spread(rest)
            chosen[index] = value.argmin(axis=0)
        cost, legal = self.measured(chosen)
        better = legal & (cost < self.costs[self.places])
        self.costs[self.places[better]] = cost[better]
        self.options[:, self.places[better]] = chosen[:, better]

    def measured(self, chosen: Ints) -> tuple[Floats, Bools]:
        """Cost and legality of one option per choice on the rows that are swept."""
        figures, legal = totals(self.tables, chosen, self.places)
        return (figures * self.prices).sum(axis=0), legal

    def keep(self, rows: Bools) -> None:
        """Go on with some of the rows that are swept only."""
        if rows.all():
            return
        self.places = self.places[rows]
        self.prices = self.prices[:, rows]
        self.unit = self.unit[rows]
        self.own = [own[:, rows] for own in self.own]
        for pairs in self.after:
            for pair in pairs:
                pair.keep(rows)

    def lifts(self) -> list[Floats]:
        """Per choice and option, by how much taking it lifts the bound of the only row."""
        found = []
        for index, own in enumerate(self.own):
            value = own[:, 0] - own[:, 0].min()
            for pairs, at in ((self.before[index], 1), (self.after[index], 0)):
                for pair in pairs:
                    gain = pair.gain(at)[:, 0]
                    value = value + (gain - gain.min())[pair.sides[at].state]
            found.append(value * self.unit[0])
        return found
