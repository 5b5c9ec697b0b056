"""Cutting of a forward graph into blocks, by structure.

The ops that work on data are lined up (`op_sequence.py`); rows of equal pieces among them become
blocks of one template (`repeated_blocks.py`), what lies before, between and after becomes blocks of
its own. What is carried (weights, constants, inputs) goes to the block that reads it first; where
several blocks of one row share it, to the last block before the row, so that the row stays equal.
"""

from collections.abc import Sequence
from typing import NamedTuple

from millrace.models.blocks.naming import inner_names, renamed
from millrace.models.blocks.op_sequence import Stream, stream_of
from millrace.models.blocks.repeated_blocks import RepeatedBlocks, find_repeated_blocks
from millrace.models.blocks.structural_equality import BlockStructure, block_structures, wiring_of
from millrace.models.errors import ModelError
from millrace.models.graph import Graph


class BlockedGraph(NamedTuple):
    """A graph in blocks, and the new name of every tensor under its old one."""

    graph: Graph
    names: dict[str, str]


def with_blocks(graph: Graph) -> Graph:
    """Cut a forward graph into blocks: maximal rows of equal pieces, and what lies around them.

    Parameters
    ----------
    graph : Graph
        A forward graph; its blocks and names are not trusted, only its order and wiring.

    Returns
    -------
    Graph
        The same ops in the same order under new names. Equal blocks are `layer.0`, `layer.1`, …
        of template `layer` (`layer1`, `layer2`, … where there are several), the others `stem`,
        `middle` and `head` by where they stand, or `model` where nothing repeats.

    Raises
    ------
    ModelError
        The graph is not valid, or has backward ops already.

    Examples
    --------
    >>> from millrace.models.zoo.catalogue import build, model_spec
    >>> with_blocks(build(model_spec("mlp"), 4)).blocks
    ('stem', 'layer.0', 'layer.1', 'layer.2', 'head')
    """
    return cut(graph).graph


def cut(graph: Graph) -> BlockedGraph:
    """Cut a graph as `with_blocks` does, and keep the new name of every tensor."""
    for op in graph.validate().ops:
        if not op.phase.is_forward:
            raise ModelError(
                f"graph `{graph.name}` has op `{op.name}` of phase {op.phase}: blocks are found in "
                f"a forward graph; cut it before its gradients are added"
            )
    wiring = wiring_of(graph)
    stream = stream_of(graph, wiring)
    copies = find_repeated_blocks(stream)
    pieces = _piece_starts(len(stream.word), copies)
    homes = _homes(stream, pieces, {piece for row in copies for piece in _starts(row)})
    block_members = block_structures(wiring, homes, len(pieces))
    blocks, templates = _named(block_members)
    inner: dict[str, list[str]] = {}
    for template in dict.fromkeys(templates):
        equal = [
            member
            for member, other in zip(block_members, templates, strict=True)
            if other == template
        ]
        inner[template] = inner_names([[wiring.ops[n] for n in member.order] for member in equal])
    names = {
        wiring.ops[number].name: f"{block}.{name}"
        for member, block, template in zip(block_members, blocks, templates, strict=True)
        for number, name in zip(member.order, inner[template], strict=True)
    }
    homes_by_name = {op.name: blocks[home] for op, home in zip(wiring.ops, homes, strict=True)}
    renamed_graph, tensors = renamed(
        graph, names, homes_by_name, dict(zip(blocks, templates, strict=True))
    )
    return BlockedGraph(renamed_graph, tensors)


def _starts(row: RepeatedBlocks) -> range:
    return range(row.start, row.stop, row.period)


def _piece_starts(size: int, copies: Sequence[RepeatedBlocks]) -> list[int]:
    """Starts of the pieces of the stream; one piece where there is nothing to cut."""
    borders = {0}
    for row in copies:
        borders.update(_starts(row))
        borders.add(row.stop)
    return sorted(borders - {size}) or [0]


def _homes(stream: Stream, pieces: Sequence[int], repeated: set[int]) -> list[int]:
    """Number of the piece that each op goes to."""
    homes = [-1] * len(stream.wiring.ops)
    ends = [*pieces[1:], len(stream.numbers)]
    for piece, (start, stop) in enumerate(zip(pieces, ends, strict=True)):
        for number in stream.numbers[start:stop]:
            homes[number] = piece
    in_row = [start in repeated for start in pieces]
    readers: list[set[int]] = [set() for _ in homes]
    for number in reversed(range(len(homes))):
        if homes[number] < 0:
            homes[number] = _home(readers[number], in_row)
        for source, _ in stream.wiring.inputs[number]:
            readers[source].add(homes[number])
    return homes


def _home(readers: set[int], repeated: Sequence[bool]) -> int:
    """Piece of a carried op: its first reader's, or of several equal ones the one before."""
    first = min(readers, default=0)
    if len(readers) > 1 and repeated[first]:
        return max((piece for piece in range(first) if not repeated[piece]), default=first)
    return first


def _named(block_members: Sequence[BlockStructure]) -> tuple[list[str], list[str]]:
    """Names of the blocks and of their templates."""
    times: dict[object, int] = {}
    for member in block_members:
        times[member.structure] = times.get(member.structure, 0) + 1
    rows = [structure for structure, count in times.items() if count > 1]
    titles = {
        structure: "layer" if len(rows) == 1 else f"layer{row}"
        for row, structure in enumerate(rows, 1)
    }
    places = [index for index, member in enumerate(block_members) if member.structure in titles]
    blocks: list[str] = []
    templates: list[str] = []
    counts: dict[str, int] = {}
    for index, member in enumerate(block_members):
        if member.structure in titles:
            title = titles[member.structure]
            blocks.append(f"{title}.{counts.get(title, 0)}")
        else:
            title = _place(index, places)
            blocks.append(f"{title}{counts[title] + 1}" if title in counts else title)
        counts[title] = counts.get(title, 0) + 1
        templates.append(title if member.structure in titles else blocks[-1])
    return blocks, templates


def _place(index: int, places: Sequence[int]) -> str:
    if not places:
        return "model"
    if index < places[0]:
        return "stem"
    return "head" if index > places[-1] else "middle"
