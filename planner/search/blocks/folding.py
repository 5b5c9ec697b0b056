"""Folding: the ops of a graph with equal blocks taken once, and how often each occurs.

Blocks of one template have the same ops under other names, so one of them stands for all: its
choice is every block's choice, its cost counts once per block. A tensor that one block hands to the
next becomes a tensor that the representative hands to itself.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from models.graph import GLOBAL_BLOCK, Graph, Op, Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """One reading of a tensor: which op, and as which of its inputs."""

    op: str
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldedNet:
    """A tensor and the ops that read it, `count` times in the graph.

    What a `repeat` gives is boxed anew for the backward pass (`side` is then "backward"), anything
    else once for all its readers.
    """

    tensor: str
    side: str
    readers: tuple[Reader, ...]
    count: int
    crossing: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """Representative ops in the graph's order, how often each occurs, and the tensors they read."""

    graph: Graph
    ops: tuple[Op, ...]
    counts: dict[str, int]
    nets: tuple[FoldedNet, ...]


def representatives(graph: Graph, blocks: Iterable[str]) -> dict[str, str]:
    """Map every block to the first of its template among `blocks`."""
    first: dict[str, str] = {}
    wanted = set(blocks)
    return {
        block: first.setdefault(graph.templates[block], block)
        for block in graph.blocks
        if block in wanted
    }


def fold(
    graph: Graph, blocks: Iterable[str] | None = None, same: dict[str, str] | None = None
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
    """
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
            counts[names[op.name]] = counts.get(names[op.name], 0) + 1
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
            backward = op.phase in (Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT)
            side = "backward" if producer.kind == "repeat" and backward else ""
            readings.setdefault((name, side), []).append((op, index))
    found: dict[tuple[str, str, tuple[Reader, ...]], FoldedNet] = {}
    for (name, side), uses in readings.items():
        readers = tuple(Reader(op=names[op.name], index=index) for op, index in uses)
        key = (tensors[name], side, readers)
        count = found[key].count + 1 if key in found else 1
        crossing = any(op.block != producers[name].block for op, _ in uses)
        found[key] = FoldedNet(
            tensor=tensors[name], side=side, readers=readers, count=count, crossing=crossing
        )
    return Folded(graph=graph, ops=tuple(ops), counts=counts, nets=tuple(found.values()))
