"""Programs: the block programs of a search, solved many at a time and never twice.

A program is a shape (mesh, microbatch) in a mode of recomputation at given prices. Spaces are built
once per kind of mesh and mode, priced once per set of shapes; boxing is looked up to solve one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from millrace.models.arrays import Floats
from millrace.models.graph import Graph
from millrace.models.recompute import layers_of, with_recompute
from millrace.planner.errors import InfeasibleError
from millrace.planner.frameworks.framework_tables import has_account
from millrace.planner.search.blocks.block_figures import (
    BlockPeaks,
    forward_times_ns,
    template_figures,
)
from millrace.planner.search.blocks.block_milp import FigurePrices, MemoryRow
from millrace.planner.search.blocks.block_templates import (
    Folded,
    Shortened,
    deduplicated,
    fold,
    handed_bytes,
)
from millrace.planner.search.blocks.boxing_costs import BoxingCache
from millrace.planner.search.blocks.cost_tables import (
    DEFERRABLE,
    FIGURES,
    INFLIGHT,
    MICROBATCH,
    PERSISTENT,
    STEP,
    CostTables,
    single,
    solution_figures,
    stacked,
    take,
)
from millrace.planner.search.blocks.dual_ascent import DualAscent
from millrace.planner.search.blocks.fork_join import run_both
from millrace.planner.search.blocks.mixed_devices import (
    Least,
    MixedDeviceCosts,
    cheapest,
    least_block_times,
    least_times,
)
from millrace.planner.search.blocks.solver import Solution, solve
from millrace.planner.search.blocks.strategies import StrategySpace, build_space
from millrace.planner.search.blocks.strategy_costs import StrategyCosts
from millrace.planner.search.blocks.variants import Handover, boundary_masks, handover
from millrace.planner.search.pins import (
    AxisRules,
    RoledAxis,
    filters,
    forced_ops,
    splits_sequence,
)
from millrace.planner.search.placement_groups import ordered
from millrace.planner.search.rank_groups import PlacementGroup
from millrace.planner.search.request import SearchRequest, SignatureError
from millrace.planner.search.stages import Pipeline, VariantFigures

Priced = StrategyCosts | MixedDeviceCosts

GROUP = 96  # programs that are swept together: enough that NumPy's own time is small


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Shape of a program: all that its tables depend on, besides the mode."""

    axes: tuple[RoledAxis, ...]
    batch: int
    chunked: bool  # tensors cross stages, so that they are not partial there
    stretch: Fraction
    sites: tuple[PlacementGroup, ...]  # where stages lie
    pipeline: Pipeline | None = None  # what a site's stages weigh, where there are several

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes of the mesh axes."""
        return tuple(axis.size for axis in self.axes)

    @property
    def kinds(self) -> tuple[object, ...]:
        """Every axis but for its size."""
        return tuple(replace(axis, size=0) for axis in self.axes)

    @property
    def family(self) -> tuple[object, ...]:
        """Key of the shapes that are priced together."""
        return self.kinds, self.stretch, tuple(site.groups for site in self.sites)

    @property
    def parts(self) -> "tuple[Shape, ...]":
        """Shapes of the stages on each of its sites alone."""
        if len(self.sites) == 1:
            return (self,)
        return tuple(replace(self, sites=(site,), pipeline=None) for site in self.sites)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One program to solve: no solution that costs `cutoff` or more is wanted.

    With a `handover`, blocks hand on what they make in these states, so that its solutions mix.
    `prices` are those of every figure; with `by_template` [F, T] every template has its own.
    """

    shape: Shape
    mode: str
    prices: tuple[float, ...]
    by_template: tuple[tuple[float, ...], ...] = ()
    cutoff: float = float("inf")
    handover: Handover = ()


Wanted = tuple[Ask, bool]  # True if gradients of weights are deferred
Bound = tuple[float, Solution | float]
FiguresKey = tuple[Shape, str, tuple[int, ...], bool]


class Learned(NamedTuple):
    """Solutions of some programs, and figures of their blocks."""

    solved: dict[Ask, Solution | float]
    figures: dict[FiguresKey, dict[str, VariantFigures]]


class Programs:
    """The block programs of one request.

    Parameters
    ----------
    request : SearchRequest
    graph : Graph
        The training graph, of any batch.
    """

    def __init__(self, request: SearchRequest, graph: Graph) -> None:
        self.request = request
        self.graph = graph
        self._short: Shortened | None = None
        self._folded: dict[str, Folded] = {}
        self._spaces: dict[object, StrategySpace] = {}
        self._priced: dict[tuple[str, Shape], tuple[Priced, int]] = {}
        self._least: dict[int, list[Least | None]] = {}  # of strategy costs, which are kept
        self._least_blocks: dict[int, Floats] = {}  # likewise
        self._tables: dict[tuple[str, Shape], tuple[CostTables, int]] = {}
        self._solved: dict[Ask, Solution | float] = {}
        self.known_figures: dict[FiguresKey, dict[str, VariantFigures]] = {}  # as far as read
        self.working = BlockPeaks()
        self._exact: dict[object, Solution] = {}
        self._handed: dict[int, int] = {}
        self._boxing_caches: dict[tuple[int, ...], BoxingCache] = {}
        self._forced: frozenset[str] | None = None

    # -- what there is -----------------------------------------------------------------------

    def folded(self, mode: str) -> Folded:
        """The graph folded, every block in one mode of recomputation.

        Ends of the model recompute where every block is free in its mode, and in no framework.
        """
        if mode not in self._folded:
            if self._short is None:
                self._short = deduplicated(self.graph)
            graph, often = self._short.graph, self._short.often
            if mode != "none":
                free = self.request.runs.mixed and self.request.pins.recompute is None
                blocks = graph.blocks if free else layers_of(graph)
                selective = self.request.cluster.software.selective
                graph = with_recompute(graph, dict.fromkeys(blocks, mode), selective)
            self._folded[mode] = fold(graph, often=often)
        return self._folded[mode]

    def space(self, shape: Shape, mode: str) -> StrategySpace:
        """Space of the choices on meshes of a shape's kind."""
        if (shape.kinds, mode) not in self._spaces:
            if self._forced is None:
                self._forced = forced_ops(self.folded("none").graph, self.folded("none").counts)
            rules = AxisRules(
                axes=shape.axes,
                pins=self.request.pins,
                forced=self._forced,
                required=self.request.required,
                widened=self.request.model.precision != "fp32",
            )
            axes = len(shape.axes)
            self._spaces[shape.kinds, mode] = build_space(self.folded(mode), axes, *filters(rules))
        return self._spaces[shape.kinds, mode]

    def price(
        self, shapes: Iterable[Shape], mode: str
    ) -> list[tuple[StrategyCosts | MixedDeviceCosts, list[Shape]]]:
        """Price the options of all shapes; return the costs with the shapes of their rows."""
        families: dict[object, list[Shape]] = {}
        for shape in dict.fromkeys(shapes):
            if (mode, shape) not in self._priced:
                families.setdefault(shape.family, []).append(shape)
        costs_of_families = []
        for members in families.values():
            strategy_costs = self._strategy_costs(members, mode)
            costs_of_families.append((strategy_costs, members))
            for row, shape in enumerate(members):
                self._priced[mode, shape] = strategy_costs, row
        return costs_of_families

    def _strategy_costs(self, members: list[Shape], mode: str) -> Priced:
        """Price shapes of one family, as rows."""
        alike = self._alike(members, mode)
        parts = [
            StrategyCosts(
                self.space(members[0], mode),
                ordered(self.request.priced_on(self.graph), site.groups),
                np.array([shape.sizes for shape in members], np.int64).reshape(len(members), -1).T,
                np.array([shape.batch for shape in members], np.int64),
                stretch=float(members[0].stretch),
                crossing_partial=np.array([not shape.chunked for shape in members]),
                starts=[shape.sites[number].starts for shape in members],
                cache=self._boxing_caches.setdefault(site.groups, BoxingCache()),
                offload=self.request.offload,
                fusion=self.request.fusion,
                gathers_again=has_account(self.request.cluster.software.name)
                and splits_sequence(members[0].axes, self.request.pins),
                alike=alike[number] if alike else None,
            )
            for number, site in enumerate(members[0].sites)
        ]
        if len(parts) == 1:
            return parts[0]
        for row, shape in enumerate(members):
            for strategy_costs, part in zip(parts, shape.parts, strict=True):
                self._priced.setdefault((mode, part), (strategy_costs, row))
        return MixedDeviceCosts(parts, [shape.pipeline for shape in members if shape.pipeline])

    def _alike(self, members: list[Shape], mode: str) -> list[StrategyCosts]:
        """Costs of the same rows without recomputation, per site; none if not priced yet."""
        plain_rows = [self._priced.get(("none", shape)) for shape in members]
        first = plain_rows[0]
        if mode == "none" or first is None:
            return []
        if any(priced is None or priced[0] is not first[0] for priced in plain_rows):
            return []
        rows = np.array([priced[1] for priced in plain_rows if priced])
        parts = first[0].parts if isinstance(first[0], MixedDeviceCosts) else (first[0],)
        return [part.take(rows) for part in parts]

    def cheapest(
        self, shapes: Sequence[Shape], mode: str, prices: Sequence[Sequence[float]]
    ) -> Floats:
        """Bounds without solving: every choice at its cheapest option, and no boxing.

        Infinite where an op has no legal option (`refusal` says which).
        """
        self.price(shapes, mode)
        costs = np.zeros(len(shapes))
        together: dict[int, list[int]] = {}
        for place, shape in enumerate(shapes):
            together.setdefault(id(self._priced[mode, shape][0]), []).append(place)
        for places in together.values():
            strategy_costs = self._priced[mode, shapes[places[0]]][0]
            rows = np.array([self._priced[mode, shapes[place]][1] for place in places])
            if id(strategy_costs) not in self._least:
                self._least[id(strategy_costs)] = least_times(strategy_costs)
            vectors = np.array([prices[place] for place in places]).T
            costs[places] = cheapest(strategy_costs, self._least[id(strategy_costs)], rows, vectors)
        return costs

    def least_block_times_ns(self, shape: Shape, mode: str) -> Floats:
        """Least times [T] of one block of every template for a microbatch, without boxing."""
        self.price([shape], mode)
        strategy_costs, row = self._priced[mode, shape]
        if id(strategy_costs) not in self._least_blocks:
            self._least_blocks[id(strategy_costs)] = least_block_times(strategy_costs)
        times: Floats = self._least_blocks[id(strategy_costs)][:, row]
        return times

    def refusal(self, shape: Shape, mode: str) -> InfeasibleError:
        """Say which op has no legal option."""
        strategy_costs, row = self._priced[mode, shape]
        for choice, legal in zip(strategy_costs.space.choices, strategy_costs.legal, strict=True):
            if not legal[:, row].any():
                op = choice.ops[0].op
                shapes = [strategy_costs.tensors[name].shape for name in (*op.inputs, *op.outputs)]
                return SignatureError(op, shapes, shape.sizes, shape.batch)
        raise AssertionError("asked only where there is one")

    # -- solving -----------------------------------------------------------------------------

    def rows(self, asks: list[tuple[str, Shape]]) -> dict[int, tuple[CostTables, list[int]]]:
        """Tables with the places, in `asks`, of the programs that are rows of them."""
        new = [key for key in dict.fromkeys(asks) if key not in self._tables]
        for mode in dict.fromkeys(mode for mode, _ in new):
            self.price([shape for key_mode, shape in new if key_mode == mode], mode)
        missing: dict[object, list[tuple[str, Shape]]] = {}
        for key in new:
            missing.setdefault((key[0], id(self._priced[key][0])), []).append(key)
        for keys in missing.values():
            for first in range(0, len(keys), GROUP):
                group = keys[first : first + GROUP]
                strategy_costs = self._priced[group[0]][0]
                rows = np.array([self._priced[key][1] for key in group])
                tables = strategy_costs.take(rows).tables()
                if isinstance(tables, tuple):
                    tables, apart = tables
                    for row, (mode, shape) in enumerate(group):
                        for part, part_tables in zip(shape.parts, apart, strict=True):
                            self._tables.setdefault((mode, part), (part_tables, row))
                for row, key in enumerate(group):
                    self._tables[key] = tables, row
        places_by_tables: dict[int, tuple[CostTables, list[int]]] = {}
        for place, (tables, _) in enumerate(self._tables[key] for key in asks):
            places_by_tables.setdefault(id(tables), (tables, []))[1].append(place)
        return places_by_tables

    def solve_many(
        self, asks: Sequence[Ask], sweeps: int, max_gap: float
    ) -> list[Solution | float]:
        """Solve programs together; the bound alone where no legal solution was found.

        A solution's bound is proven even where it is not the best; a program whose bound reaches
        its cutoff is left as it is then.
        """
        new = [ask for ask in dict.fromkeys(asks) if ask not in self._solved]
        # Programs of one space are swept together, whichever tables hold them.
        spaces: dict[object, list[Ask]] = {}
        for ask in new:
            key = ask.mode, ask.shape.kinds, bool(ask.by_template)
            spaces.setdefault(key, []).append(ask)
        for members in spaces.values():
            for first in range(0, len(members), GROUP):
                tables, row_asks = self._stacked(members[first : first + GROUP])
                vectors = np.array([ask.by_template or ask.prices for ask in row_asks])
                prices = np.moveaxis(vectors, 0, -1)
                ascent = DualAscent(tables, prices)
                ascent.ascend(sweeps, max_gap, np.array([ask.cutoff for ask in row_asks]))
                for ask, solution in zip(row_asks, _solutions(ascent), strict=True):
                    self._solved[ask] = solution
        return [self._solved[ask] for ask in asks]

    def solve_beside(
        self, first: Sequence[Wanted], second: Sequence[Wanted], sweeps: int, max_gap: float
    ) -> list[list[Solution | float]]:
        """Solve two groups of programs at once, and read the figures of their solutions."""
        for ask, _ in second:
            self.space(ask.shape, ask.mode)  # once here, rather than whenever a process starts
        if first and second:
            for learned in run_both(
                lambda: self._learned(first, sweeps, max_gap),
                lambda: self._learned(second, sweeps, max_gap),
            ):
                self._solved.update(learned.solved)
                self.known_figures.update(learned.figures)
        return [
            self.solve_many([ask for ask, _ in group], sweeps, max_gap) for group in (first, second)
        ]

    def _learned(self, wanted: Sequence[Wanted], sweeps: int, max_gap: float) -> Learned:
        """Solutions, and for each site the figures of their blocks."""
        learned = Learned({}, {})
        solutions = self.solve_many([ask for ask, _ in wanted], sweeps, max_gap)
        learned.solved.update((ask, s) for (ask, _), s in zip(wanted, solutions, strict=True))
        keys = [
            (part, ask.mode, solution.options, deferring)
            for (ask, deferring), solution in zip(wanted, solutions, strict=True)
            if not isinstance(solution, float)
            for part in ask.shape.parts
        ]
        self.read(keys)
        learned.figures.update((key, self.known_figures[key]) for key in keys)
        return learned

    def _stacked(self, asks: list[Ask]) -> tuple[CostTables, list[Ask]]:
        """Tables with a row for every program of one space, and the programs in their order."""
        parts: list[CostTables] = []
        order: list[Ask] = []
        for tables, places in self.rows([(ask.mode, ask.shape) for ask in asks]).values():
            row_asks = [asks[place] for place in places]
            rows = np.array([self._tables[ask.mode, ask.shape][1] for ask in row_asks])
            parts.append(take(tables, rows))
            order += row_asks
        return self._handing(stacked(parts), order), order

    def _handing(self, tables: CostTables, asks: list[Ask]) -> CostTables:
        """Tables in which options that do not hand on as asked are illegal."""
        if not any(ask.handover for ask in asks):
            return tables
        legal = [choice.legal.copy() for choice in tables.choices]
        for row, ask in enumerate(asks):
            for choice, fine in boundary_masks(
                self.space(ask.shape, ask.mode), ask.handover
            ).items():
                legal[choice][:, row] &= fine
        choices = zip(tables.choices, legal, strict=True)
        return replace(
            tables, choices=tuple(replace(choice, legal=mask) for choice, mask in choices)
        )

    def bounds(self, asks: Sequence[Ask], sweeps: int) -> list[Bound]:
        """Bounds of programs after a few sweeps, with the solution that can be read off then."""
        new = list(dict.fromkeys(asks))
        if not new:
            return []
        self.price([ask.shape for ask in new], new[0].mode)
        half = (len(new) + 1) // 2 if len(new) > GROUP else len(new)
        first_half, second_half = run_both(
            lambda: self._bounds(new[:half], sweeps), lambda: self._bounds(new[half:], sweeps)
        )
        return [(first_half | second_half)[ask] for ask in asks]

    def _bounds(self, asks: Sequence[Ask], sweeps: int) -> dict[Ask, Bound]:
        bounds: dict[Ask, Bound] = {}
        for tables, places in self.rows([(ask.mode, ask.shape) for ask in asks]).values():
            row_asks = [asks[place] for place in places]
            rows = np.array([self._tables[ask.mode, ask.shape][1] for ask in row_asks])
            ascent = DualAscent(take(tables, rows), np.array([ask.prices for ask in row_asks]).T)
            ascent.sweep()
            ascent.reshare()
            for _ in range(sweeps - 1):
                ascent.sweep()
            ascent.decode()
            pairs = zip(ascent.bounds.tolist(), _solutions(ascent), strict=True)
            bounds.update(zip(row_asks, pairs, strict=True))
        return bounds

    def solve_one(
        self,
        shape: Shape,
        mode: str,
        prices: FigurePrices,
        memory: MemoryRow | None = None,
        cutoff: float = float("inf"),
    ) -> Solution:
        """Solve one program to the request's gap, by integer programming where that is needed."""
        tables = self.tables(shape, mode)
        key = shape, mode, prices, memory
        if key not in self._exact:
            solution = solve(tables, prices, memory, max_gap=self.request.max_gap, cutoff=cutoff)
            options = (
                int(choice.options[option])
                for choice, option in zip(tables.choices, solution.options, strict=True)
            )
            self._exact[key] = replace(solution, options=tuple(options))
        return self._exact[key]

    def tables(self, shape: Shape, mode: str) -> CostTables:
        """The tables of one program: options that divide and can be boxed.

        Raises
        ------
        InfeasibleError
            Nothing is left.
        """
        self.rows([(mode, shape)])
        tables = single(*self._tables[mode, shape])
        if tables is None:
            raise InfeasibleError(f"no signatures fit together on a mesh of {shape.sizes}")
        return tables

    def priced(self, shape: Shape, mode: str) -> tuple[CostTables, int]:
        """The tables that hold a program, and its row of them."""
        self.rows([(mode, shape)])
        return self._tables[mode, shape]

    @property
    def sizes(self) -> dict[str, int]:
        """Number of programs solved, in all and to the optimum, and how large they were."""
        return {
            "programs": len(self._solved) + len(self._exact),
            "exact_programs": len(self._exact),
            "meshes": len({shape.sizes for _, shape in self._tables}),
            "options_max": max(
                (tables.size for tables, _ in self._tables.values()),
                default=0,
            ),
        }

    # -- reading solutions -------------------------------------------------------------------

    def block_figures(
        self, shape: Shape, mode: str, options: tuple[int, ...], deferring: bool = False
    ) -> dict[str, VariantFigures]:
        """Figures of a block per template on one site; boxing between blocks counts at readers."""
        key = shape, mode, options, deferring
        self.read([key])
        return self.known_figures[key]

    def read(self, keys: Iterable[FiguresKey]) -> None:
        """Read the figures of many solutions at once, those of one space together."""
        alike: dict[object, list[FiguresKey]] = {}
        for key in dict.fromkeys(keys):
            if key not in self.known_figures:
                shape, mode, _, deferring = key
                tables, _ = self.priced(shape, mode)
                alike.setdefault((mode, deferring, id(tables)), []).append(key)
        for members in alike.values():
            self._read(members)

    def handed_bytes(self, batch: int) -> int:
        """Bytes of the largest tensor that a block of the forward pass hands to the next, whole."""
        if batch not in self._handed:
            self._handed[batch] = handed_bytes(self.folded("none"), batch)
        return self._handed[batch]

    def _read(self, keys: list[FiguresKey]) -> None:
        """Read the figures of solutions of the same tables."""
        shape, mode, _, deferring = keys[0]
        tables, _ = self.priced(shape, mode)
        space = self.space(shape, mode)
        rows = np.array([self.priced(key[0], mode)[1] for key in keys])
        options = np.array([key[2] for key in keys]).T
        figures = template_figures(space, tables, rows, options, deferring)
        forward_ns = forward_times_ns(space, tables, rows, options)
        for number, key in enumerate(keys):
            working = self.working.largest(space, mode, key[0].batch, key[0].sizes, key[2])
            shared = handover(space, key[2])
            self.known_figures[key] = {
                template: VariantFigures(
                    microbatch_ns=sums[MICROBATCH] + sums[DEFERRABLE],
                    forward_ns=int(forward_ns[place, number]),
                    deferrable_ns=sums[DEFERRABLE],
                    step_ns=sums[STEP],
                    persistent_bytes=sums[PERSISTENT],
                    inflight_bytes=sums[INFLIGHT],
                    weight_bytes=sums[len(FIGURES)],
                    between_bytes=sums[len(FIGURES) + 1],
                    transient_bytes=working[template],
                    handover=shared,
                )
                for place, template in enumerate(space.templates)
                for sums in (figures[:, place, number].tolist(),)
            }


def _solutions(ascent: DualAscent) -> list[Solution | float]:
    """The best solution of every row, with its figures; where there is none, the row's bound."""
    figures, _ = solution_figures(ascent.tables, ascent.options)
    return [
        Solution(
            options=tuple(ascent.options[:, row].tolist()),
            figures=tuple(figures[:, row].tolist()),
            cost=float(cost),
            bound=min(float(bound), float(cost)),
        )
        if np.isfinite(cost)
        else float(bound)
        for row, (cost, bound) in enumerate(zip(ascent.costs, ascent.bounds, strict=True))
    ]
