"""The block solver: dual ascent first, the integer program for what it leaves open.

Most block programs end in the dual ascent: its bound meets a solution, which is then optimal. Else
options that cannot be in a better solution are dropped, and the integer program decides among the
rest. A memory row is priced first (the Lagrangian bound at the best price), then likewise.
"""

from dataclasses import dataclass, replace

import numpy as np

from millrace.models.arrays import Floats, Ints
from millrace.planner.errors import InfeasibleError
from millrace.planner.search.blocks.block_milp import FigurePrices, MemoryRow, solve_program
from millrace.planner.search.blocks.cost_tables import (
    CostTables,
    compact,
    reachable_options,
    solution_figures,
)
from millrace.planner.search.blocks.dual_ascent import SETTLED, DualAscent
from millrace.planner.search.integer_program import NODE_LIMIT
from millrace.planner.search.request import MemoryLimitError

# Above this many options a memory row is priced only: its relaxation is fractional, and the branch
# and bound too long for what it gains.
ROW_OPTIONS = 1_200
ROW_NODES = 5_000

SWEEPS = 300
PRICES = 10  # prices of memory that are tried one after the other


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """Options of all choices, the figures that they sum up to, and the proven bound.

    Attributes
    ----------
    options : tuple of int
        One option per choice of the tables.
    figures : tuple of int
        Totals in the order of `cost_tables.FIGURES`.
    cost, bound : float
        The figures at the prices, and the proven least.
    """

    options: tuple[int, ...]
    figures: tuple[int, ...]
    cost: float
    bound: float


def solve(
    tables: CostTables,
    prices: FigurePrices,
    memory: MemoryRow | None = None,
    *,
    max_gap: float = 0.0,
    node_limit: int = NODE_LIMIT,
    cutoff: float = np.inf,
    start: Solution | None = None,
) -> Solution:
    """Solution of least price: an option for every choice of the tables.

    Parameters
    ----------
    tables : CostTables
        One row; the solution's options are places in these tables.
    prices : FigurePrices
        Nanoseconds of the step for one unit of each figure.
    memory : MemoryRow, optional
        A hard limit besides the prices. In large tables (more than `ROW_OPTIONS` options in play)
        the solution is the best found by pricing, its bound the Lagrangian one.
    max_gap : float
        Relative gap at which a solution is good enough; 0 asks for the optimum.
    node_limit : int
        Nodes of the branch and bound; with a memory row no more than `ROW_NODES`.
    cutoff : float
        No solution that costs as much is wanted.
    start : Solution, optional
        The solution without the memory row, where it is known; None: solved first.

    Raises
    ------
    MemoryLimitError
        The memory row cannot be met; holds the least bytes that can, with a `max_gap` up to that
        share too many, and in large tables a lower bound.
    BeyondCutoff
        Every solution costs `cutoff` or more; holds the bound.
    InfeasibleError
        No legal options can be boxed to one another.
    """
    solver = _Solver(tables, prices, max_gap, node_limit, cutoff)
    return solver.free() if memory is None else solver.limited(memory, start)


class BeyondCutoff(Exception):  # noqa: N818 - an outcome, not a fault
    """The bound of a program has passed the cutoff, so it was not solved further."""

    def __init__(self, bound: float) -> None:
        super().__init__(f"bound {bound}")
        self.bound = bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Ascended:
    """Outcome of an ascent: the best solution that was read off (None: none), and the bound.

    Lifts of options add to `base`, the bound of this ascent alone: others may have proven more.
    """

    options: tuple[int, ...] | None
    cost: float
    bound: float
    base: float


def evaluate(tables: CostTables, options: tuple[int, ...]) -> Ints:
    """Figures of a solution of tables with one row."""
    figures: Ints = solution_figures(tables, np.array(options).reshape(-1, 1))[0][:, 0]
    return figures


class _Solver:
    """Solver of one question, on the tables without the options that no boxing reaches."""

    def __init__(
        self,
        tables: CostTables,
        prices: FigurePrices,
        max_gap: float,
        node_limit: int,
        cutoff: float = np.inf,
    ) -> None:
        self.keep = reachable_options(tables)
        self.tables = compact(tables, self.keep)
        self.prices = prices
        self.max_gap = max_gap
        self.node_limit = node_limit
        self.cutoff = cutoff

    def free(self) -> Solution:
        """Solve without a memory row."""
        ascended, ascent = self._ascended(self.prices.vector, self.cutoff)
        if ascended.bound >= self.cutoff:
            raise BeyondCutoff(ascended.bound)
        if self._proven(ascended.cost, ascended.bound):
            return self.solution(ascended.options, ascended.bound)
        return self._decided(ascended, ascent, None, self.node_limit)

    def limited(self, memory: MemoryRow, start: Solution | None) -> Solution:
        """Solve with a memory row."""
        first = start or self.free()
        if float(np.array(first.figures) @ memory.weights) <= memory.limit_bytes:
            return first
        best, ascent = self.priced(memory, first)
        if best.bound >= self.cutoff:
            raise BeyondCutoff(best.bound)
        if self._proven(best.cost, best.bound):
            return self.solution(best.options, best.bound)
        in_play = sum(int((lift < best.cost - best.base).sum()) for lift in ascent.min_marginals())
        if in_play > ROW_OPTIONS:
            return self.solution(best.options, best.bound)
        return self._decided(best, ascent, memory, min(self.node_limit, ROW_NODES))

    def _ascended(self, prices: Floats, cutoff: float = np.inf) -> tuple[Ascended, DualAscent]:
        ascent = DualAscent(self.tables, prices.reshape(-1, 1), keep_all=True)
        ascent.ascend(SWEEPS, self.max_gap, np.array([cutoff]))
        cost = float(ascent.costs[0])
        options = tuple(int(o) for o in ascent.options[:, 0]) if np.isfinite(cost) else None
        bound = min(float(ascent.bounds[0]), cost)
        return Ascended(options=options, cost=cost, bound=bound, base=bound), ascent

    def _proven(self, cost: float, bound: float) -> bool:
        return np.isfinite(cost) and cost - bound <= max(self.max_gap, SETTLED) * abs(cost)

    def _decided(
        self, ascended: Ascended, ascent: DualAscent, memory: MemoryRow | None, nodes: int
    ) -> Solution:
        """Ask the integer program for anything better than what was found."""
        room = ascended.cost - ascended.base
        left = [np.flatnonzero(lift < room) for lift in ascent.min_marginals()]
        answer = None
        if all(len(options) for options in left):
            narrow = compact(self.tables, left)
            answer = solve_program(
                narrow, self.prices, memory, max_gap=self.max_gap, node_limit=nodes
            )
        if answer is None:  # nothing that is left beats what was found
            return self.solution(ascended.options, ascended.cost)
        bound = max(ascended.bound, min(answer[1], ascended.cost))
        if answer[0] is None:
            return self.solution(ascended.options, bound)
        options = tuple(
            int(left_options[o]) for left_options, o in zip(left, answer[0], strict=True)
        )
        if ascended.cost < float(evaluate(self.tables, options) @ self.prices.vector):
            return self.solution(ascended.options, bound)
        return self.solution(options, bound)

    def priced(self, memory: MemoryRow, first: Solution) -> tuple[Ascended, DualAscent]:
        """Best solution that fits at any price of memory, and the highest bound.

        With price y the cost is at least min (cost + y bytes) - y limit. The next price is where
        the lines of the best solutions on either side of the limit cross.
        """
        options = self._least(memory)
        low = first.cost, float(np.array(first.figures) @ memory.weights)
        high = best = self._measure(options, memory)
        bound, ascent = -np.inf, None
        for _ in range(PRICES):
            price = max(high[0] - low[0], 0.0) / (low[1] - high[1])
            ascended, tried = self._solve_at_price(price, memory)
            if ascended.bound > bound:
                bound, ascent = ascended.bound, tried
            if ascended.options is None:
                break
            point = self._measure(ascended.options, memory)
            fits = point[1] <= memory.limit_bytes
            if fits and point[0] < best[0]:
                options, best = ascended.options, point
            crossing = low[0] + price * (low[1] - memory.limit_bytes)
            if point in (low, high) or bound >= crossing - SETTLED * abs(crossing):
                break
            low, high = (low, point) if fits else (point, high)
        assert ascent is not None, "one price at least is tried"
        return Ascended(
            options=options,
            cost=best[0],
            bound=min(max(bound, first.bound), best[0]),
            base=min(bound, best[0]),
        ), ascent

    def _solve_at_price(self, price: float, memory: MemoryRow) -> tuple[Ascended, DualAscent]:
        """Solve at a price of memory; the bound is that of the program with the row."""
        ascended, ascent = self._ascended(self.prices.vector + price * memory.weights)
        bound = ascended.bound - price * memory.limit_bytes
        return replace(ascended, bound=bound, base=bound), ascent

    def _measure(self, options: tuple[int, ...], memory: MemoryRow) -> tuple[float, float]:
        """Cost and bytes of a solution."""
        figures = evaluate(self.tables, options)
        return float(figures @ self.prices.vector), float(figures @ memory.weights)

    def _least(self, memory: MemoryRow) -> tuple[int, ...]:
        """Options of the least bytes; raises MemoryLimitError where even these do not fit."""
        bare = FigurePrices(microbatch=0, step=0, persistent_byte=1, inflight_byte=memory.inflight)
        solver = _Solver(self.tables, bare, self.max_gap, self.node_limit)
        ascended, ascent = solver._ascended(bare.vector)
        if ascended.options is not None and ascended.cost <= memory.limit_bytes:
            return ascended.options
        options = sum(len(choice.options) for choice in self.tables.choices)
        if ascended.bound > memory.limit_bytes and options > ROW_OPTIONS:
            raise MemoryLimitError(round(ascended.bound), memory.limit_bytes)
        least = solver._decided(ascended, ascent, None, self.node_limit)
        if least.bound <= memory.limit_bytes < least.cost:  # within the gap, and yet too much
            least = _Solver(self.tables, bare, 0.0, self.node_limit).free()
        if least.cost > memory.limit_bytes:
            raise MemoryLimitError(round(least.cost), memory.limit_bytes)
        return least.options

    def solution(self, options: tuple[int, ...] | None, bound: float) -> Solution:
        """Solution in the tables as they were given."""
        if options is None:
            raise InfeasibleError("no signatures fit together")
        figures = evaluate(self.tables, options)
        cost = float(figures @ self.prices.vector)
        return Solution(
            options=tuple(
                int(left_options[o]) for left_options, o in zip(self.keep, options, strict=True)
            ),
            figures=tuple(int(figure) for figure in figures),
            cost=cost,
            bound=min(bound, cost),
        )
