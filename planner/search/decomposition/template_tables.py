"""Template tables: the block programs of one template alone, with what it keeps between passes.

What blocks of other templates hand on, or read, costs nothing: only its states are left to choose.
Activations, and their gradients, that a later pass reads are kept across the *gap* between two
passes. Alive in a gap is every layout that is read before and after it, and what was made where
something reads another layout, or this one, after the gap only::

    kept[gap] = Σ_{t read before and after} bytes[t]  +  [some t is read after only] bytes[made]

(the second where it is not among the first). Lifetimes are sums of gaps: from a forward to the
gradients of weights a tensor is alive in both.

For bounds the same is written as edges: a floor that every layout costs, and for each reader before
the gap, on the diagonal of its own and the later readers' targets, what its layout costs more than
the floor. No solution keeps less.

Time is told apart by pass: what the forward pass makes is boxed there for its own readers, and in
the backward pass for those that read it there alone. For bounds an edge with both kinds of reader
is boxed at the lesser price of the two.

Shapes: F figures, O options, A sources, B targets, K rows (meshes and microbatches), R solutions.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from millrace.models.arrays import Bools, Ints
from millrace.models.graph import Phase
from millrace.planner.search.blocks.cost_tables import (
    DEFERRABLE,
    FIGURES,
    INFLIGHT,
    MICROBATCH,
    PERSISTENT,
    STEP,
    CostTables,
    EdgeCosts,
    NodeCosts,
    edge_figures,
)
from millrace.planner.search.blocks.strategies import (
    EdgeUse,
    ReshardingEdge,
    StrategyNode,
    StrategySpace,
)
from millrace.planner.search.blocks.variants import Options
from millrace.planner.search.stages import VariantFigures

BETWEEN = len(FIGURES)
"""Index, in block figures, of bytes kept from gradients of inputs to gradients of weights.

`INFLIGHT` are here those kept from the forward pass to gradients of inputs.
"""
FORWARD = BETWEEN + 1
"""Index, in block figures, of the time of the forward pass per microbatch.

`MICROBATCH` is here that of gradients of inputs and of what is recomputed for them.
"""
BLOCK_FIGURES = FORWARD + 1
GAPS = (INFLIGHT, BETWEEN)  # after the forward pass, and after gradients of inputs
PASSES = (FORWARD, MICROBATCH, DEFERRABLE)  # times of a microbatch, in the order of their passes
EITHER = BLOCK_FIGURES  # of tables only: priced as the cheaper of the first two passes


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TemplateTables:
    """Block programs of one template.

    Attributes
    ----------
    tables : CostTables
        Block figures and `EITHER`, of all blocks of the template together; edges have what is kept.
    places : tuple of int
        The space's choice that each choice is; first those of the template itself.
    stands : tuple of array
        Per choice, the space's option that each of its options stands for.
    edges : tuple of EdgeCosts
        What boxing costs, without what is kept.
    forward : tuple of EdgeCosts or None
        Part of each of these that is boxed in the forward pass.
    count : int
        Blocks of the template.
    """

    space: StrategySpace
    tables: CostTables
    places: tuple[int, ...]
    stands: tuple[Ints, ...]
    edges: tuple[EdgeCosts, ...]
    forward: tuple[EdgeCosts | None, ...]
    count: int

    def figures(self, options: Ints, rows: Ints) -> Ints:
        """Figures [F, R] of all blocks, of one option per choice [choices, R] on some rows [R]."""
        totals = np.zeros((BLOCK_FIGURES, len(rows)), np.int64)
        for choice, option in zip(self.tables.choices, options, strict=True):
            totals += choice.count * choice.figures[:BLOCK_FIGURES, option, rows]
        for edge, early in zip(self.edges, self.forward, strict=True):
            boxing, _ = edge_figures(edge, options, rows)
            totals[: len(FIGURES)] += edge.count * boxing
            if early is not None:
                boxing, _ = edge_figures(early, options, rows)
                totals[FORWARD] += edge.count * boxing[MICROBATCH]
                totals[MICROBATCH] -= edge.count * boxing[MICROBATCH]
            for gap in _gaps(self.space.edges[edge.number]):
                kept_bytes = _kept_bytes(self.space.edges[edge.number], edge, gap, options, rows)
                totals[GAPS[gap]] += edge.count * kept_bytes
        return totals

    def space_options(self, options: Ints) -> Options:
        """One option per choice of the space; those that the template does not read are 0."""
        space_options = [0] * len(self.space.choices)
        for place, stands, option in zip(self.places, self.stands, options.tolist(), strict=True):
            space_options[place] = int(stands[option])
        return tuple(space_options)


def template_tables(space: StrategySpace, tables: CostTables, template: str) -> TemplateTables:
    """Block programs of a template, one per row of the tables of all.

    Parameters
    ----------
    space : StrategySpace
    tables : CostTables
        Of that space, with all options.
    template : str
        One of the space's.
    """
    templates = space.folded.graph.templates
    home = [templates[choice.ops[0].op.block] for choice in space.choices]
    own_choices = [choice_index for choice_index, name in enumerate(home) if name == template]
    read = [edge for edge in tables.edges if home[edge.uses[0].choice] == template]
    ends = {
        choice_index
        for edge in read
        for choice_index in (edge.producer, *(use.choice for use in edge.uses))
    }
    place = {
        choice_index: number
        for number, choice_index in enumerate([*own_choices, *sorted(ends - set(own_choices))])
    }
    choices = [
        _widened(tables.choices[choice_index], space.choices[choice_index])
        for choice_index in own_choices
    ]
    stands = [tables.choices[choice_index].options for choice_index in own_choices]
    for other in list(place)[len(own_choices) :]:
        choice, options = _costless_choice(tables, other, read)
        choices.append(choice)
        stands.append(options)
    edges = [_placed(edge, place, stands) for edge in read]
    forward = [_forward(space.edges[edge.number], edge) for edge in edges]
    boxing = [_by_pass(edge, early) for edge, early in zip(edges, forward, strict=True)]
    kept_edges = [
        kept_edge for edge in edges for kept_edge in _kept_edges(space.edges[edge.number], edge)
    ]
    return TemplateTables(
        space=space,
        tables=CostTables(choices=tuple(choices), edges=(*boxing, *kept_edges)),
        places=tuple(place),
        stands=tuple(stands),
        edges=tuple(edges),
        forward=tuple(forward),
        count=max(choice.count for choice in choices[: len(own_choices)]),
    )


def block_figures(variant: VariantFigures) -> Ints:
    """Figures [F] of a block in a variant."""
    figures = np.zeros(BLOCK_FIGURES, np.int64)
    figures[FORWARD] = variant.forward_ns
    figures[MICROBATCH] = variant.microbatch_ns - variant.deferrable_ns - variant.forward_ns
    figures[DEFERRABLE] = variant.deferrable_ns
    figures[STEP] = variant.step_ns
    figures[PERSISTENT] = variant.persistent_bytes
    figures[INFLIGHT] = variant.inflight_bytes + variant.weight_bytes
    figures[BETWEEN] = variant.weight_bytes + variant.between_bytes
    return figures


def table_prices(prices: NDArray[np.float64]) -> NDArray[np.float64]:
    """Prices of what tables have [F + 1, R], from those of block figures [F, R]."""
    return np.vstack([prices, np.minimum(prices[FORWARD], prices[MICROBATCH])])


def _widened(choice: NodeCosts, space_choice: StrategyNode) -> NodeCosts:
    """Choice with all figures that tables have; the time of forward ops is told apart."""
    more = np.zeros((EITHER + 1 - len(FIGURES), *choice.figures.shape[1:]), np.int64)
    figures = np.concatenate([choice.figures, more])
    if space_choice.originals and space_choice.originals[0].op.phase is Phase.FORWARD:
        # Clones take as long as what they run again.
        figures[FORWARD] = (
            figures[MICROBATCH] * len(space_choice.originals) // len(space_choice.ops)
        )
        figures[MICROBATCH] -= figures[FORWARD]
    return replace(choice, figures=figures)


def _costless_choice(
    tables: CostTables, choice: int, edges: list[EdgeCosts]
) -> tuple[NodeCosts, Ints]:
    """Choice of another template at no cost: one option per combination that it makes or wants.

    Returned is also an option of the space that stands for each.
    """
    ends = [edge.source_of for edge in edges if edge.producer == choice]
    ends += [use.target_of for edge in edges for use in edge.uses if use.choice == choice]
    combinations, first, inverse = np.unique(
        np.array(ends), axis=1, return_index=True, return_inverse=True
    )
    able = np.zeros((combinations.shape[1], tables.rows), np.bool_)
    np.logical_or.at(able, inverse.ravel(), tables.choices[choice].legal)
    figures = np.zeros((EITHER + 1, *able.shape), np.int64)
    return NodeCosts(figures=figures, legal=able, options=np.arange(len(first)), count=1), first


def _placed(edge: EdgeCosts, place: dict[int, int], stands: list[Ints]) -> EdgeCosts:
    """An edge between choices by their new places and options, which holds nothing itself."""
    return replace(
        edge,
        producer=place[edge.producer],
        source_of=edge.source_of[stands[place[edge.producer]]],
        uses=tuple(
            replace(
                use,
                choice=place[use.choice],
                target_of=use.target_of[stands[place[use.choice]]],
                holds=False,
            )
            for use in edge.uses
        ),
    )


def _forward(space_edge: ReshardingEdge, edge: EdgeCosts) -> EdgeCosts | None:
    """Part of an edge that is boxed in the forward pass; None: nothing is."""
    if edge.figure == STEP or not space_edge.forward or space_edge.side:
        return None
    uses = zip(edge.uses, space_edge.uses, strict=True)
    early = tuple(use for use, of_space in uses if not of_space.holds)
    return replace(edge, uses=early) if early else None


def _by_pass(edge: EdgeCosts, early: EdgeCosts | None) -> EdgeCosts:
    """An edge whose boxing counts in its pass; in the cheaper one, where it is boxed in two."""
    if early is None:
        return edge
    return replace(edge, figure=FORWARD if len(early.uses) == len(edge.uses) else EITHER)


def _gaps(edge: ReshardingEdge) -> Iterator[int]:
    """Gaps across which something of an edge may be kept."""
    if edge.outlives_pass and edge.producer_pass is not None:
        last = max((max(use.passes) for use in edge.uses if use.passes), default=0)
        yield from range(edge.producer_pass, last)


def _before_and_after(edge: EdgeCosts, gap: int) -> tuple[list[EdgeUse], list[EdgeUse]]:
    """Uses that read before a gap, and those that read after it; some do both."""
    reading = [use for use in edge.uses if use.passes]
    before = [use for use in reading if min(use.passes) <= gap]
    return before, [use for use in reading if max(use.passes) > gap]


def _kept_bytes(
    space_edge: ReshardingEdge, edge: EdgeCosts, gap: int, options: Ints, rows: Ints
) -> Ints:
    """Bytes [R] of one occurrence of an edge that are alive in a gap."""
    before, after = _before_and_after(edge, gap)
    alive_bytes = np.zeros(len(rows), np.int64)
    source = edge.source_of[options[edge.producer]]
    made_state = space_edge.sources[source]
    made_too = np.zeros(len(rows), np.bool_)
    early = [use.target_of[options[use.choice]] for use in before]
    late = [use.target_of[options[use.choice]] for use in after]
    for number, target in enumerate(late):
        again = _any_equal(target, early)
        as_made = space_edge.targets[target] == made_state
        made_too |= ~again | as_made
        first = ~_any_equal(target, late[:number])
        alive_bytes += edge.held_bytes[target, rows] * (again & ~as_made & first)
    alive_bytes += edge.made_bytes[source, rows] * made_too
    return alive_bytes


def _any_equal(target: Ints, others: list[Ints]) -> Bools:
    """Mask [R] of rows whose target is one of the others."""
    equal = np.zeros(len(target), np.bool_)
    for other in others:
        equal |= target == other
    return equal


def _kept_edges(space_edge: ReshardingEdge, edge: EdgeCosts) -> Iterator[EdgeCosts]:
    """Edges that cost no more than what an edge keeps, whatever is chosen."""
    for gap in _gaps(space_edge):
        before, after = _before_and_after(edge, gap)
        if not before:  # what was made is kept, by whichever layout it is read
            yield _bytes_edge(edge, GAPS[gap], edge.made_bytes[:, None], edge.source_of)
            continue
        floor = np.minimum(edge.made_bytes.min(axis=0), edge.held_bytes.min(axis=0))
        yield _bytes_edge(edge, GAPS[gap], floor[None, None], np.zeros_like(edge.source_of))
        targets = np.arange(len(edge.held_bytes))
        cost = np.zeros((len(targets), *edge.held_bytes.shape), np.int64)
        cost[targets, targets] = (edge.held_bytes - floor) // len(before)
        for use in before:
            later = tuple(replace(reader, passes=frozenset()) for reader in after)
            reads = replace(edge, producer=use.choice, source_of=use.target_of, uses=later)
            yield _costing(reads, GAPS[gap], cost)


def _bytes_edge(edge: EdgeCosts, figure: int, cost: Ints, makes: Ints) -> EdgeCosts:
    """An edge that costs by what is made alone [A, 1, K]."""
    use = EdgeUse(choice=edge.producer, target_of=np.zeros_like(makes), holds=False)
    return _costing(replace(edge, source_of=makes, uses=(use,)), figure, cost)


def _costing(edge: EdgeCosts, figure: int, cost: Ints) -> EdgeCosts:
    """An edge that can always be boxed, at a cost [A, B, K] that counts in a figure."""
    nothing = np.zeros_like(cost)
    return replace(
        edge,
        figure=figure,
        reachable=np.ones(cost.shape, np.bool_),
        duration_ns=cost,
        buffer_bytes=nothing,
        made_bytes=nothing[:, 0],
        held_bytes=nothing[0],
    )
