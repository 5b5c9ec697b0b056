"""Potentials: costs of every option, boxing and kept tensor of block programs at prices.

Costs are in units of which a row's options cost about one in all. What is illegal costs infinity
where solutions are measured, and `ILLEGAL` where bounds are sought; boxing may be rounded down to
single precision there. Prices are those of all templates, or of each. Shapes: F figures, T
templates (or 1), O options, A sources, B targets, U uses, K rows, R columns of a solution.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np

from millrace.models.arrays import Bools, Floats, Ints, Reals
from millrace.planner.search.blocks.cost_tables import (
    INFLIGHT,
    PERSISTENT,
    CostTables,
    EdgeCosts,
    NodeCosts,
)
from millrace.planner.search.blocks.duals.edge_splitting import Shared, along
from millrace.planner.search.blocks.duals.messages import ILLEGAL, StatePair
from millrace.planner.search.blocks.strategies import EdgeUse


class PricedTerms:
    """Costs of tables at prices.

    Attributes
    ----------
    unit : array [K]
        Sum over choices of their options' mean cost.
    legal_options : list of array
        Options of every choice that are legal in some row; all terms are over these.
    option_costs : list of array [O, K]
        Costs of the options of every choice.
    pairs : list of StatePair
        Boxing: a term for every use of an edge.
    shared : list of Shared
        The pairs of every edge that has several readers.
    """

    def __init__(
        self,
        tables: CostTables,
        prices: Floats,
        *,
        keep_all: bool,
        precision: type[np.floating[Any]] = np.float64,
    ) -> None:
        self.rows = tables.rows
        self._precision = precision
        self.legal_options = [_legal(choice, keep_all=keep_all) for choice in tables.choices]
        every = prices if prices.ndim == 3 else prices[:, None]  # [F, T, K]
        raw = [
            choice.count
            * np.einsum("fok,fk->ok", choice.figures, _of_template(every, choice.template))
            for choice in tables.choices
        ]
        self.unit = _unit(tables, raw)
        self._scaled = every / self.unit
        self._paid: list[Floats] = []  # per choice, infinite where it is illegal
        self.option_costs: list[Floats] = []
        for choice, cost, legal_options in zip(
            tables.choices, raw, self.legal_options, strict=True
        ):
            cost /= self.unit
            cost[~choice.legal] = np.inf
            self._paid.append(cost)
            self.option_costs.append(cost.take(legal_options, axis=0))
        self.pairs: list[StatePair] = []
        self.shared: list[Shared] = []
        held_terms = self._hold(tables.edges)
        for costs in self.option_costs:
            np.minimum(costs, ILLEGAL, out=costs)
        self._counted = [
            counted for counted in (self._box(tables.edges), held_terms) if counted is not None
        ]

    def measured(self, chosen: Ints, places: Ints) -> Floats:
        """Cost of one option per choice on some rows, infinite where that is illegal: [R]."""
        cost = np.zeros(len(places))
        for paid, option in zip(self._paid, chosen, strict=True):
            cost += paid[option, places]
        for counted in self._counted:
            cost += counted.total(chosen, places)
        return cost * self.unit[places]

    def _hold(self, edges: Sequence[EdgeCosts]) -> "Counted | None":
        """Charge readers for what is kept for them; return these costs, None where all are zero."""
        price = self._scaled[INFLIGHT]
        holding = [edge for edge in edges if any(use.holds for use in edge.uses)]
        if not price.any() or not holding:
            return None
        costs = [
            edge.held_bytes * (edge.count * _of_template(price, edge.template)) for edge in holding
        ]
        for edge, cost in zip(holding, costs, strict=True):
            self._add_held(edge, cost)
        starts = np.cumsum([0, *(len(cost) for cost in costs[:-1])]).tolist()
        paid = list(zip(holding, starts, strict=True))
        return Counted.of(np.concatenate(costs), paid, sources=False)

    def _add_held(self, edge: EdgeCosts, cost: Floats) -> None:
        """Add an even share of what is kept to the options of every reader that keeps it."""
        holders = [use for use in edge.uses if use.holds]
        for use in holders:
            wants = use.target_of[self.legal_options[use.choice]]
            self.option_costs[use.choice] += (cost / len(holders)).take(wants, axis=0)

    def _box(self, edges: Sequence[EdgeCosts]) -> "Counted | None":
        """Add pairs for edges whose boxing costs anything; return all such costs, None: none."""
        starts = np.cumsum([0, *(edge.reachable[..., 0].size for edge in edges)]).tolist()
        cost = np.empty((starts[-1], self.rows))
        paid = []
        for edge, start, end in zip(edges, starts[:-1], starts[1:], strict=True):
            boxing = cost[start:end].reshape(edge.reachable.shape)
            if self._price(edge, boxing):
                self._add_edge(edge, boxing)
                paid.append((edge, start))
        return Counted.of(cost, paid, sources=True) if paid else None

    def _price(self, edge: EdgeCosts, cost: Floats) -> bool:
        """Write costs of every boxing of an edge into `cost` [A, B, K]; True if any is not zero."""
        price = edge.count * _of_template(self._scaled, edge.template)
        np.multiply(edge.duration_ns, price[edge.figure], out=cost)
        bytes_too = bool(edge.buffer_bytes.any())
        if bytes_too and price[PERSISTENT].any():
            cost += edge.buffer_bytes * price[PERSISTENT]
        all_reachable = bool(edge.reachable.all())
        if all_reachable and not bytes_too and not cost.any():
            return False
        if not all_reachable:
            np.copyto(cost, np.inf, where=~edge.reachable)
        return True

    def _add_edge(self, edge: EdgeCosts, cost: Floats) -> None:
        """Add the pairs of an edge, and what boxing costs of options that read what they make."""
        parts = self._shares(edge, cost)
        pairs: list[StatePair] = []
        wanted_by: list[Ints] = []
        for number, (use, (columns, states)) in enumerate(
            zip(edge.uses, parts.targets, strict=True)
        ):
            if use.choice == edge.producer:
                self.option_costs[use.choice] += parts.share[parts.source_indices, columns[states]]
                continue
            use_cost = np.array(along(parts.share, columns, 1), copy=len(edge.uses) > 1)
            pairs.append(parts.pair(edge, number, use_cost))
            wanted_by.append(columns)
        self.pairs += pairs
        if len(pairs) > 1:
            reachable = edge.reachable.take(parts.sources, axis=0)
            self.shared.append(Shared.of(pairs, wanted_by, parts.share, reachable))

    def _shares(self, edge: EdgeCosts, cost: Floats) -> "EdgeSplit":
        """Split what boxing costs evenly among the uses that want a target, rounded down."""
        wants = [
            _distinct(use.target_of[self.legal_options[use.choice]], cost.shape[1])
            for use in edge.uses
        ]
        wanted = np.zeros(cost.shape[1])
        for columns, _ in wants:
            wanted[columns] += 1
        sources, option_sources = _distinct(
            edge.source_of[self.legal_options[edge.producer]], cost.shape[0]
        )
        # However the shares are rounded later, they never come to more than the cost.
        lower = 1 - (len(edge.uses) + 8) * np.finfo(self._precision).eps
        share: Reals = np.empty(cost.shape, self._precision)
        factor = (lower / np.maximum(wanted, 1))[:, None]
        np.multiply(cost, factor, out=share, casting="same_kind")
        share = along(share, sources, 0)
        np.minimum(share, ILLEGAL, out=share)
        return EdgeSplit(share, sources, option_sources, wants)


@dataclass(frozen=True, slots=True, eq=False)
class EdgeSplit:
    """An edge's boxing, in even shares of its uses.

    Attributes
    ----------
    share : array [A, B, K]
        Over the sources that options make.
    sources, source_indices : arrays
        These sources, and which of them every option makes.
    targets : list of pairs of arrays
        Per use, the targets that its options want, and which of them each does.
    """

    share: Reals
    sources: Ints
    source_indices: Ints
    targets: list[tuple[Ints, Ints]]

    def pair(self, edge: EdgeCosts, number: int, cost: Reals) -> StatePair:
        """The pair of one use, at this cost."""
        _, states = self.targets[number]
        return StatePair(
            ends=(edge.producer, edge.uses[number].choice),
            states=(self.source_indices, states),
            cost=cost,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Counted:
    """Uses of edges whose costs add up, each once whichever uses of its edge want it."""

    cost: Floats  # [cells, K]
    start: Ints  # [U, 1]: first cell of the use's edge
    width: Ints  # [U, 1]: its targets; 0 where the source does not matter
    ends: tuple[Ints, Ints]  # [U]: producers and readers
    states: tuple[Ints, Ints]  # states of all options of all uses' ends, use after use
    firsts: tuple[Ints, Ints]  # [U, 1]: first of these states of each use
    twins: tuple[Ints, Ints]  # earlier and later use of one edge

    def total(self, chosen: Ints, places: Ints) -> Floats:
        """Sum of the costs that a solution pays: [R]."""
        source, target = (
            states[first + chosen[end]]
            for states, first, end in zip(self.states, self.firsts, self.ends, strict=True)
        )
        paid = self.cost[self.start + source * self.width + target, places]
        earlier, later = self.twins
        again, row = np.nonzero(target[earlier] == target[later])
        paid[later[again], row] = 0.0
        total_cost: Floats = paid.sum(axis=0)
        return total_cost

    @classmethod
    def of(
        cls, cost: Floats, edges: Sequence[tuple[EdgeCosts, int]], *, sources: bool
    ) -> "Counted":
        """Uses of edges, each with its first cell: with sources all of them, else what holds."""
        start: list[int] = []
        used: list[tuple[EdgeCosts, EdgeUse]] = []
        twins: list[tuple[int, int]] = []
        for edge, first in edges:
            uses = [use for use in edge.uses if sources or use.holds]
            many = range(len(used), len(used) + len(uses))
            twins += combinations(many, 2)
            start += [first] * len(uses)
            used += [(edge, use) for use in uses]
        states = [edge.source_of for edge, _ in used], [use.target_of for _, use in used]
        width = [edge.held_bytes.shape[0] if sources else 0 for edge, _ in used]
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


def _firsts(arrays: Sequence[Ints]) -> Ints:
    starts: Ints = np.cumsum([0, *(len(states) for states in arrays[:-1])])[:, None]
    return starts


def _distinct(states: Ints, count: int) -> tuple[Ints, Ints]:
    """The states that occur, and for each of these its place among them."""
    return _occurring(states.tobytes(), count)


@lru_cache(maxsize=4_000)
def _occurring(states: bytes, count: int) -> tuple[Ints, Ints]:
    numbers = np.frombuffer(states, np.int64)
    occurs: Bools = np.bincount(numbers, minlength=count) > 0
    return np.flatnonzero(occurs), (np.cumsum(occurs) - 1)[numbers]


def _of_template(prices: Floats, template: int) -> Floats:
    """Prices [..., K] of a template, from those of each or of all [..., T, K]."""
    taken: Floats = prices[..., template if prices.shape[-2] > 1 else 0, :]
    return taken


def _legal(choice: NodeCosts, *, keep_all: bool) -> Ints:
    """The options that are legal in some row; all where none is."""
    legal_options = np.flatnonzero(choice.legal.any(axis=1))
    return np.arange(len(choice.legal)) if keep_all or not len(legal_options) else legal_options


def _unit(tables: CostTables, raw: Sequence[Floats]) -> Floats:
    """Sum over choices of their options' mean cost, so that costs are of the order of one: [K]."""
    total = np.zeros(tables.rows)
    for choice, cost in zip(tables.choices, raw, strict=True):
        legal = choice.legal
        total += (cost * legal).sum(axis=0) / np.maximum(legal.sum(axis=0), 1)
    unit: Floats = np.maximum(total, 1e-30)
    return unit
