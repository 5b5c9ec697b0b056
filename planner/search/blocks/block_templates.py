"""Block templates: ops of a graph with equal blocks taken once, and how often each occurs.

Blocks of one template have the same ops under other names, so one of them stands for all: its
choice is every block's choice, its cost counts once per block. A tensor that one block hands to the
next becomes a tensor that the representative hands to itself.

What is folded often is shortened first: of many blocks that are joined to their neighbours alike,
a few are left, which count for the others.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from millrace.models.errors import ModelError
from millrace.models.graph import GLOBAL_BLOCK, Graph, Op, Phase, beyond, restricted, scaled

END_BLOCKS = 2  # blocks at either end of those that are alike, so that what is met first stays so

Joint = tuple[str, str, int]  # tensor, reader and which of its inputs, by their representatives


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorReader:
    """One reading of a tensor: which op, and as which of its inputs."""

    op: str
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldedEdge:
    """A tensor and the ops that read it, `count` times in the graph.

    What a `repeat` gives is boxed anew for the backward pass (`side` is then "backward"), anything
    else once for all its readers.
    """

    tensor: str
    side: str
    readers: tuple[TensorReader, ...]
    count: int
    crossing: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """Representative ops in the graph's order, how often each occurs, and the tensors they read."""

    graph: Graph
    ops: tuple[Op, ...]
    counts: dict[str, int]
    edges: tuple[FoldedEdge, ...]


def representatives(graph: Graph, blocks: Iterable[str]) -> dict[str, str]:
    """First block of each block's template among `blocks`, by block."""
    first: dict[str, str] = {}
    wanted = set(blocks)
    return {
        block: first.setdefault(graph.templates[block], block)
        for block in graph.blocks
        if block in wanted
    }


def fold(
    graph: Graph,
    blocks: Iterable[str] | None = None,
    same: dict[str, str] | None = None,
    often: Mapping[str, int] | None = None,
) -> Folded:
    """Take the ops of `blocks` (default: all), equal blocks once.

    Parameters
    ----------
    graph : Graph
        A training graph; ops of the global block are left out.
    blocks : iterable of str, optional
        The blocks to take.
    same : dict, optional
        Block to the block that stands for it; default: the first of its template. Map every block
        to itself to fold nothing.
    often : mapping, optional
        Number of blocks that each counts for, as `deduplicated` says; default: one.
    """
    often = often or {}
    wanted = set(graph.blocks if blocks is None else blocks)
    standing = representatives(graph, wanted) if same is None else same
    names: dict[str, str] = {}
    tensors: dict[str, str] = {}
    producers: dict[str, Op] = {}
    counts: dict[str, int] = {}
    ops: list[Op] = []
    for op in graph.ops:
        producers.update(dict.fromkeys(op.outputs, op))
        home = standing.get(op.block, op.block)
        names[op.name] = home + op.name.removeprefix(op.block)
        for name in op.outputs:
            tensors[name] = home + name.removeprefix(op.block)
        if op.block in wanted:
            counts[names[op.name]] = counts.get(names[op.name], 0) + often.get(op.block, 1)
            if home == op.block:
                ops.append(op)
    readings: dict[tuple[str, str], list[tuple[Op, int]]] = {}
    for op in graph.ops:
        if op.block not in wanted:
            continue
        for index, name in enumerate(op.inputs):
            producer = producers[name]
            if producer.block == GLOBAL_BLOCK:
                continue
            backward = op.phase.is_gradient
            side = "backward" if producer.kind == "repeat" and backward else ""
            readings.setdefault((name, side), []).append((op, index))
    folded_edges: dict[tuple[str, str, tuple[TensorReader, ...]], FoldedEdge] = {}
    for (name, side), uses in readings.items():
        readers = tuple(TensorReader(op=names[op.name], index=index) for op, index in uses)
        key = (tensors[name], side, readers)
        home = producers[name].block
        count = often.get(home, 1) + (folded_edges[key].count if key in folded_edges else 0)
        crossing = any(op.block != home for op, _ in uses)
        folded_edges[key] = FoldedEdge(
            tensor=tensors[name], side=side, readers=readers, count=count, crossing=crossing
        )
    return Folded(graph=graph, ops=tuple(ops), counts=counts, edges=tuple(folded_edges.values()))


def handed_bytes(folded: Folded, batch: int) -> int:
    """Bytes of the largest tensor that a block of the forward pass hands to the next, whole.

    Parameters
    ----------
    folded : Folded
        Graph with equal blocks taken once.
    batch : int
        Samples of a microbatch over all replicas; sizes of the graph's tensors are scaled to it.

    Returns
    -------
    int
        Bytes over all devices; 0 where no block hands a tensor on.
    """
    tensors = folded.graph.tensors_by_name
    makers = {name: op for op in folded.ops for name in op.outputs}
    handed = (
        scaled(tensors[edge.tensor], folded.graph.batch, batch).size_bytes
        for edge in folded.edges
        if edge.crossing and makers[edge.tensor].phase is Phase.FORWARD
    )
    return max(handed, default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortened:
    """A training graph with some of its blocks, and how many each of them counts for."""

    graph: Graph
    often: dict[str, int]


def deduplicated(graph: Graph) -> Shortened:
    """Leave out blocks where others of their template are joined to their neighbours as they are.

    What is left folds to the same ops, counts and edges; the last kept block before a gap hands to
    the first behind it. Where the blocks that are left would be joined otherwise than before, as
    where every block reads those before it, none is left out.
    """
    standing = representatives(graph, graph.blocks)
    joints = _joints(graph, standing)
    alike: dict[tuple[str, object], list[str]] = {}
    for block in graph.blocks:
        alike.setdefault((standing[block], joints[block]), []).append(block)
    often: dict[str, int] = {}
    sets: dict[str, int] = {}  # number of the set of like blocks that a block is in
    for number, members in enumerate(alike.values()):
        sets.update(dict.fromkeys(members, number))
        kept_blocks = (
            members
            if len(members) <= 2 * END_BLOCKS
            else [*members[:END_BLOCKS], *members[-END_BLOCKS:]]
        )
        often.update(dict.fromkeys(kept_blocks, 1))
        often[kept_blocks[0]] += len(members) - len(kept_blocks)
    if len(often) < len(graph.blocks):
        with suppress(ModelError):
            short = _without(graph, sets, often)
            left = _joints(short, standing)
            if all(left[block] == joints[block] for block in short.blocks):
                return Shortened(graph=short, often=often)
    return Shortened(graph=graph, often=dict.fromkeys(graph.blocks, 1))


def _joints(graph: Graph, standing: Mapping[str, str]) -> dict[str, tuple[object, ...]]:
    """Joints of every block: what it reads of others, what others read of it; and number of ops."""
    homes: dict[str, str] = {}
    read: dict[str, list[Joint]] = {block: [] for block in graph.blocks}
    given: dict[str, list[Joint]] = {block: [] for block in graph.blocks}
    ops = dict.fromkeys((*graph.blocks, GLOBAL_BLOCK), 0)
    for op in graph.ops:
        block = op.block
        ops[block] += 1
        for index, name in enumerate(op.inputs):
            home = homes[name]
            if home != block and block in read and home in read:
                tensor = standing[home] + name.removeprefix(home)
                joint = tensor, standing[block] + op.name.removeprefix(block), index
                read[block].append(joint)
                given[home].append(joint)
        for name in op.outputs:
            homes[name] = block
    return {block: (tuple(read[block]), tuple(given[block]), ops[block]) for block in graph.blocks}


def _without(graph: Graph, sets: Mapping[str, int], kept_blocks: Mapping[str, int]) -> Graph:
    """Graph of the kept blocks; what one reads of a block left out, a like block gives it.

    Raises
    ------
    ModelError
        There is none, or it makes the tensor after it is read.
    """

    def stand_in(reader: str, home: str) -> str | None:
        if reader == GLOBAL_BLOCK:
            return None
        others = (block for block in beyond(graph.blocks, reader, home) if block in kept_blocks)
        return next((block for block in others if sets[block] == sets[home]), home)

    blocks = tuple(block for block in graph.blocks if block in kept_blocks)
    return restricted(graph, blocks, stand_in).validate()
