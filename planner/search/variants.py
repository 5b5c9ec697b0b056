"""Variants: from the options of a solved block program to what a Plan holds and stages need."""

import numpy as np

from models.graph import Graph
from planner.plan import OpSignature, Variant
from planner.search.block_program import Solution, net_figures
from planner.search.stages import VariantFigures
from planner.search.tables import FIGURES, Tables


def block_figures(
    tables: Tables, graph: Graph, options: tuple[int, ...]
) -> dict[str, VariantFigures]:
    """Figures of one block per template; boxing between blocks counts where the tensor is read."""
    totals: dict[str, np.ndarray] = {}
    counts: dict[str, int] = {}
    for choice, option in zip(tables.choices, options, strict=True):
        if not choice.ops:
            continue
        template = graph.templates[choice.ops[0].block]
        zero = np.zeros(len(FIGURES), np.int64)
        totals[template] = totals.get(template, zero) + choice.count * choice.figures[option]
        counts[template] = max(counts.get(template, 0), choice.count)
    for net in tables.nets:
        readers = [tables.choices[use.choice] for use in net.uses]
        inside = [choice.ops[0].block for choice in readers if choice.ops]
        if inside:
            totals[graph.templates[inside[0]]] += net.count * net_figures(net, options)
    found: dict[str, VariantFigures] = {}
    for template, figures in totals.items():
        one = [-(-int(figure) // counts[template]) for figure in figures]
        found[template] = VariantFigures(
            microbatch_ns=one[0],
            step_ns=one[1],
            persistent_bytes=one[2],
            inflight_bytes=one[3],
        )
    return found


def signatures(tables: Tables, solution: Solution) -> dict[str, dict[str, OpSignature]]:
    """Signature of every op, by representative block and by the op's name within it."""
    found: dict[str, dict[str, OpSignature]] = {}
    for choice, option in zip(tables.choices, solution.options, strict=True):
        for op, signature in zip(choice.ops, choice.options[option], strict=False):
            inner = op.name.removeprefix(op.block + ".")
            found.setdefault(op.block, {})[inner] = signature.document
    return found


def variants(tables: Tables, graph: Graph, solution: Solution) -> dict[str, Variant]:
    """One Variant per template."""
    return {
        graph.templates[block]: Variant(
            template=graph.templates[block], signatures=dict(sorted(inner.items()))
        )
        for block, inner in signatures(tables, solution).items()
    }
