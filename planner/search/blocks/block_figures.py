"""Block figures: the options of a solved block program added up, template by template."""

from collections.abc import Mapping

import numpy as np

from millrace.models.arrays import Bools, Ints
from millrace.models.graph import Graph, Op, Phase, Tensor, scaled
from millrace.planner.memory import OperandSbps, SectionPeaks
from millrace.planner.schedules.counting import LIFETIMES
from millrace.planner.search.blocks.cost_tables import (
    FIGURES,
    INFLIGHT,
    MICROBATCH,
    PERSISTENT,
    STEP,
    CostTables,
    EdgeCosts,
)
from millrace.planner.search.blocks.strategies import OpStrategies, ReshardingEdge, StrategySpace

Options = tuple[int, ...]
# Passes that make and read last what has a lifetime, as `strategies.PASSES` numbers them.
SPANS = tuple(("FBW".index(first), "FBW".index(last)) for first, last in LIFETIMES)


def template_figures(
    space: StrategySpace, tables: CostTables, rows: Ints, options: Ints, deferring: bool
) -> Ints:
    """Figures of one block per template, in the order of `FIGURES`, rounded up, and two more.

    Boxing between blocks counts where it is read. Where a schedule defers gradients of weights,
    bytes in flight are those kept until the gradients of inputs, and the last two figures what is
    kept for the gradients of weights: of the forward pass, and of the backward pass.

    Parameters
    ----------
    space : StrategySpace
        Choices and edges of the program; its folded graph names each block's template.
    tables : CostTables
        Costs of all options of `space`, none left out.
    rows : int array [R]
        Row of `tables` of every solution: the mesh and microbatch of its program.
    options : int array [choices, R]
        Option of each choice, as the space numbers them.
    deferring : bool
        True if the schedule defers weight gradients; False: both gradients are one pass, and the
        last two figures are 0.

    Returns
    -------
    int array [7, T, R]
        Nanoseconds and bytes, by template in the order of `space.templates`.
    """
    sums = np.zeros((len(FIGURES) + 2, len(space.templates), len(rows)), np.int64)
    for choice, option in zip(tables.choices, options, strict=True):
        sums[: len(FIGURES), choice.template] += choice.count * choice.figures[:, option, rows]
    for edge in tables.edges:
        source = edge.source_of[options[edge.producer]]
        targets = [use.target_of[options[use.choice]] for use in edge.uses]
        edge_sums = sums[:, edge.template]
        for number, target in enumerate(targets):
            fresh = edge.count * ~_among(target, targets[:number])
            edge_sums[edge.figure] += fresh * edge.duration_ns[source, target, rows]
            edge_sums[PERSISTENT] += fresh * edge.buffer_bytes[source, target, rows]
        _add_kept(edge_sums, space.edges[edge.number], edge, source, targets, rows, deferring)
    rounded: Ints = -(-sums // space.block_counts[:, None])
    return rounded


def _among(target: Ints, others: list[Ints]) -> Bools:
    """Mask [R] of the solutions in which a target is one of the others."""
    among: Bools = np.zeros(len(target), np.bool_)
    for other in others:
        among |= target == other
    return among


def _add_kept(
    sums: Ints,
    space_edge: ReshardingEdge,
    edge: EdgeCosts,
    source: Ints,
    targets: list[Ints],
    rows: Ints,
    deferring: bool,
) -> None:
    """Add the bytes of every version of an edge that is kept from one pass to another.

    What a reader wants is boxed in the first pass that wants it, and kept until the last; what was
    made is kept until it is boxed or read for the last time.
    """
    made_in = space_edge.producer_pass
    if made_in is None or not space_edge.outlives_pass:
        return
    latest = 2 if deferring else 1
    reading = [
        (target, min(min(use.passes), latest), min(max(use.passes), latest))
        for use, target in zip(space_edge.uses, targets, strict=True)
        if use.passes
    ]
    made_state = space_edge.sources[source]
    last = np.full(len(rows), made_in)
    for number, (target, first_read, last_read) in enumerate(reading):
        first, final = np.full(len(rows), first_read), np.full(len(rows), last_read)
        for other, other_first, other_last in reading:
            same = other == target
            first[same] = np.minimum(first[same], other_first)
            final[same] = np.maximum(final[same], other_last)
        as_made = space_edge.targets[target] == made_state
        last = np.maximum(last, np.where(as_made, final, first))
        fresh = ~as_made & ~_among(target, [earlier for earlier, _, _ in reading[:number]])
        size = edge.count * edge.held_bytes[target, rows] * fresh
        _add_spans(sums, first, final, size)
    size = edge.count * edge.made_bytes[source, rows]
    _add_spans(sums, np.full(len(rows), made_in), last, size)


def _add_spans(sums: Ints, first: Ints, last: Ints, size: Ints) -> None:
    """Add bytes [R] to the figure of what is kept from one pass to another, where they differ."""
    for lifetime, span in enumerate(SPANS):
        column = len(FIGURES) + lifetime - 1 if lifetime else INFLIGHT
        sums[column] += size * ((first == span[0]) & (last == span[1]))


def forward_times_ns(space: StrategySpace, tables: CostTables, rows: Ints, options: Ints) -> Ints:
    """Nanoseconds of one block's forward pass per template: a share of its time per microbatch.

    Ops that are recomputed choose together with their clones, which take as long.

    Parameters
    ----------
    space : StrategySpace
        Choices and edges of the program; its folded graph names each block's template.
    tables : CostTables
        Costs of all options of `space`, none left out.
    rows : int array [R]
        Row of `tables` of every solution.
    options : int array [choices, R]
        Option of each choice, as the space numbers them.

    Returns
    -------
    int array [T, R]
        By template in the order of `space.templates`.
    """
    sums = np.zeros((len(space.templates), len(rows)))
    for choice, space_choice, option in zip(tables.choices, space.choices, options, strict=True):
        if space_choice.originals and space_choice.originals[0].op.phase is Phase.FORWARD:
            share = choice.count * len(space_choice.originals) / len(space_choice.ops)
            sums[choice.template] += share * choice.figures[MICROBATCH, option, rows]
    for edge in tables.edges:
        space_edge = space.edges[edge.number]
        if edge.figure == STEP or not space_edge.forward or space_edge.side:
            continue
        source = edge.source_of[options[edge.producer]]
        targets = [use.target_of[options[use.choice]] for use in edge.uses if not use.holds]
        for number, target in enumerate(targets):
            fresh = edge.count * ~_among(target, targets[:number])
            sums[edge.template] += fresh * edge.duration_ns[source, target, rows]
    rounded: Ints = np.rint(sums / space.block_counts[:, None]).astype(np.int64)
    return rounded


class BlockPeaks:
    """Largest sections of representative blocks; what solutions have in common is kept."""

    def __init__(self) -> None:
        self._layouts: dict[tuple[int, int], OperandSbps] = {}
        self._sized: dict[tuple[str, int], Mapping[str, Tensor]] = {}
        self._sections: dict[tuple[str, int, tuple[int, ...]], list[tuple[str, SectionPeaks]]] = {}

    def largest(
        self, space: StrategySpace, mode: str, batch: int, sizes: tuple[int, ...], options: Options
    ) -> dict[str, int]:
        """Bytes of the largest section of every template's block, in one mode."""
        layouts = {}
        for choice, option in zip(space.choices, options, strict=True):
            for op_options in choice.ops:
                layouts[op_options.op.name] = self._layout(op_options, option)
        largest_bytes: dict[str, int] = {}
        for template, sections in self._sections_of(space, mode, batch, sizes):
            largest_bytes[template] = max(largest_bytes.get(template, 0), sections.most(layouts))
        return largest_bytes

    def _sections_of(
        self, space: StrategySpace, mode: str, batch: int, sizes: tuple[int, ...]
    ) -> list[tuple[str, SectionPeaks]]:
        """Sections of the representative blocks' ops on a mesh, with their templates."""
        key = mode, batch, sizes
        if key not in self._sections:
            by_block: dict[str, list[Op]] = {}
            for op in space.folded.ops:
                by_block.setdefault(op.block, []).append(op)
            tensors = self._tensors(space, mode, batch)
            self._sections[key] = [
                (space.folded.graph.templates[block], SectionPeaks(ops, tensors, sizes))
                for block, ops in by_block.items()
            ]
        return self._sections[key]

    def _layout(self, op_options: OpStrategies, option: int) -> OperandSbps:
        key = id(op_options), option  # spaces are kept, so that the number stays its own
        if key not in self._layouts:
            signature = op_options.signature(option)
            self._layouts[key] = OperandSbps(signature.inputs, signature.outputs)
        return self._layouts[key]

    def _tensors(self, space: StrategySpace, mode: str, batch: int) -> Mapping[str, Tensor]:
        """Tensors of the representative blocks for one microbatch."""
        if (mode, batch) not in self._sized:
            graph: Graph = space.folded.graph
            wanted = {name for op in space.folded.ops for name in (*op.inputs, *op.outputs)}
            self._sized[mode, batch] = {
                name: scaled(tensor, graph.batch, batch)
                for name, tensor in graph.tensors_by_name.items()
                if name in wanted
            }
        return self._sized[mode, batch]
