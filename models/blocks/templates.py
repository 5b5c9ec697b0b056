"""Ties the blocks of a graph that are equal in structure, whatever they are called."""

from millrace.models.blocks.naming import inner_names, renamed
from millrace.models.blocks.structure import members, wiring_of
from millrace.models.graph import Graph, Op


def same_templates(graph: Graph) -> Graph:
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
    >>> same_templates(builder.build()).templates
    {'left': 'left', 'right': 'left'}
    """
    wiring = wiring_of(graph)
    places = {block: place for place, block in enumerate(graph.blocks)}
    homes = [places[op.block] for op in wiring.ops]
    found = members(wiring, homes, len(places))
    classes: dict[object, list[int]] = {}
    for place, one in enumerate(found):
        classes.setdefault(one.structure, []).append(place)
    templates: dict[str, str] = {}
    names: dict[str, str] = {}
    for alike in classes.values():
        first = graph.blocks[alike[0]]
        title = graph.templates[first]
        if title in templates.values():
            title = first  # two templates in one: the blocks were not equal after all
        templates.update({graph.blocks[place]: title for place in alike})
        copies = [[wiring.ops[number] for number in found[place].order] for place in alike]
        if any(_inner(copy) != _inner(copies[0]) for copy in copies):
            for copy in copies:
                chosen = zip(copy, inner_names(copies), strict=True)
                names.update({op.name: f"{op.block}.{name}" for op, name in chosen})
    ordered = {block: templates[block] for block in graph.blocks}
    if not names and ordered == graph.templates:
        return graph
    return renamed(graph, names, {}, ordered)[0]


def _inner(ops: list[Op]) -> list[tuple[str, ...]]:
    return [tuple(name.removeprefix(op.block) for name in (op.name, *op.outputs)) for op in ops]
