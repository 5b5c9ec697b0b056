"""Ascent: bounds and solutions of many block programs at once, one per row of a pricing.

A block program takes one option per choice at the least sum of option costs and boxing. Moving
cost between a choice and the boxing beside it changes no sum, but raises the bound that comes from
minimising every term alone::

    cost(o) ≥ Σ_c min_o own[c, o] + Σ_u min_ab pair[u, a, b]

A sweep goes through the choices in order: each takes in what its pairs with earlier choices hold
and hands an even share to its pairs with later ones; then back again. Boxing that several readers
of a net may share is split among them, and the split follows the slack. After a sweep back every
pair is empty at its least, so that the bound is in the choices alone, and a solution is read off
by taking options one after the other, each the best beside those before it. Choices with one
neighbour are taken out before, and decided last; options that are illegal in all rows are left out.

All arrays end in the rows: one pass of NumPy serves every mesh and microbatch.

Notes
-----
Sequential reweighted message passing: Kolmogorov, "A new look at reweighted message passing", IEEE
TPAMI 37(5), 2015, figure 2, for pairwise terms, where it equals TRW-S.
"""

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from millrace.planner.search.blocks.duals.elimination import Eliminated, eliminate
from millrace.planner.search.blocks.duals.pairs import Pair, Side
from millrace.planner.search.blocks.duals.terms import Shared, Terms
from millrace.planner.search.blocks.states import Bools, Ints
from millrace.planner.search.blocks.tables import Tables, joins, severed

Floats = NDArray[np.float64]

SETTLED = 1e-9  # gap, as a share of the cost, at which a solution counts as proven
WORTH = 0.6  # settled rows are left out where less than this share goes on
STALE, STALE_SWEEPS = 0.03, 8  # stop when so many sweeps close less than this share of the gap


class Ascent:
    """The duals of the block programs of all rows of tables, at given prices.

    Parameters
    ----------
    tables : Tables
    prices : array [F, K]
        What one unit of each figure costs, row by row.
    whole : bool
        Keep every choice and option, for `lifts`.
    groups : sequence, optional
        Per choice, a number or the name of a template. Nets that join choices of different groups
        are not swept, so that each group has a bound of its own (`bounds_by`), but they count in
        `costs`, and in what is read off.

    Attributes
    ----------
    bounds : array [K]
        Proven least cost of every row so far.
    costs : array [K]
        Of the best solution that was read off; infinite where none is legal.
    options : array [choices, K]
        That solution.
    """

    def __init__(
        self,
        tables: Tables,
        prices: Floats,
        *,
        whole: bool = False,
        groups: Sequence[Hashable] | None = None,
    ) -> None:
        self.tables = tables
        apart = [] if groups is None else [net for net in tables.nets if joins(net, groups)]
        swept = tables if groups is None else severed(tables, groups)
        self.terms = Terms(swept, prices.astype(np.float64), whole=whole, apart=apart)
        self.places = np.arange(tables.rows)  # rows that are still swept
        self.unit, self.own = self.terms.unit, self.terms.own
        self.apart: list[Eliminated] = []
        self.pairs = self.terms.pairs
        if not whole:
            self.apart, self.pairs = eliminate(self.own, self.pairs)
        # Least costs of choices, those of the best sweep of every row.
        self.least = np.zeros((len(self.own), tables.rows))
        for one in self.apart:
            if one.pair is None:
                self.least[one.choice] = one.own.min(axis=0)
        self.fixed: Floats = self.least.sum(axis=0)
        gone = {one.choice for one in self.apart}
        self.order = [at for at in range(len(self.own)) if at not in gone]
        # Of every choice its pairs with earlier ones, and those with later ones.
        self.sides: list[list[Side | None]] = [[None, None] for _ in self.own]
        beside: list[tuple[list[Pair], list[Pair]]] = [([], []) for _ in self.own]
        for pair in self.pairs:
            beside[max(pair.ends)][0].append(pair)
            beside[min(pair.ends)][1].append(pair)
        for at, both in enumerate(beside):
            self.sides[at] = [Side(at, pairs, tables.rows) if pairs else None for pairs in both]
        self._lay_out()
        self._read_off()
        self.bounds = np.full(tables.rows, -np.inf)
        self.costs = np.full(tables.rows, np.inf)
        self.options = np.zeros((len(tables.choices), tables.rows), np.int64)

    def _lay_out(self) -> None:
        """Note where sweeps read and write, once for all of them."""
        self.room = np.empty(max((pair.cost.size for pair in self.pairs), default=0))
        for side in self._all_sides():
            side.lay_out(self.room)

    def _read_off(self) -> None:
        """Note per choice its joints, each with whether the other end is decided before."""
        turn = [*self.order, *(one.choice for one in reversed(self.apart))]
        place = {choice: number for number, choice in enumerate(turn)}
        self.joints: list[list[tuple[Pair, bool]]] = [[] for _ in self.own]
        for pair in self.terms.joints:
            for end, other in (pair.ends, pair.ends[::-1]):
                self.joints[end].append((pair, place[other] < place[end]))

    def _all_sides(self) -> list[Side]:
        return [side for both in self.sides for side in both if side is not None]

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
                below = self.bounds[self.places] < limit[self.places]
                if not below.any():
                    break
                self.keep(below)
            if number == sweeps - 1 or (number and number % 2 == 0):
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
            if number % 2 == 1 and going[self.places].mean() < WORTH:
                self.keep(going[self.places])
            if number % 2 == 0:
                self.reshare()

    # -- sweeping ----------------------------------------------------------------------------

    def sweep(self) -> None:
        """Go through all choices and back; bounds and solutions follow."""
        for at in self.order:
            self._visit(at, 0)
        for at in reversed(self.order):
            self._visit(at, 1)
        least = np.empty((len(self.order), len(self.places)))
        for number, at in enumerate(self.order):
            self.own[at].min(axis=0, out=least[number])
        bound = (self.fixed + least.sum(axis=0)) * self.unit
        better = bound > self.bounds[self.places]
        rows = self.places[better]
        self.bounds[rows] = bound[better]
        self.least[np.ix_(self.order, rows)] = least[:, better]

    def bounds_by(self, groups: Sequence[int]) -> Floats:
        """Bounds of groups of choices, all of the sweep that gave a row its bound: [G, K].

        They add up to `bounds`; each holds alone where no net that is swept joins groups.

        Parameters
        ----------
        groups : sequence of int
            Per choice, from zero.
        """
        found = np.zeros((max(groups) + 1, self.tables.rows))
        np.add.at(found, np.asarray(groups), self.least)
        return found * self.terms.unit

    def _visit(self, at: int, toward: int) -> None:
        """Take in what pairs on one side hold, and hand an even share to those on the other."""
        own, collect, hand_on = self.own[at], self.sides[at][toward], self.sides[at][1 - toward]
        if collect is not None:
            own += collect.collect()
        if hand_on is not None:
            most = max(len(side.pairs) for side in (collect, hand_on) if side is not None)
            hand_on.hand(own, 1 / most)

    def reshare(self) -> None:
        """Move the split of shared boxing from uses with slack to the others."""
        for shared in self.terms.shared:
            self._reshare(shared)

    def _reshare(self, shared: Shared) -> None:
        takers = shared.takers
        pool = np.zeros((len(shared.pairs[0].cost), len(takers), len(self.places)))
        for pair, columns in zip(shared.pairs, shared.columns, strict=True):
            # After a sweep back the least of what is left is nothing.
            slack = self.room[: pair.cost.size].reshape(pair.cost.shape)
            np.subtract(pair.cost, pair.taken[0][:, None], out=slack)
            slack -= pair.taken[1]
            np.maximum(slack, 0.0, out=slack)
            np.minimum(slack, pair.cost, out=slack)
            pool[:, columns] += slack
            pair.cost -= slack
        pool /= takers
        for pair, columns in zip(shared.pairs, shared.columns, strict=True):
            pair.cost += pool[:, columns]
            np.copyto(pair.turned, pair.cost.swapaxes(0, 1))

    # -- solutions ---------------------------------------------------------------------------

    def decode(self) -> None:
        """Read a solution off after a sweep, and keep it where it is the best so far."""
        rows = np.arange(len(self.places))
        chosen = np.zeros((len(self.own), len(rows)), np.int64)
        for at in self.order:
            value = self.own[at]
            side = self.sides[at][0]
            if side is not None:
                rest = -side.taken
                for (pair, _), place in zip(side.pairs, side.slices, strict=True):
                    cost, _, other, theirs = pair.seen_from(at)
                    rest[place] += cost[:, theirs[chosen[other]], rows]
                value = value + side.spread(rest)
            chosen[at] = (value + self._joined(at, chosen, rows)).argmin(axis=0)
        for one in reversed(self.apart):
            value = one.costs(chosen, rows) + self._joined(one.choice, chosen, rows)
            chosen[one.choice] = value.argmin(axis=0)
        for at, kept in enumerate(self.terms.kept):
            chosen[at] = kept[chosen[at]]
        cost = self.terms.measured(chosen, self.places)
        better = cost < self.costs[self.places]
        self.costs[self.places[better]] = cost[better]
        self.options[:, self.places[better]] = chosen[:, better]

    def _joined(self, at: int, chosen: Ints, rows: Ints) -> Floats | float:
        """Costs of a choice's options for nets that join it to others.

        Of others that are not decided yet, what their options cost after the sweep stands for what
        they will take.
        """
        value: Floats | float = 0.0
        for pair, decided in self.joints[at]:
            cost, mine, other, theirs = pair.seen_from(at)
            if decided:
                seen = cost[:, theirs[chosen[other]], rows]
            else:
                seen = (cost.take(theirs, axis=1) + self.own[other]).min(axis=1)
            value = value + seen.take(mine, axis=0)
        return value

    def keep(self, rows: Bools) -> None:
        """Go on with some of the rows that are swept only."""
        if rows.all():
            return
        left = np.flatnonzero(rows)
        self.places = self.places[left]
        self.unit, self.fixed = self.unit[left], self.fixed[left]
        for at in self.order:
            self.own[at] = self.own[at].take(left, axis=1)
        for pair in (*self.pairs, *self.terms.joints):
            pair.keep(left)
        for one in self.apart:
            one.keep(left)
            self.own[one.choice] = one.own
        for side in self._all_sides():
            side.hold(side.taken.take(left, axis=1))
        self._lay_out()

    def lifts(self) -> list[Floats]:
        """Per choice and option, by how much taking it lifts the bound of the only row."""
        assert not self.apart, "an ascent of all choices"
        found = []
        for own, sides in zip(self.own, self.sides, strict=True):
            value = own[:, 0] - own[:, 0].min()
            for side in sides:
                if side is not None:
                    for (pair, at), (cost, other, _, _) in zip(side.pairs, side.links, strict=True):
                        gain = (cost - other).min(axis=0) - pair.taken[at]
                        value = value + (gain - gain.min())[pair.states[at], 0]
            found.append(value * self.unit[0])
        return found
