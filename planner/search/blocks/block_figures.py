"""Block figures: the options of a solved block program added up, template by template."""

from collections.abc import Iterator, Mapping

import numpy as np

from millrace.models.arrays import Ints
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
    space: StrategySpace, tables: CostTables, row: int, options: Options, deferring: bool
) -> dict[str, list[int]]:
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
    row : int
        Row of `tables`: the mesh and microbatch of the program.
    options : tuple of int
        Option of each choice, as the space numbers them.
    deferring : bool
        True if the schedule defers weight gradients; False: both gradients are one pass, and the
        last two figures are 0.

    Returns
    -------
    dict of str to list of int (7,)
        Nanoseconds and bytes, by template.
    """
    templates = space.folded.graph.templates
    counts: dict[str, int] = {}
    sums: dict[str, Ints] = {}
    home = [templates[choice.ops[0].op.block] for choice in space.choices]
    for index, (choice, template) in enumerate(zip(tables.choices, home, strict=True)):
        figures = choice.count * choice.figures[:, options[index], row]
        more = np.append(figures, (0, 0))
        sums[template] = sums.get(template, np.zeros(len(more), np.int64)) + more
        counts[template] = max(counts.get(template, 0), choice.count)
    for edge in tables.edges:
        source = edge.source_of[options[edge.producer]]
        wanted = {int(use.target_of[options[use.choice]]) for use in edge.uses}
        template_sums = sums[home[edge.uses[0].choice]]
        for target in wanted:
            time = edge.duration_ns[source, target, row]
            template_sums[edge.figure] += edge.count * time
            template_sums[PERSISTENT] += edge.count * edge.buffer_bytes[source, target, row]
        for lifetime, size in _kept_versions(
            space.edges[edge.number], edge, row, options, deferring
        ):
            column = len(FIGURES) + lifetime - 1 if lifetime else INFLIGHT
            template_sums[column] += edge.count * size
    return {
        template: [-(-int(figure) // counts[template]) for figure in total]
        for template, total in sums.items()
    }


def _kept_versions(
    edge: ReshardingEdge, priced: EdgeCosts, row: int, options: Options, deferring: bool
) -> Iterator[tuple[int, int]]:
    """Lifetime and bytes of every version of an edge that is kept from one pass to another.

    What a reader wants is boxed in the first pass that wants it, and kept until the last; what was
    made is kept until it is boxed or read for the last time.
    """
    if edge.producer_pass is None or not edge.outlives_pass:
        return
    source = edge.sources[edge.source_of[options[edge.producer]]]
    spans: dict[int, set[int]] = {}
    for use in edge.uses:
        passes = {min(pass_number, 2 if deferring else 1) for pass_number in use.passes}
        spans.setdefault(int(use.target_of[options[use.choice]]), set()).update(passes)
    last = edge.producer_pass
    for target, passes in spans.items():
        if not passes:
            continue
        if edge.targets[target] == source:
            last = max(last, *passes)
            continue
        last = max(last, min(passes))
        if min(passes) < max(passes):
            size = int(priced.held_bytes[target, row])
            yield SPANS.index((min(passes), max(passes))), size
    if edge.producer_pass < last:
        priced_source = priced.source_of[options[edge.producer]]
        yield SPANS.index((edge.producer_pass, last)), int(priced.made_bytes[priced_source, row])


def forward_times_ns(
    space: StrategySpace, tables: CostTables, row: int, options: Options
) -> dict[str, int]:
    """Nanoseconds of one block's forward pass per template: a share of its time per microbatch.

    Ops that are recomputed choose together with their clones, which take as long.

    Parameters
    ----------
    space : StrategySpace
        Choices and edges of the program; its folded graph names each block's template.
    tables : CostTables
        Costs of all options of `space`, none left out.
    row : int
        Row of `tables`: the mesh and microbatch of the program.
    options : tuple of int
        Option of each choice, as the space numbers them.
    """
    templates = space.folded.graph.templates
    home = [templates[choice.ops[0].op.block] for choice in space.choices]
    counts: dict[str, int] = {}
    sums = dict.fromkeys(home, 0.0)
    for index, (choice, space_choice) in enumerate(zip(tables.choices, space.choices, strict=True)):
        counts[home[index]] = max(counts.get(home[index], 0), choice.count)
        if space_choice.originals and space_choice.originals[0].op.phase is Phase.FORWARD:
            share = len(space_choice.originals) / len(space_choice.ops)
            sums[home[index]] += (
                choice.count * share * choice.figures[MICROBATCH, options[index], row]
            )
    for edge in tables.edges:
        if (
            edge.figure == STEP
            or not space.edges[edge.number].forward
            or space.edges[edge.number].side
        ):
            continue
        source = edge.source_of[options[edge.producer]]
        wanted = {int(use.target_of[options[use.choice]]) for use in edge.uses if not use.holds}
        for target in wanted:
            took = edge.count * edge.duration_ns[source, target, row]
            sums[home[edge.uses[0].choice]] += took
    return {template: round(total / counts[template]) for template, total in sums.items()}


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
