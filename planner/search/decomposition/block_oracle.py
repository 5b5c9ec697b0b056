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
from numpy.typing import NDArray

from millrace.planner.search.blocks.ascent import Ascent
from millrace.planner.search.blocks.states import Ints
from millrace.planner.search.blocks.tables import Tables, stacked, take
from millrace.planner.search.blocks.variants import Handover
from millrace.planner.search.decomposition.template_tables import TemplateTables, template_tables
from millrace.planner.search.programs import GROUP, Programs, Shape

Floats = NDArray[np.float64]
Options = tuple[int, ...]


class PriceAsk(NamedTuple):
    """Blocks of one template in one shape, at prices of their figures [F].

    With a `handover`, blocks hand on what they make in these states, so that columns mix; what is
    found is no cut of blocks that hand on otherwise.
    """

    shape: Shape
    template: str
    prices: tuple[float, ...]
    handover: Handover = ()


class Column(NamedTuple):
    """A variant: its mode of recomputation, and an option per choice of the space."""

    mode: str
    options: Options


@dataclass(slots=True)
class Pool:
    """What is known of the blocks of one template in one shape.

    Attributes
    ----------
    prices : list of array [F]
    least : list of float
        Of each of these vectors, what a block costs at least.
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
        Of the ascent, for each price vector and mode, at most.
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
        self._pools: dict[tuple[Shape, str, Handover], Pool] = {}
        self._asked: set[PriceAsk] = set()
        self._tables: dict[tuple[int, str], TemplateTables] = {}

    def pool(self, shape: Shape, template: str, handover: Handover = ()) -> Pool:
        """What is known of a template's blocks in a shape, which may have to hand on alike."""
        return self._pools.setdefault((shape, template, handover), Pool())

    def of_template(self, shape: Shape, template: str, mode: str) -> tuple[TemplateTables, int]:
        """The tables that hold a template's programs in a mode, and the shape's row of them."""
        tables, row = self.programs.priced(shape, mode)
        return self._of_template(tables, shape, mode, template), row

    def ask(self, asks: Iterable[PriceAsk]) -> int:
        """Solve what was not asked before; cuts and columns go to the pools. Returns how many."""
        new = [ask for ask in dict.fromkeys(asks) if ask not in self._asked]
        self._asked.update(new)
        alike: dict[object, list[PriceAsk]] = {}
        for ask in new:
            alike.setdefault((ask.shape.kinds, ask.template, ask.handover), []).append(ask)
        for members in alike.values():
            for first in range(0, len(members), GROUP):
                self._answer(members[first : first + GROUP])
        return len(new)

    def _answer(self, asks: list[PriceAsk]) -> None:
        """Solve programs of one space together, mode by mode; the least of all modes is a cut."""
        bounds, costs = np.full((2, len(asks)), np.inf)
        for mode in self.modes:
            for known, places, tables in self._stacked(asks, mode):
                prices = np.array([asks[place].prices for place in places]).T
                ascent = Ascent(tables, prices)
                # What costs more than another mode's blocks is no cut.
                ascent.ascend(self.sweeps, self.max_gap, costs[places] * known[0][0].count)
                self.solved += len(places)
                count = known[0][0].count
                own_costs, own_bounds = ascent.costs / count, ascent.bounds / count
                bounds[places] = np.minimum(bounds[places], np.minimum(own_bounds, own_costs))
                costs[places] = np.minimum(costs[places], own_costs)
                self._note_columns(asks, mode, known, places, ascent)
        for ask, bound, cost in zip(asks, bounds.tolist(), costs.tolist(), strict=True):
            pool = self.pool(ask.shape, ask.template, ask.handover)
            pool.prices.append(np.array(ask.prices))
            pool.least.append(max(0.0, min(bound, cost)))

    def _stacked(
        self, asks: list[PriceAsk], mode: str
    ) -> list[tuple[list[tuple[TemplateTables, Ints]], Ints, Tables]]:
        """Tables with a row per program, the programs' places, and the tables that these are of."""
        rows = self.programs.rows([(mode, ask.shape) for ask in asks])
        known: list[tuple[TemplateTables, Ints]] = []
        order: list[int] = []
        for tables, places in rows.values():
            shape = asks[places[0]].shape
            own = self._of_template(tables, shape, mode, asks[places[0]].template)
            at = [self.programs.priced(asks[place].shape, mode)[1] for place in places]
            known.append((own, np.array(at)))
            order += places
        parts = [take(own.handing(asks[0].handover), at) for own, at in known]
        return [(known, np.array(order), stacked(parts))]

    def _of_template(
        self, tables: Tables, shape: Shape, mode: str, template: str
    ) -> TemplateTables:
        key = id(tables), template  # tables are kept, so that the number stays its own
        if key not in self._tables:
            space = self.programs.space(shape, mode)
            self._tables[key] = template_tables(space, tables, template)
        return self._tables[key]

    def _note_columns(
        self,
        asks: list[PriceAsk],
        mode: str,
        known: list[tuple[TemplateTables, Ints]],
        places: Ints,
        ascent: Ascent,
    ) -> None:
        """Add the solutions that were read off to the pools."""
        first = 0
        for own, rows in known:
            mine = slice(first, first + len(rows))
            first += len(rows)
            options = ascent.options[:, mine]
            each = -(-own.figures(options, rows) // own.count)
            for at, place in enumerate(places[mine].tolist()):
                if np.isfinite(ascent.costs[mine][at]):
                    column = Column(mode, own.whole(options[:, at]))
                    pool = self.pool(asks[place].shape, asks[place].template, asks[place].handover)
                    pool.columns.setdefault(column, each[:, at])
