"""Dual ascent: a fast bound for a block program, and the options that no optimum takes.

The program is a sum of costs of single options and of pairs (a net's source, a reader's target).
Moving cost between a choice and its pairs changes no sum, but raises the bound that comes from
minimising every term alone::

    cost(o) ≥ Σ_c min_o own[c, o] + Σ_u min_ab pair[u, a, b]

A sweep goes through the choices in order: each takes in what its pairs with earlier choices hold
and hands an even share to its pairs with later ones; then back again. Boxing that several readers
of a net may share is split among them, and the split follows the slack. An option whose cost lifts
the bound over a known solution is in no better one: what is left goes to the integer program.

Notes
-----
Sequential reweighted message passing: Kolmogorov, "A new look at reweighted message passing", IEEE
TPAMI 37(5), 2015, figure 2, for pairwise terms, where it equals TRW-S.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.search.tables import Ints, Net, Tables, Use, evaluate

Floats = NDArray[np.float64]

SWEEPS = 300
SETTLED = 1e-9  # gap, as a share of the cost, at which a solution counts as proven
STALE, STALE_SWEEPS = 0.03, 8  # stop when so many sweeps close less than this share of the gap


class Side:
    """How the options of one choice fall on the states of a pair: a state per option."""

    def __init__(self, states: Ints) -> None:
        self.state = states
        self.order = np.argsort(states, kind="stable")
        ordered = states[self.order]
        self.starts = np.flatnonzero(np.diff(ordered, prepend=-1))

    def least(self, values: Floats) -> Floats:
        """The least value of any option per state."""
        return np.minimum.reduceat(values[self.order], self.starts)


@dataclass(slots=True, eq=False)
class Pair:
    """One use of a net as a term over the states of its producer and its reader."""

    net: int
    first: int  # the choice that comes earlier in the order
    second: int
    sides: tuple[Side, Side]
    columns: Ints  # targets of the net that the reader wants
    swapped: bool  # the reader comes before the producer
    cost: Floats  # [states of first, states of second]
    taken: tuple[Floats, Floats]  # what each side has taken out of the pair

    def rest(self) -> Floats:
        """What is left in the pair."""
        return self.cost - self.taken[0][:, None] - self.taken[1][None, :]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ascent:
    """The best solution that was decoded (None: none), its cost, and the proven bound."""

    options: tuple[int, ...] | None
    cost: float
    bound: float


class DualAscent:
    """The dual of one block program at fixed prices.

    Parameters
    ----------
    tables : Tables
        Every source of a net must be made by some option, every target wanted (`compact`).
    prices : array
        What the four figures cost.
    """

    def __init__(self, tables: Tables, prices: Floats) -> None:
        self.tables = tables
        self.prices = prices
        self.own = [
            (choice.count * choice.figures @ prices).astype(np.float64) for choice in tables.choices
        ]
        self.pairs: list[Pair] = []
        self.before: list[list[Pair]] = [[] for _ in tables.choices]
        self.after: list[list[Pair]] = [[] for _ in tables.choices]
        self.shared: list[tuple[Floats, list[Pair]]] = []
        for index, net in enumerate(tables.nets):
            self._add_net(index, net, prices)

    def _add_net(self, index: int, net: Net, prices: Floats) -> None:
        holders = [use for use in net.uses if use.holds]
        for use in holders:
            held = net.count * net.held @ prices / len(holders)
            self.own[use.choice] += held[use.wants]
        cost = net.count * net.figures @ prices
        cost[~net.reachable] = np.inf
        if not cost.any():
            return
        wanted = np.zeros(len(net.targets))
        for use in net.uses:
            wanted[np.unique(use.wants)] += 1
        made: list[Pair] = []
        for use in net.uses:
            if use.choice == net.producer:
                self.own[use.choice] += (cost / wanted)[net.makes, use.wants]
            else:
                made.append(self._pair(index, net, use, cost / wanted))
        self.pairs += made
        if len(made) > 1:
            self.shared.append((cost, made))

    def _pair(self, index: int, net: Net, use: Use, cost: Floats) -> Pair:
        columns, wants = np.unique(use.wants, return_inverse=True)
        cost = cost[:, columns]
        sides = Side(net.makes), Side(wants.astype(np.int64))
        ends = net.producer, use.choice
        swapped = use.choice < net.producer
        if swapped:
            cost, sides, ends = cost.T, (sides[1], sides[0]), (ends[1], ends[0])
        pair = Pair(
            net=index,
            first=ends[0],
            second=ends[1],
            sides=sides,
            columns=columns,
            swapped=swapped,
            cost=cost,
            taken=(np.zeros(cost.shape[0]), np.zeros(cost.shape[1])),
        )
        self.after[ends[0]].append(pair)
        self.before[ends[1]].append(pair)
        return pair

    def ascend(self, max_gap: float = 0.0, cutoff: float = np.inf) -> "Ascent":
        """Sweep until the bound meets a decoded solution, or stops rising.

        Parameters
        ----------
        max_gap : float
            Relative gap at which to stop.
        cutoff : float
            Bound at which to stop: no solution below it is wanted.
        """
        cost, options = np.inf, None
        bounds: list[float] = []
        target = max(max_gap, SETTLED)
        for number in range(SWEEPS):
            self.sweep(True)
            self.sweep(False)
            self.reshare()
            bounds.append(self.bound())
            if number < 3 or number % 3 == 0:
                found = self.decode()
                if found is not None and (value := self._cost(found)) < cost:
                    cost, options = value, found
            gap = cost - bounds[-1]
            if gap <= target * abs(cost) or bounds[-1] >= cutoff:
                break
            risen = bounds[-1] - bounds[max(0, number - STALE_SWEEPS)]
            if number >= STALE_SWEEPS and np.isfinite(gap) and risen < STALE * gap:
                break
        return Ascent(options=options, cost=float(cost), bound=min(bounds[-1], float(cost)))

    def _cost(self, options: tuple[int, ...]) -> float:
        return float(evaluate(self.tables, options) @ self.prices)

    def bound(self) -> float:
        """The least of every term alone, added up."""
        return float(sum(own.min() for own in self.own)) + float(
            sum(pair.rest().min() for pair in self.pairs)
        )

    def sweep(self, forward: bool) -> None:
        """Go through all choices once, collecting on one side and handing on to the other."""
        count = len(self.own)
        at = 1 if forward else 0
        for index in range(count) if forward else range(count - 1, -1, -1):
            collect, hand_on = self.before[index], self.after[index]
            if not forward:
                collect, hand_on = hand_on, collect
            own = self.own[index]
            for pair in collect:
                gain = pair.rest().min(axis=1 - at)
                pair.taken[at][:] += gain
                own += gain[pair.sides[at].state]
            if not hand_on:
                continue
            share = 1 / max(len(collect), len(hand_on))
            given = [share * pair.sides[1 - at].least(own) for pair in hand_on]
            for pair, gift in zip(hand_on, given, strict=True):
                pair.taken[1 - at][:] -= gift
                own -= gift[pair.sides[1 - at].state]

    def reshare(self) -> None:
        """Move the split of shared boxing from uses with slack to the others."""
        for cost, pairs in self.shared:
            pool = np.zeros_like(cost)
            takers = np.zeros(cost.shape[1])
            slacks = []
            for pair in pairs:
                rest = pair.rest().T if pair.swapped else pair.rest()
                paid = pair.cost.T if pair.swapped else pair.cost
                slack = np.minimum(np.maximum(rest - rest.min(), 0), paid)
                slack[~np.isfinite(slack)] = 0.0
                slacks.append(slack)
                pool[:, pair.columns] += slack
                takers[pair.columns] += 1
            for pair, slack in zip(pairs, slacks, strict=True):
                change = (pool / np.maximum(takers, 1))[:, pair.columns] - slack
                pair.cost += change.T if pair.swapped else change

    def decode(self) -> tuple[int, ...] | None:
        """Options taken one after the other, each the best beside those before it.

        None where what was taken first leaves a later choice without a boxing.
        """
        options: list[int] = []
        for index, own in enumerate(self.own):
            value = own.copy()
            for pair in self.before[index]:
                state = pair.sides[0].state[options[pair.first]]
                value += pair.rest()[state][pair.sides[1].state]
            for pair in self.after[index]:
                value += pair.rest().min(axis=1)[pair.sides[0].state]
            options.append(int(np.argmin(value)))
            if not np.isfinite(value[options[-1]]):
                return None
        return tuple(options)

    def lifts(self) -> list[Floats]:
        """Per choice and option, by how much taking it lifts the bound."""
        found = []
        for index, own in enumerate(self.own):
            value = own - own.min()
            for pair in self.before[index]:
                rest = pair.rest()
                value = value + (rest.min(axis=0) - rest.min())[pair.sides[1].state]
            for pair in self.after[index]:
                rest = pair.rest()
                value = value + (rest.min(axis=1) - rest.min())[pair.sides[0].state]
            found.append(value)
        return found
