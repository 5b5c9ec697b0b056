"""Block oracle: blocks of one template at price vectors, asked in batches, each once.

An answer is a cut, `prices · F ≥ n · least` for the figure sums F of any n blocks in any variants,
and the column that was found nearest to it, a variant with its figures. Both depend on the shape
(mesh, microbatch) and the template only, so that candidates of every stage count and schedule share
them.

Shapes: F block figures, I cuts, V columns, R rows that are swept together.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from millrace.models.arrays import Floats, Ints
from millrace.planner.search.blocks.cost_tables import INFLIGHT, PERSISTENT, stacked, take
from millrace.planner.search.blocks.dual_ascent import DualAscent
from millrace.planner.search.blocks.variants import Options
from millrace.planner.search.decomposition.template_tables import (
    BETWEEN,
    TemplateTables,
    table_prices,
    template_tables,
)
from millrace.planner.search.programs import GROUP, Programs, Shape

BYTES = (PERSISTENT, INFLIGHT, BETWEEN)
NOTHING = -1  # in place of an option where no solution was read off


class PriceAsk(NamedTuple):
    """Blocks of one template in one shape, at prices of their figures [F]."""

    shape: Shape
    template: str
    prices: tuple[float, ...]

    @property
    def is_of_time(self) -> bool:
        """True if nothing but time has a price: what runs nothing twice is the cheapest then."""
        return not any(self.prices[figure] for figure in BYTES)


class Column(NamedTuple):
    """A variant: its mode of recomputation, and an option per choice of the space."""

    mode: str
    options: Options


@dataclass(slots=True)
class CutPool:
    """Cuts and columns of the blocks of one template in one shape, as far as asked.

    Attributes
    ----------
    prices : list of array [F]
    least : list of float
        Least cost of a block at each of these price vectors.
    columns : dict
        Figures [F] of a block of each variant, rounded up.
    """

    prices: list[Floats] = field(default_factory=list)
    least: list[float] = field(default_factory=list)
    columns: dict[Column, Ints] = field(default_factory=dict)


class BlockOracle:
    """Answers of the block programs of one request.

    Parameters
    ----------
    programs : Programs
    modes : sequence of str
        Modes of recomputation that blocks may run in.
    sweeps : int
        Most sweeps of the dual ascent, for each price vector and mode.
    max_gap : float
        Relative gap between cut and column at which a program counts as solved.
    """

    def __init__(
        self, programs: Programs, modes: Sequence[str], *, sweeps: int = 8, max_gap: float = 0.002
    ) -> None:
        self.programs = programs
        self.modes = tuple(modes)
        self.sweeps = sweeps
        self.max_gap = max_gap
        self.solved = 0  # block programs, one for each vector and mode
        self._pools: dict[tuple[Shape, str], CutPool] = {}
        self._asked: set[PriceAsk] = set()
        self._tables: dict[tuple[int, str], TemplateTables] = {}

    def pool(self, shape: Shape, template: str) -> CutPool:
        """Cuts and columns of a template's blocks in a shape; empty before any is asked."""
        return self._pools.setdefault((shape, template), CutPool())

    def ask(self, asks: Iterable[PriceAsk]) -> int:
        """Solve programs not asked before, add cuts and columns to the pools, return how many."""
        new = [ask for ask in dict.fromkeys(asks) if ask not in self._asked]
        self._asked.update(new)
        alike: dict[object, list[PriceAsk]] = {}
        for ask in new:
            alike.setdefault((ask.shape.kinds, ask.template, ask.is_of_time), []).append(ask)
        for members in alike.values():
            for first in range(0, len(members), GROUP):
                self._answer(members[first : first + GROUP])
        return len(new)

    def _answer(self, asks: list[PriceAsk]) -> None:
        """Solve programs of one space together, mode by mode; the least of all modes is a cut.

        Those of time alone are solved in the mode that runs least twice.
        """
        bounds, costs = np.full((2, len(asks)), np.inf)
        for mode in self.modes[:1] if asks[0].is_of_time else self.modes:
            groups = self._groups(asks, mode)
            order = np.concatenate([group.places for group in groups])
            count = groups[0].tables.count
            prices = table_prices(np.array([asks[place].prices for place in order.tolist()]).T)
            tables = stacked([take(group.tables.tables, group.rows) for group in groups])
            ascent = DualAscent(tables, prices)
            # What costs more than another mode's blocks is no cut.
            ascent.ascend(self.sweeps, self.max_gap, costs[order] * count)
            self.solved += len(order)
            proven = np.minimum(ascent.bounds, ascent.costs) / count
            bounds[order] = np.minimum(bounds[order], proven)
            costs[order] = np.minimum(costs[order], ascent.costs / count)
            read_off = np.zeros((len(tables.choices), len(asks)), np.int64)
            read_off[:, order] = np.where(np.isfinite(ascent.costs), ascent.options, NOTHING)
            for group in groups:
                self._note_columns(asks, mode, group, read_off[:, group.places])
        for ask, bound in zip(asks, np.maximum(bounds, 0.0).tolist(), strict=True):
            pool = self.pool(ask.shape, ask.template)
            pool.prices.append(np.array(ask.prices))
            pool.least.append(bound)

    def _groups(self, asks: list[PriceAsk], mode: str) -> "list[_Group]":
        """Groups of the programs asked, one for all whose tables are the same."""
        groups = []
        for tables, places in self.programs.rows([(mode, ask.shape) for ask in asks]).values():
            first = asks[places[0]]
            key = id(tables), first.template  # tables are kept, so that the number stays its own
            if key not in self._tables:
                space = self.programs.space(first.shape, mode)
                self._tables[key] = template_tables(space, tables, first.template)
            rows = [self.programs.priced(asks[place].shape, mode)[1] for place in places]
            groups.append(_Group(self._tables[key], np.array(rows), np.array(places)))
        return groups

    def _note_columns(
        self, asks: list[PriceAsk], mode: str, group: "_Group", options: Ints
    ) -> None:
        """Add the solutions [choices, R] that were read off of a group to the pools."""
        solved = options[0] != NOTHING
        options, rows, places = options[:, solved], group.rows[solved], group.places[solved]
        per_block = -(-group.tables.figures(options, rows) // group.tables.count)
        for solution, place in enumerate(places.tolist()):
            column = Column(mode, group.tables.space_options(options[:, solution]))
            pool = self.pool(asks[place].shape, asks[place].template)
            pool.columns.setdefault(column, per_block[:, solution])


class _Group(NamedTuple):
    """Programs of some tables: their rows of these [R], and their places among those asked [R]."""

    tables: TemplateTables
    rows: Ints
    places: Ints
