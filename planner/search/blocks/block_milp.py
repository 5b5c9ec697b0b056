"""Block MILP: one signature per op, at the least cost, as an integer program.

With choices c and their options o, edges e, sources a, targets b and uses u of an edge::

    minimise    Σ_c Σ_o cost[c, o] x[c, o] + Σ_e Σ_ab boxing[e, a, b] W[e, a, b]
                    + Σ_e Σ_b held[e, b] D[e, b]
    subject to  Σ_o x[c, o] = 1                                   every choice takes one option
                Σ_b w[u, a, b] = Σ_{o makes a} x[producer, o]     a use leaves from what is made
                Σ_a w[u, a, b] = Σ_{o wants b} x[reader, o]       and arrives at what is wanted
                W[e, a, b] ≥ w[u, a, b]                           boxing is paid once per target
                D[e, b] ≥ Σ_{o wants b} x[reader, o]              so is keeping for the backward
                bytes(x, W, D) ≤ limit                            where memory is a hard row
                x ∈ {0, 1},  w, W, D ≥ 0

Every cost is a row of figures (`cost_tables.FIGURES`) times their prices. Rows for `w` make this
the local marginal polytope, the tightest formulation with pairwise rows: its relaxation is mostly
integral while memory is priced rather than limited. With `x` integral, `w`, `W` and `D` are too.

Shapes: figures of columns are [columns, F], prices and weights [F].

Notes
-----
Wainwright and Jordan, "Graphical models, exponential families, and variational inference", 2008,
section 4.1.1 (the local polytope). Solved by HiGHS through OR-Tools MathOpt with a gap and a node
limit, never a time limit, so that equal questions have equal answers.
"""

from dataclasses import dataclass

import numpy as np

from millrace.models.arrays import Floats, Ints
from millrace.planner.search.blocks.cost_tables import (
    FIGURES,
    INFLIGHT,
    PERSISTENT,
    CostTables,
    EdgeCosts,
)
from millrace.planner.search.integer_program import NODE_LIMIT, IntegerProgram


@dataclass(frozen=True, slots=True, kw_only=True)
class FigurePrices:
    """Price of one unit of each figure, in nanoseconds of the step."""

    microbatch: float = 1.0
    step: float = 1.0
    persistent_byte: float = 0.0
    inflight_byte: float = 0.0
    deferrable: float | None = None  # None: as `microbatch`

    @property
    def vector(self) -> Floats:
        """Prices in the order of `cost_tables.FIGURES`: [F]."""
        deferrable = self.microbatch if self.deferrable is None else self.deferrable
        figures = (self.microbatch, self.step, self.persistent_byte, self.inflight_byte, deferrable)
        return np.array(figures, np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRow:
    """Limit on persistent bytes plus the bytes in flight of `inflight` microbatches."""

    inflight: int
    limit_bytes: int

    @property
    def weights(self) -> Floats:
        """Bytes of the limit that one unit of each figure takes: [F]."""
        return np.array([0.0, 0.0, 1.0, self.inflight, 0.0], np.float64)


def solve_program(
    tables: CostTables,
    prices: FigurePrices,
    memory: MemoryRow | None = None,
    *,
    max_gap: float = 0.0,
    node_limit: int = NODE_LIMIT,
) -> tuple[tuple[int, ...] | None, float] | None:
    """Options of all choices and the proven bound; None where nothing is feasible.

    There are no options where the solver stopped before it found any.

    Parameters
    ----------
    tables : CostTables
        With one row.
    prices : FigurePrices
    memory : MemoryRow, optional
        A hard limit besides the prices.
    max_gap : float
        Relative gap at which to stop; 0 asks for the optimum.
    node_limit : int
        Nodes of the branch and bound.
    """
    return _Program(tables, prices.vector, memory).solve(max_gap, node_limit)


class _Program:
    """The program of the module's docstring, in arrays."""

    def __init__(self, tables: CostTables, prices: Floats, memory: MemoryRow | None) -> None:
        self.tables = tables
        self.prices = prices
        self.memory = memory
        self.keeping = prices[3] > 0 or (memory is not None and memory.inflight > 0)
        self.program = IntegerProgram()
        if memory is not None:
            self.memory_row = self.program.add_rows(1, upper=1.0)
        self.first = [
            self._columns(choice.count * choice.figures[:, :, 0].T, integer=True)
            for choice in tables.choices
        ]
        for first, choice in zip(self.first, tables.choices, strict=True):
            row = self.program.add_rows(1, 1.0, 1.0)
            self.program.enter(row, first + np.arange(len(choice.options)), 1.0)
        for edge in tables.edges:
            if edge.duration_ns.any() or edge.buffer_bytes.any() or not edge.reachable.all():
                self._add_boxing(edge)
            if self.keeping:
                self._add_held(edge)

    def _columns(self, figures: Ints, integer: bool = False) -> int:
        """Add columns that cost these figures, and their bytes to the memory row."""
        highest = 1.0 if integer else np.inf
        first = self.program.add_columns(figures @ self.prices, integer=integer, highest=highest)
        if self.memory is not None:
            size = figures[:, 2] + self.memory.inflight * figures[:, 3]
            # The row is in shares of the limit, so that it is of the size of the others.
            columns = first + np.nonzero(size)[0]
            self.program.enter(
                self.memory_row, columns, size[size != 0] / max(self.memory.limit_bytes, 1)
            )
        return first

    def _subtract_options(self, choice: int, rows: Ints) -> None:
        """Subtract the options of a choice from the row that each of them belongs to."""
        self.program.enter(rows, self.first[choice] + np.arange(len(rows)), -1.0)

    def _add_boxing(self, edge: EdgeCosts) -> None:
        """Add `w` for every use and, where several may share a boxing, `W` over them."""
        program = self.program
        reachable = edge.reachable[:, :, 0]
        figures = np.zeros((*reachable.shape, len(FIGURES)), np.int64)
        figures[:, :, edge.figure] = edge.count * edge.duration_ns[:, :, 0]
        figures[:, :, PERSISTENT] = edge.count * edge.buffer_bytes[:, :, 0]
        shared = len(edge.uses) > 1
        shared_columns = np.full(reachable.shape, -1, np.int64)
        if shared:
            a, b = np.nonzero(reachable & figures.any(axis=2))
            shared_columns[a, b] = self._columns(figures[a, b]) + np.arange(len(a))
        for use in edge.uses:
            wanted = np.zeros(reachable.shape[1], np.bool_)
            wanted[use.target_of] = True
            a, b = np.nonzero(reachable & wanted)
            use_figures = np.zeros((len(a), len(FIGURES)), np.int64) if shared else figures[a, b]
            columns = self._columns(use_figures) + np.arange(len(a))
            leaves = program.add_rows(reachable.shape[0], 0.0, 0.0)
            program.enter(leaves + a, columns, 1.0)
            self._subtract_options(edge.producer, leaves + edge.source_of)
            arrives = program.add_rows(reachable.shape[1], 0.0, 0.0)
            program.enter(arrives + b, columns, 1.0)
            self._subtract_options(use.choice, arrives + use.target_of)
            paid = shared_columns[a, b] >= 0
            count = int(paid.sum())
            covers = program.add_rows(count, lower=0.0) + np.arange(count)
            program.enter(covers, shared_columns[a, b][paid], 1.0)
            program.enter(covers, columns[paid], -1.0)

    def _add_held(self, edge: EdgeCosts) -> None:
        """Add `D`: each target that backward readers want is kept once."""
        holders = [use for use in edge.uses if use.holds]
        if not holders:
            return
        targets = np.arange(len(edge.held_bytes))
        held_figures = np.zeros((len(targets), len(FIGURES)), np.int64)
        held_figures[:, INFLIGHT] = edge.count * edge.held_bytes[:, 0]
        columns = self._columns(held_figures)
        for use in holders:
            rows = self.program.add_rows(len(targets), lower=0.0)
            self.program.enter(rows + targets, columns + targets, 1.0)
            self._subtract_options(use.choice, rows + use.target_of)

    def solve(self, max_gap: float, node_limit: int) -> tuple[tuple[int, ...] | None, float] | None:
        """Options and proven bound, None where nothing is feasible."""
        answer = self.program.solve(max_gap, node_limit)
        if answer is None:
            return None
        if not answer.has_values:
            return None, answer.bound
        options = tuple(
            int(np.argmax(answer.values[first : first + len(choice.options)]))
            for first, choice in zip(self.first, self.tables.choices, strict=True)
        )
        return options, answer.bound
