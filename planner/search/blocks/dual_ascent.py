"""Dual ascent: bounds and solutions of many block programs at once, one per row of tables.

A block program takes one option per choice at the least sum of option costs and boxing. Moving
cost between a choice and the boxing beside it changes no sum, but raises the bound that comes from
minimising every term alone::

    cost(o) ≥ Σ_c min_o own[c, o] + Σ_u min_ab pair[u, a, b]

A sweep goes through the choices in order: each takes in what its pairs with earlier choices hold
and hands an even share to its pairs with later ones; then back again. Choices with no pair among
them are dealt with at once (a level). Boxing that several readers of an edge may share is split
among them, and the split follows what they use of it. After a sweep back every pair is empty at its
least, so that the bound is in the choices alone, and a solution is read off by taking options one
after the other, each the best beside those before it. Choices with one neighbour are taken out
before, and decided last; options that are illegal in all rows are left out.

All arrays end in the rows: one pass of NumPy serves every mesh and microbatch. Pairs are in single
precision, half the memory to go through, and rounded such that bounds hold (`duals.pairs`).

Notes
-----
Sequential reweighted message passing: Kolmogorov, "A new look at reweighted message passing", IEEE
TPAMI 37(5), 2015, figure 2, for pairwise terms, where it equals TRW-S.
"""

from typing import Any

import numpy as np

from millrace.models.arrays import Bools, Floats, Reals
from millrace.planner.search.blocks.cost_tables import CostTables
from millrace.planner.search.blocks.duals.leaf_elimination import Eliminated, eliminate
from millrace.planner.search.blocks.duals.messages import levels_of
from millrace.planner.search.blocks.duals.potentials import PricedTerms

# Gaps, as shares of the cost, at which a solution counts as proven: in double and single precision.
SETTLED, NEARLY = 1e-9, 1e-5
WORTH = 0.6  # settled rows are left out where less than this share goes on
STALE, STALE_SWEEPS = 0.03, 8  # stop when so many sweeps close less than this share of the gap


class DualAscent:
    """Duals of the block programs of all rows of tables, at given prices.

    Parameters
    ----------
    tables : CostTables
    prices : array [F, K] or [F, T, K]
        Price of one unit of each figure, row by row; with T templates, of each of them.
    keep_all : bool
        Keep every choice and option, for `min_marginals`, and double precision.

    Attributes
    ----------
    bounds : array [K]
        Proven least cost of every row so far.
    costs : array [K]
        Costs of the best solution that was read off; infinite where none is legal.
    options : array [choices, K]
        That solution.
    """

    def __init__(self, tables: CostTables, prices: Floats, *, keep_all: bool = False) -> None:
        self.tables = tables
        self.precision: type[np.floating[Any]] = np.float64 if keep_all else np.float32
        self.terms = PricedTerms(
            tables, prices.astype(np.float64), keep_all=keep_all, precision=self.precision
        )
        self.places = np.arange(tables.rows)  # rows that are still swept
        self.unit, self.option_costs = self.terms.unit, self.terms.option_costs
        self.apart: list[Eliminated] = []
        self.pairs = self.terms.pairs
        if not keep_all:
            self.apart, self.pairs = eliminate(self.option_costs, self.pairs)
        self.fixed = np.zeros(tables.rows)
        for eliminated in self.apart:
            if eliminated.pair is None:
                self.fixed += eliminated.option_costs.min(axis=0)
        gone = {eliminated.choice for eliminated in self.apart}
        order = [choice for choice in range(len(self.option_costs)) if choice not in gone]
        self.levels = levels_of(order, self.option_costs, self.pairs)
        self._lay_out()
        self.bounds = np.full(tables.rows, -np.inf)
        self.costs = np.full(tables.rows, np.inf)
        self.options = np.zeros((len(tables.choices), tables.rows), np.int64)

    def _lay_out(self) -> None:
        """Note where sweeps read and write, once for all of them."""
        sides = [side for level in self.levels for side in level.sides]
        cells = [3 * shared.total.size for shared in self.terms.shared] + [
            side.room() for side in sides
        ]
        self.room: Reals = np.empty(max(cells, default=0), self.precision)
        for side in sides:
            side.lay_out(self.room)
        for level in self.levels:
            for choice, place in zip(level.choices, level.slices, strict=True):
                self.option_costs[choice] = level.option_costs[place]

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
        target = max(max_gap, SETTLED if self.precision is np.float64 else NEARLY)
        history: list[Floats] = []
        for number in range(sweeps):
            if number:
                self.reshare()
            self.sweep()
            if number in (1, 2) and cutoffs is not None:
                below = self.bounds[self.places] < limit[self.places]
                if not below.any():
                    break
                self.keep(below)
            if number or sweeps == 1:
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
            if going[self.places].mean() < WORTH:
                self.keep(going[self.places])

    # -- sweeping ----------------------------------------------------------------------------

    def sweep(self) -> None:
        """Go through all levels and back; bounds and solutions follow."""
        for level in self.levels:
            level.forth()
        for level in reversed(self.levels):
            level.back()
        least = np.concatenate(
            [np.zeros((0, len(self.places))), *(level.least() for level in self.levels)]
        )
        bound = (self.fixed + least.sum(axis=0)) * self.unit
        self.bounds[self.places] = np.maximum(self.bounds[self.places], bound)

    def reshare(self) -> None:
        """Split shared boxing anew, by what its readers have taken of it."""
        for shared in self.terms.shared:
            shared.split(self.room)

    # -- solutions ---------------------------------------------------------------------------

    def decode(self) -> None:
        """Read a solution off after a sweep, and keep it where it is the best so far."""
        rows = np.arange(len(self.places))
        chosen = np.zeros((len(self.option_costs), len(rows)), np.int64)
        for level in self.levels:
            value = level.option_costs
            if level.earlier is not None:
                value = value + level.earlier.conditional_costs(chosen, rows)
            for choice, place in zip(level.choices, level.slices, strict=True):
                chosen[choice] = value[place].argmin(axis=0)
        for eliminated in reversed(self.apart):
            chosen[eliminated.choice] = eliminated.costs(chosen, rows).argmin(axis=0)
        for index, legal_options in enumerate(self.terms.legal_options):
            chosen[index] = legal_options[chosen[index]]
        cost = self.terms.measured(chosen, self.places)
        better = cost < self.costs[self.places]
        self.costs[self.places[better]] = cost[better]
        self.options[:, self.places[better]] = chosen[:, better]

    def keep(self, rows: Bools) -> None:
        """Go on with some of the rows that are swept only."""
        if rows.all():
            return
        left = np.flatnonzero(rows)
        self.places = self.places[left]
        self.unit, self.fixed = self.unit[left], self.fixed[left]
        for pair in self.pairs:
            pair.keep(left)
        for shared in self.terms.shared:
            shared.keep(left)
        for level in self.levels:
            level.keep(left)
        for eliminated in self.apart:
            eliminated.keep(left)
        self._lay_out()

    def min_marginals(self) -> list[Floats]:
        """Rise of the only row's bound if an option is taken, per choice: [O] each."""
        assert not self.apart, "an ascent of all choices"
        marginals = [costs[:, 0] - costs[:, 0].min() for costs in self.option_costs]
        for pair in self.pairs:
            for end, cost in enumerate((pair.turned, pair.cost)):
                left = cost[..., 0] - pair.messages[1 - end][:, :1]
                gain = left.min(axis=0) - pair.messages[end][:, 0]
                marginals[pair.ends[end]] += (gain - gain.min())[pair.states[end]]
        return [marginal * self.unit[0] for marginal in marginals]
