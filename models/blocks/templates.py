"""Templates of blocks: those equal in structure share one, whatever they are called."""

from collections.abc import Hashable

from msgspec.structs import replace

from millrace.models.blocks.naming import inner_names, renamed
from millrace.models.blocks.structural_equality import (
    block_structures,
    facts_of_op,
    facts_of_tensor,
    wiring_of,
)
from millrace.models.graph import Graph, Op


def merge_templates(graph: Graph) -> Graph:
    """Give blocks that are equal in structure one template.

    Parameters
    ----------
    graph : Graph
        With blocks; of a training graph the forward part decides.

    Returns
    -------
    Graph
        The same blocks. Equal ones have the template of the first of them, others a template of
        their own. Where the inner names of equal blocks differ, their ops and tensors are renamed
        so that only the block's prefix does. The graph itself where nothing changes.

    Examples
    --------
    >>> from millrace.models.builder import GraphBuilder
    >>> builder = GraphBuilder(name="two", batch=1, tokens_per_sample=1)
    >>> for block in ("left", "right"):
    ...     builder.begin_block(block)
    ...     _ = builder.input("x", "b", (1,), source="features")
    >>> merge_templates(builder.build()).templates
    {'left': 'left', 'right': 'left'}
    """
    wiring = wiring_of(graph)
    places = {block: place for place, block in enumerate(graph.blocks)}
    homes = [places[op.block] for op in wiring.ops]
    block_members = block_structures(wiring, homes, len(places))
    classes: dict[object, list[int]] = {}
    for place, member in enumerate(block_members):
        classes.setdefault(member.structure, []).append(place)
    templates: dict[str, str] = {}
    names: dict[str, str] = {}
    for alike in classes.values():
        first = graph.blocks[alike[0]]
        title = graph.templates[first]
        if title in templates.values():
            title = first  # two templates in one: the blocks were not equal after all
        templates.update({graph.blocks[place]: title for place in alike})
        copies = [[wiring.ops[number] for number in block_members[place].order] for place in alike]
        if any(_inner(copy) != _inner(copies[0]) for copy in copies):
            for copy in copies:
                chosen = zip(copy, inner_names(copies), strict=True)
                names.update({op.name: f"{op.block}.{name}" for op, name in chosen})
    ordered = {block: templates[block] for block in graph.blocks}
    if not names and ordered == graph.templates:
        return graph
    return renamed(graph, names, {}, ordered)[0]


def split_templates(graph: Graph) -> Graph:
    """Give blocks with ops that the first of their template has not templates of their own.

    Blocks that are equal going forward may differ going back: where nothing before a block is
    trained its inputs need no gradients, and what more readers read has more gradients to add up.
    The first may have more than others, as a decoder's that adds up what all give back to memory.

    Parameters
    ----------
    graph : Graph
        A training graph.

    Returns
    -------
    Graph
        A block has the template of the first that it is like, called as that block is unless it
        is the template's first. The graph itself where nothing changes.
    """
    tensors = graph.tensors_by_name
    facts: dict[str, set[Hashable]] = {block: set() for block in graph.blocks}
    homes = {name: op.block for op in graph.ops for name in op.outputs}
    for op in graph.ops:
        if op.block in facts:
            read = tuple(
                name.removeprefix(op.block)
                if homes[name] == op.block
                else facts_of_tensor(tensors[name])
                for name in op.inputs
            )
            outputs = tuple(facts_of_tensor(tensors[name]) for name in op.outputs)
            inner = op.name.removeprefix(op.block)
            facts[op.block].add((inner, facts_of_op(op), read, outputs))
    templates: dict[str, str] = {}
    firsts: dict[str, list[str]] = {}  # by template as it was
    for block in graph.blocks:
        row = firsts.setdefault(graph.templates[block], [])
        like = next((first for first in row if facts[block] <= facts[first]), None)
        if like is None:
            templates[block] = block if row else graph.templates[block]
            row.append(block)
        else:
            templates[block] = templates[like]
    return graph if templates == graph.templates else replace(graph, templates=templates)


def _inner(ops: list[Op]) -> list[tuple[str, ...]]:
    return [tuple(name.removeprefix(op.block) for name in (op.name, *op.outputs)) for op in ops]
