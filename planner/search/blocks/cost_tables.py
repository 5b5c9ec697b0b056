"""Tables: the choices and edges of block programs as arrays, for many rows at once.

A row is one block program: a mesh, a microbatch, and what every option and boxing costs there.
Figures have five columns (`FIGURES`): time per microbatch, time per step, bytes that stay, bytes
per microbatch in flight, and apart from the first the time per microbatch of weight gradients,
which schedules may defer. What each is worth is decided later, by a price each. Shapes: F figures,
O options, A sources, B targets, K rows.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from millrace.models.arrays import Array, Bools, Ints
from millrace.planner.cluster import Software
from millrace.planner.frameworks.experts import overlaps
from millrace.planner.search.blocks.strategies import EdgeUse

FIGURES = ("microbatch_ns", "step_ns", "persistent_bytes", "inflight_bytes", "deferrable_ns")
MICROBATCH, STEP, PERSISTENT, INFLIGHT, DEFERRABLE = range(len(FIGURES))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class NodeCosts:
    """One choice, `count` times: figures of one occurrence, and which options divide.

    `options` are those of the space that are left; `template` is the place of its block's template
    among those of the model, where templates have prices of their own.
    """

    figures: Ints  # [F, O, K]
    legal: Bools  # [O, K]
    options: Ints  # [O]
    count: int
    template: int = 0


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class EdgeCosts:
    """A tensor between its producer and its readers, `count` times: boxing, and what is held.

    `template` is that of its readers, whose blocks box it.
    """

    number: int  # its place among the space's edges
    producer: int
    source_of: Ints  # [options of the producer] → source
    uses: tuple[EdgeUse, ...]  # target_of: [options of the reader] → target
    count: int
    figure: int  # the one that boxing counts in: time per microbatch, or per step
    reachable: Bools  # [A, B, K]
    duration_ns: Ints  # [A, B, K]
    buffer_bytes: Ints  # [A, B, K]
    made_bytes: Ints  # [A, K]
    held_bytes: Ints  # [B, K]: kept from the forward to the backward pass, once
    template: int = 0


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class CostTables:
    """Block programs of the same choices and edges, one per row."""

    choices: tuple[NodeCosts, ...]
    edges: tuple[EdgeCosts, ...]

    @property
    def rows(self) -> int:
        """Number of block programs."""
        return int(self.choices[0].figures.shape[2])

    @property
    def size(self) -> int:
        """Number of options of all choices."""
        return sum(len(choice.options) for choice in self.choices)


def with_hidden(
    tables: CostTables, exchanges: Mapping[int, bool], software: Software
) -> CostTables:
    """Tables in which exchanges with experts move beside what another microbatch computes.

    What is computed beside an exchange of e keeps a share of its speed (`Software.overlap`), so
    that the exchange adds the larger of e (1 - overlap) and e - c. Here c is what a block of its
    template computes for a microbatch, each op by its fastest option, for each of its exchanges
    alike.

    Parameters
    ----------
    tables : CostTables
        Exchanges take their full time in them.
    exchanges : mapping of int to bool
        Numbers of their edges; False for tokens that were, or may have been, sent at another edge
        before they were rounded to 8 bits, which are one exchange with those.
    software : Software
        Its `pieces` say whether they move so; where not, tables are returned as they are.

    Returns
    -------
    CostTables
        Nothing of an exchange is left where it is hidden and slows nothing.
    """
    if not overlaps(software):
        return tables
    number = Counter(edge.template for edge in tables.edges if exchanges.get(edge.number))
    computed_ns = {template: np.zeros(tables.rows) for template in number}
    for choice in tables.choices:
        if choice.template in number:
            option_ns = choice.figures[MICROBATCH] + choice.figures[DEFERRABLE]
            least_ns = np.where(choice.legal, option_ns, np.inf).min(axis=0)
            computed_ns[choice.template] += np.where(np.isfinite(least_ns), least_ns, 0)

    def shown(edge: EdgeCosts) -> EdgeCosts:
        if edge.number not in exchanges or not number[edge.template]:
            return edge
        most_ns = computed_ns[edge.template] / number[edge.template]
        hidden_ns = np.minimum(software.overlap * edge.duration_ns, most_ns).astype(np.int64)
        return replace(edge, duration_ns=edge.duration_ns - hidden_ns)

    return replace(tables, edges=tuple(map(shown, tables.edges)))


def take(tables: CostTables, rows: Ints | Bools) -> CostTables:
    """Tables of some of the rows.

    Parameters
    ----------
    tables : CostTables
        K rows; returned as they are if all are taken, in order.
    rows : int array (R,) or bool array (K,)
        Numbers of the rows, in the order wanted, or a mask of them.
    """
    places = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
    if np.array_equal(places, np.arange(tables.rows)):
        return tables
    return _joined([tables], lambda parts: parts[0][..., places])


def stacked(parts: Sequence[CostTables]) -> CostTables:
    """Tables with the rows of several, all of the same choices and edges."""
    if len(parts) == 1:
        return parts[0]
    return _joined(parts, lambda arrays: np.concatenate(arrays, axis=-1))


def _joined(parts: Sequence[CostTables], join: Callable[[list[Array]], Array]) -> CostTables:
    """Tables whose arrays are joined from those of several, once where edges share them."""
    joined_arrays: dict[tuple[int, ...], Array] = {}

    def join_once(arrays: list[Array]) -> Array:
        key = tuple(map(id, arrays))
        if key not in joined_arrays:
            joined_arrays[key] = join(arrays)
        return joined_arrays[key]

    return CostTables(
        choices=tuple(
            replace(
                same[0],
                figures=join_once([each.figures for each in same]),
                legal=join_once([each.legal for each in same]),
            )
            for same in zip(*(part.choices for part in parts), strict=True)
        ),
        edges=tuple(
            replace(
                same[0],
                reachable=join_once([each.reachable for each in same]),
                duration_ns=join_once([each.duration_ns for each in same]),
                buffer_bytes=join_once([each.buffer_bytes for each in same]),
                made_bytes=join_once([each.made_bytes for each in same]),
                held_bytes=join_once([each.held_bytes for each in same]),
            )
            for same in zip(*(part.edges for part in parts), strict=True)
        ),
    )


def solution_figures(
    tables: CostTables, chosen: Ints, places: Ints | None = None
) -> tuple[Ints, Bools]:
    """Figures of one option per choice and row, summed up, and the mask of legal ones.

    Parameters
    ----------
    tables : CostTables
        All choices and edges count as often as they occur.
    chosen : int array [choices, R]
        The option of each choice, by its place in the tables.
    places : int array [R], optional
        The row of each column; default: all rows.

    Returns
    -------
    figures : int array [F, R]
        Each boxing and each kept tensor counts once, whoever reads it.
    legal : bool array [R]
        True where every option divides and every boxing exists.
    """
    rows = np.arange(tables.rows) if places is None else places
    figures = np.zeros((len(FIGURES), len(rows)), np.int64)
    legal = np.ones(len(rows), np.bool_)
    for choice, option in zip(tables.choices, chosen, strict=True):
        figures += choice.count * choice.figures[:, option, rows]
        legal &= choice.legal[option, rows]
    for edge in tables.edges:
        edge_totals, fine = edge_figures(edge, chosen, rows)
        figures += edge.count * edge_totals
        legal &= fine
    return figures, legal


def edge_figures(edge: EdgeCosts, chosen: Ints, places: Ints) -> tuple[Ints, Bools]:
    """Figures [F, R] of one occurrence of an edge, and whether its boxings exist [R].

    Parameters
    ----------
    edge : EdgeCosts
        Boxing to each target counts once, whoever reads it, and so does what is held there.
    chosen : int array (choices, R)
        Option of every choice, by its place in the tables.
    places : int array (R,)
        Row of the tables that each column of `chosen` is for.
    """
    source = edge.source_of[chosen[edge.producer]]
    targets = [use.target_of[chosen[use.choice]] for use in edge.uses]
    figures = np.zeros((len(FIGURES), len(places)), np.int64)
    counted = figures[edge.figure]
    fine = np.ones(len(places), np.bool_)
    held_targets: list[Ints] = []
    for number, (use, target) in enumerate(zip(edge.uses, targets, strict=True)):
        fresh, cells = _unlike(target, targets[:number]), (source, target, places)
        fine &= edge.reachable[cells]
        counted += edge.duration_ns[cells] * fresh
        figures[PERSISTENT] += edge.buffer_bytes[cells] * fresh
        if use.holds:
            figures[INFLIGHT] += edge.held_bytes[target, places] * _unlike(target, held_targets)
            held_targets.append(target)
    return figures, fine


def _unlike(target: Ints, others: Sequence[Ints]) -> Bools:
    """Mask of the rows in which a target is none of the others: [R]."""
    distinct = np.ones(len(target), np.bool_)
    for other in others:
        distinct &= target != other
    return distinct


def single(tables: CostTables, row: int) -> CostTables | None:
    """Tables of one row, of options that are legal and can be boxed to and from; None: none.

    Parameters
    ----------
    tables : CostTables
        Block programs with all options of their space.
    row : int
        Program that is taken.

    Returns
    -------
    CostTables or None
        One row; `options` of every choice say which options of the space are left. None if a choice
        has none left.
    """
    row_tables = take(tables, np.array([row]))
    keep = reachable_options(row_tables)
    return compact(row_tables, keep) if all(len(options) for options in keep) else None


def compact(tables: CostTables, keep: Sequence[Ints]) -> CostTables:
    """Tables of some options per choice, without sources and targets that are left over."""
    choices = tuple(
        replace(c, figures=c.figures[:, k], legal=c.legal[k], options=c.options[k])
        for c, k in zip(tables.choices, keep, strict=True)
    )
    edges = []
    for edge in tables.edges:
        sources, makes = np.unique(edge.source_of[keep[edge.producer]], return_inverse=True)
        wants = [use.target_of[keep[use.choice]] for use in edge.uses]
        targets = np.unique(np.concatenate(wants))
        grid = np.ix_(sources, targets)
        edges.append(
            replace(
                edge,
                source_of=makes.astype(np.int64),
                uses=tuple(
                    replace(use, target_of=np.searchsorted(targets, want))
                    for use, want in zip(edge.uses, wants, strict=True)
                ),
                reachable=edge.reachable[grid],
                duration_ns=edge.duration_ns[grid],
                buffer_bytes=edge.buffer_bytes[grid],
                made_bytes=edge.made_bytes[sources],
                held_bytes=edge.held_bytes[targets],
            )
        )
    return CostTables(choices=choices, edges=tuple(edges))


def reachable_options(tables: CostTables) -> list[Ints]:
    """Options of every choice that can be boxed with some option of each neighbour; of one row."""
    keep = [choice.legal[:, 0].copy() for choice in tables.choices]
    changed = True
    while changed:
        changed = False
        for edge in tables.edges:
            reach = edge.reachable[:, :, 0]
            for use in edge.uses:
                producing, reading = keep[edge.producer], keep[use.choice]
                if use.choice == edge.producer:  # what an option makes is what it reads
                    self_reach = reach[edge.source_of, use.target_of]
                    changed |= bool((producing & ~self_reach).any())
                    producing &= self_reach
                    continue
                leaves: Bools = np.any(reach[:, use.target_of[reading]], axis=1)
                arrives: Bools = np.any(reach[edge.source_of[producing]], axis=0)
                from_here, to_here = leaves[edge.source_of], arrives[use.target_of]
                for mask, good in ((producing, from_here), (reading, to_here)):
                    if (mask & ~good).any():
                        mask &= good
                        changed = True
    return [np.flatnonzero(mask) for mask in keep]
