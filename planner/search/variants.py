"""Variants: from the options of a solved block program to what a Plan holds and stages need."""

import numpy as np

from models.graph import Graph
from planner.plan import OpSignature, Variant
from planner.search.stages import VariantFigures
from planner.search.tables import FIGURES, Ints, Tables, net_figures

Options = tuple[int, ...]


def block_figures(tables: Tables, graph: Graph, options: Options) -> dict[str, VariantFigures]:
    """Figures of one block per template; boxing between blocks counts where the tensor is read."""
    totals: dict[str, Ints] = {}
    counts: dict[str, int] = {}
    for choice, option in zip(tables.choices, options, strict=True):
        if not choice.ops:
            continue
        template = graph.templates[choice.ops[0].block]
        so_far = totals.get(template, np.zeros(len(FIGURES), np.int64))
        totals[template] = so_far + choice.count * choice.figures[option]
        counts[template] = max(counts.get(template, 0), choice.count)
    for net in tables.nets:
        readers = [choice for use in net.uses if (choice := tables.choices[use.choice]).ops]
        if readers:
            template = graph.templates[readers[0].ops[0].block]
            totals[template] = totals[template] + net.count * net_figures(net, options)
    found: dict[str, VariantFigures] = {}
    for template, figures in totals.items():
        one = [-(-int(figure) // counts[template]) for figure in figures]
        found[template] = VariantFigures(
            microbatch_ns=one[0] + one[4],
            deferrable_ns=one[4],
            step_ns=one[1],
            persistent_bytes=one[2],
            inflight_bytes=one[3],
        )
    return found


def handover(tables: Tables, graph: Graph, options: Options) -> tuple[object, ...]:
    """How blocks hand tensors to one another; blocks alike in this mix without more boxing."""
    found = []
    for net in tables.nets:
        maker = tables.choices[net.producer]
        readers = [tables.choices[use.choice] for use in net.uses]
        homes = {choice.ops[0].block for choice in readers if choice.ops}
        inside = bool(maker.ops) and homes == {maker.ops[0].block}
        if inside and net.count == maker.count:
            continue
        wants = {int(use.wants[options[use.choice]]) for use in net.uses}
        found.append((net.tensor, int(net.makes[options[net.producer]]), tuple(sorted(wants))))
    return tuple(found)


def variants(tables: Tables, graph: Graph, options: Options) -> tuple[Variant, ...]:
    """One Variant per template, in the order of the model."""
    found: dict[str, dict[str, OpSignature]] = {}
    for choice, option in zip(tables.choices, options, strict=True):
        for op, signature in zip(choice.ops, choice.options[option], strict=False):
            inner = op.name.removeprefix(op.block + ".")
            found.setdefault(graph.templates[op.block], {})[inner] = signature.document
    return tuple(
        Variant(template=template, signatures=dict(sorted(found[template].items())))
        for template in dict.fromkeys(graph.templates[block] for block in graph.blocks)
    )
