"""The block program: one signature per op, at the least cost, as an integer program.

With choices c and their options o, nets n, sources a, targets b and uses u of a net::

    minimise    Σ_c Σ_o cost[c, o] x[c, o] + Σ_n Σ_ab boxing[n, a, b] W[n, a, b]
                    + Σ_n Σ_b held[n, b] D[n, b]
    subject to  Σ_o x[c, o] = 1                                   every choice takes one option
                Σ_b w[u, a, b] = Σ_{o makes a} x[producer, o]     a use leaves from what is made
                Σ_a w[u, a, b] = Σ_{o wants b} x[reader, o]       and arrives at what is wanted
                W[n, a, b] ≥ w[u, a, b]                           boxing is paid once per target
                D[n, b] ≥ Σ_{o wants b} x[reader, o]              so is keeping for the backward
                bytes(x, W, D) ≤ limit                            where memory is a hard row
                x ∈ {0, 1},  w, W, D ≥ 0

Every cost is a row of four figures (`tables.FIGURES`) times four prices. The rows for `w` make this
the local marginal polytope, the tightest formulation with pairwise rows: its relaxation is mostly
integral while memory is priced rather than limited. With `x` integral, `w`, `W` and `D` are too.

Notes
-----
Wainwright and Jordan, "Graphical models, exponential families, and variational inference", 2008,
section 4.1.1 (the local polytope). Solved by HiGHS through OR-Tools MathOpt with a gap and a node
limit, never a time limit, so that equal questions have equal answers.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from ortools.math_opt import model_pb2
from ortools.math_opt.python import mathopt

from planner.errors import InfeasibleError
from planner.search.tables import FIGURES, Ints, Net, Tables

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What one unit of each figure costs, in nanoseconds of the step."""

    microbatch: float = 1.0
    step: float = 1.0
    persistent_byte: float = 0.0
    inflight_byte: float = 0.0

    @property
    def vector(self) -> Floats:
        """In the order of `tables.FIGURES`."""
        return np.array([self.microbatch, self.step, self.persistent_byte, self.inflight_byte])


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRow:
    """Persistent bytes, plus bytes in flight for so many microbatches, stay within a limit."""

    inflight: int
    limit_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """The option of every choice, what it sums up to, and what is proven.

    Attributes
    ----------
    options : tuple of int
        Per choice of the tables.
    figures : tuple of int
        Totals in the order of `tables.FIGURES`, counted anew from the options.
    cost, bound : float
        The figures at the prices, and the proven least.
    """

    options: tuple[int, ...]
    figures: tuple[int, ...]
    cost: float
    bound: float


def solve(
    tables: Tables,
    prices: Prices,
    memory: MemoryRow | None = None,
    *,
    max_gap: float = 0.0,
    node_limit: int = 100_000,
) -> Solution:
    """Choose an option for every choice of the tables at the least price.

    Parameters
    ----------
    tables : Tables
    prices : Prices
    memory : MemoryRow, optional
        A hard limit besides the prices.
    max_gap : float
        Relative gap at which a solution is good enough; 0 asks for the optimum.
    node_limit : int
        Nodes of the branch and bound.

    Raises
    ------
    InfeasibleError
        The memory row cannot be met; names the least bytes that can.
    """
    program = _Program(tables, prices.vector, memory)
    answer = program.solve(max_gap, node_limit)
    if answer is None:
        assert memory is not None, "only a memory row can make a block program infeasible"
        least = solve(
            tables, Prices(microbatch=0, step=0, persistent_byte=1, inflight_byte=memory.inflight)
        )
        needed = round(least.cost)
        raise InfeasibleError(
            f"memory: no choice of signatures needs less than {needed} bytes a device, the limit "
            f"is {memory.limit_bytes}: {needed - memory.limit_bytes} bytes too few"
        )
    options, bound = answer
    figures = evaluate(tables, options)
    return Solution(
        options=options,
        figures=tuple(int(one) for one in figures),
        cost=float(figures @ prices.vector),
        bound=bound,
    )


def evaluate(tables: Tables, options: tuple[int, ...]) -> Ints:
    """Sum up the figures of a choice of options: each boxing and each kept tensor once."""
    total = np.zeros(len(FIGURES), np.int64)
    for choice, option in zip(tables.choices, options, strict=True):
        total += choice.count * choice.figures[option]
    for net in tables.nets:
        total += net.count * net_figures(net, options)
    return total


def net_figures(net: Net, options: tuple[int, ...]) -> Ints:
    """Figures of one occurrence of a net under a choice of options."""
    source = net.makes[options[net.producer]]
    wanted = {int(use.wants[options[use.choice]]) for use in net.uses}
    kept = {int(use.wants[options[use.choice]]) for use in net.uses if use.holds}
    total = np.zeros(len(FIGURES), np.int64)
    for target in sorted(wanted):
        total += net.figures[source, target]
    for target in sorted(kept):
        total += net.held[target]
    return total


class _Program:
    """The integer program in arrays, put together column by column and row by row."""

    def __init__(self, tables: Tables, prices: Floats, memory: MemoryRow | None) -> None:
        self.tables = tables
        self.prices = prices
        self.bytes_weights = np.array([0, 0, 1, memory.inflight if memory else 0], np.float64)
        self.cost: list[Floats] = []
        self.bytes: list[Floats] = []
        self.columns = 0
        self.rows = 0
        self.lower: list[Floats] = []
        self.upper: list[Floats] = []
        self.entries: list[tuple[Ints, Ints, Floats]] = []
        self.first: list[int] = []
        for choice in tables.choices:
            figures = choice.count * choice.figures
            self.first.append(self._add_columns(figures))
        self.integers = self.columns
        for index, choice in enumerate(tables.choices):
            row = self._add_rows(1, 1.0, 1.0)
            count = len(choice.options)
            self._enter(np.full(count, row), self.first[index] + np.arange(count), 1.0)
        for net in tables.nets:
            self._add_net(net)
        if memory is not None:
            self._add_memory(memory)

    def _add_columns(self, figures: Ints) -> int:
        first = self.columns
        self.columns += len(figures)
        self.cost.append(figures @ self.prices)
        self.bytes.append(figures @ self.bytes_weights)
        return first

    def _add_rows(self, count: int, lower: float, upper: float) -> int:
        first = self.rows
        self.rows += count
        self.lower.append(np.full(count, lower))
        self.upper.append(np.full(count, upper))
        return first

    def _enter(self, rows: Ints, columns: Ints, value: float) -> None:
        self.entries.append((rows, columns, np.full(len(rows), value)))

    def _add_net(self, net: Net) -> None:
        figures = net.count * net.figures
        free = bool(net.reachable.all()) and not figures.any()
        if not free:
            self._add_boxing(net, figures)
        self._add_held(net)

    def _add_boxing(self, net: Net, figures: Ints) -> None:
        """Add `w` for every use and, where several may share a boxing, `W` over them."""
        shared = len(net.uses) > 1
        paid = net.reachable & figures.any(axis=2)
        if shared:
            a, b = np.nonzero(paid)
            whole = np.full(paid.shape, -1, np.int64)
            whole[a, b] = self._add_columns(figures[a, b]) + np.arange(len(a))
        for use in net.uses:
            mine = np.zeros(len(net.targets), np.bool_)
            mine[use.wants] = True
            a, b = np.nonzero(net.reachable & mine)
            own = np.zeros((len(a), len(FIGURES)), np.int64) if shared else figures[a, b]
            columns = self._add_columns(own) + np.arange(len(a))
            leaves = self._add_rows(len(net.sources), 0.0, 0.0)
            self._enter(leaves + a, columns, 1.0)
            made = self.first[net.producer] + np.arange(len(net.makes))
            self._enter(leaves + net.makes, made, -1.0)
            rank = np.cumsum(mine) - 1
            arrives = self._add_rows(int(mine.sum()), 0.0, 0.0)
            self._enter(arrives + rank[b], columns, 1.0)
            wants = self.first[use.choice] + np.arange(len(use.wants))
            self._enter(arrives + rank[use.wants], wants, -1.0)
            if shared:
                covered = whole[a, b] >= 0
                cover = self._add_rows(int(covered.sum()), 0.0, np.inf)
                rows = cover + np.arange(int(covered.sum()))
                self._enter(rows, whole[a, b][covered], 1.0)
                self._enter(rows, columns[covered], -1.0)

    def _add_held(self, net: Net) -> None:
        """Add `D`, where bytes in flight cost anything; one holder needs no column of its own."""
        holders = [use for use in net.uses if use.holds]
        if not holders or not (self.bytes_weights[3] or self.prices[3]):
            return
        held = net.count * net.held
        if len(holders) == 1:  # the first blocks of columns are the choices', in their order
            use = holders[0]
            self.cost[use.choice] = self.cost[use.choice] + held[use.wants] @ self.prices
            self.bytes[use.choice] = self.bytes[use.choice] + held[use.wants] @ self.bytes_weights
            return
        columns = self._add_columns(held)
        for use in holders:
            mine = np.unique(use.wants)
            rows = self._add_rows(len(mine), 0.0, np.inf) + np.arange(len(mine))
            self._enter(rows, columns + mine, 1.0)
            at_row = np.searchsorted(mine, use.wants)
            wants = self.first[use.choice] + np.arange(len(use.wants))
            self._enter(rows[at_row], wants, -1.0)

    def _add_memory(self, memory: MemoryRow) -> None:
        """Bytes in shares of the limit, so that the row is of the size of the others."""
        unit = max(memory.limit_bytes, 1)
        values = np.concatenate(self.bytes) / unit
        row = self._add_rows(1, -np.inf, memory.limit_bytes / unit)
        columns = np.nonzero(values)[0]
        self.entries.append((np.full(len(columns), row), columns, values[columns]))

    def solve(self, max_gap: float, node_limit: int) -> tuple[tuple[int, ...], float] | None:
        """Options and proven bound, None where nothing is feasible."""
        cost = np.concatenate(self.cost)
        # A unit in which the cheapest options add up to about a million keeps tolerances harmless.
        scale = 1e6 / max(float(np.abs(cost[: self.integers]).sum()), 1e-9)
        model = mathopt.Model.from_model_proto(self._proto(cost * scale))
        parameters = mathopt.SolveParameters(
            relative_gap_tolerance=max_gap,
            absolute_gap_tolerance=0.0,
            node_limit=node_limit,
            random_seed=0,
        )
        result = mathopt.solve(model, mathopt.SolverType.HIGHS, params=parameters)
        reason = result.termination.reason
        if reason in (
            mathopt.TerminationReason.INFEASIBLE,
            mathopt.TerminationReason.INFEASIBLE_OR_UNBOUNDED,
        ):
            return None
        values = np.array(result.variable_values(model.variables()))
        ends = [*self.first[1:], self.integers]
        options = tuple(int(np.argmax(values[a:b])) for a, b in zip(self.first, ends, strict=True))
        return options, result.termination.objective_bounds.dual_bound / scale

    def _proto(self, cost: Floats) -> model_pb2.ModelProto:
        """The program as MathOpt reads it, filled from arrays."""
        proto = model_pb2.ModelProto()
        variables = proto.variables
        variables.ids.extend(range(self.columns))
        variables.lower_bounds.extend([0.0] * self.columns)
        upper = np.full(self.columns, np.inf)
        upper[: self.integers] = 1.0
        variables.upper_bounds.extend(upper.tolist())
        variables.integers.extend([i < self.integers for i in range(self.columns)])
        charged = np.nonzero(cost)[0]
        proto.objective.linear_coefficients.ids.extend(charged.tolist())
        proto.objective.linear_coefficients.values.extend(cost[charged].tolist())
        proto.linear_constraints.ids.extend(range(self.rows))
        proto.linear_constraints.lower_bounds.extend(np.concatenate(self.lower).tolist())
        proto.linear_constraints.upper_bounds.extend(np.concatenate(self.upper).tolist())
        rows, columns, values = (
            np.concatenate([entry[i] for entry in self.entries]) for i in range(3)
        )
        order = np.lexsort((columns, rows))
        matrix = proto.linear_constraint_matrix
        matrix.row_ids.extend(rows[order].tolist())
        matrix.column_ids.extend(columns[order].tolist())
        matrix.coefficients.extend(values[order].tolist())
        return proto
