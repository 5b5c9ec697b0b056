"""Fused traffic: the share that each op of a group moves and pays; shares add up to the group's.

A price is asked for op by op, in the search on many shards at once. So a group is told by its ops:
each moves what no op before it has on the chip already, and what the group does not write costs
nothing. What the others move of tensors as large as the head's result, the head moves with its own,
while it multiplies; the other ops are no kernels of their own.
"""

from collections.abc import Container, Hashable, Mapping, Sequence
from typing import NamedTuple

from millrace.models.graph import ITEMSIZE, Graph, Rate
from millrace.models.ops import kinds_where, op_kind
from millrace.planner.fusion.fusion_graph import FusionGraph, FusionNode, FusionTensor
from millrace.planner.fusion.rules import PRODUCT, fused_groups

# Kinds of ops that are done at a step's ends for all variables in one launch
# (`millrace.planner.compile.fused.multi_tensor`).
AT_ENDS = kinds_where(lambda row: row.launched_together and not row.reads_output)


class Share(NamedTuple):
    """One op's share of a group.

    Attributes
    ----------
    inputs, outputs
        Bytes moved per element of every operand.
    follows
        It is not what the group's kernel is launched for.
    beside
        Bytes per element of the first output, of those in `outputs`, that ops behind a product read
        and write in its kernel beyond its own result. Adding up gradients is not counted: what is
        added to is read while the product is computed.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    follows: bool
    beside: int = 0


def shares_of(
    nodes: Sequence[FusionNode],
    values: Mapping[Hashable, FusionTensor],
    written: Container[Hashable],
) -> tuple[Share, ...]:
    """Shares of one group's ops, in their order.

    Parameters
    ----------
    nodes : sequence of FusionNode
        The ops, at least one, each after those whose results it reads.
    values : mapping of FusionTensor
        Tensors that they read and make, by the names that nodes have for them.
    written : container
        Names of results that others read, and which are written therefore.

    Raises
    ------
    ModelError
        The op table has no such kind.
    """
    if (
        all(node.kind == nodes[0].kind for node in nodes)
        and op_kind(nodes[0].kind).launched_together
    ):
        return tuple(_alone(node, values, follows=index > 0) for index, node in enumerate(nodes))
    products = [index for index, node in enumerate(nodes) if op_kind(node.kind).role == PRODUCT]
    apart = components(nodes)
    if 1 < len(apart) == len(products):
        shares: dict[int, Share] = {}
        for row in apart:
            component_shares = shares_of([nodes[index] for index in row], values, written)
            shares |= dict(zip(row, component_shares, strict=True))
        return tuple(shares[index] for index in range(len(nodes)))
    head = products[-1] if products else _head(nodes)
    size = values[nodes[head].outputs[0]].elements
    there: set[Hashable] = set()
    rows: list[tuple[list[int], list[int]]] = []
    beside = added_up = 0
    for index, node in enumerate(nodes):
        reads = [0 if x in there else ITEMSIZE[values[x].dtype] for x in node.inputs]
        writes = [ITEMSIZE[values[x].dtype] if x in written else 0 for x in node.outputs]
        if index in products[:-1]:  # written, and read again by the next, whatever becomes of it
            writes = [
                ITEMSIZE[values[x].dtype] * (1 if index == products[0] else 2) for x in node.outputs
            ]
        there.update(node.inputs, node.outputs)
        if index != head and index not in products:
            again = op_kind(node.kind).reads_output
            for row, names in ((reads, node.inputs), (writes, node.outputs)):
                for place, name in enumerate(names):
                    if values[name].elements == size:
                        moved = row[place] * (2 if again and row is writes else 1)
                        beside += moved
                        added_up += moved * again
                        row[place] = 0
        rows.append((reads, writes))
    if len(products) > 1:
        beside += ITEMSIZE[values[nodes[head].outputs[0]].dtype]
    rows[head][1][0] += beside
    beyond = {
        index: rows[index][1][0] - ITEMSIZE[values[nodes[index].outputs[0]].dtype]
        for index in products
    }
    if products:
        beyond[head] -= added_up
    return tuple(
        Share(
            tuple(reads),
            tuple(writes),
            follows=index != head and index not in products,
            beside=max(0, beyond.get(index, 0)),
        )
        for index, (reads, writes) in enumerate(rows)
    )


def components(nodes: Sequence[FusionNode]) -> list[list[int]]:
    """Components of a group: indexes of the nodes that values between them join, sorted."""
    component_of: dict[Hashable, list[int]] = {}
    rows: list[list[int]] = []
    for index, node in enumerate(nodes):
        joined = [index]
        for row in {id(row): row for x in node.inputs if (row := component_of.get(x))}.values():
            rows.remove(row)
            joined = [*row, *joined]
        joined.sort()
        rows.append(joined)
        component_of |= {x: joined for member in joined for x in nodes[member].outputs}
    return sorted(rows)


def _alone(node: FusionNode, values: Mapping[Hashable, FusionTensor], *, follows: bool) -> Share:
    """Share of an op that has nothing in common with the others but the launch."""
    reads, writes = (
        tuple(ITEMSIZE[values[name].dtype] for name in names)
        for names in (node.inputs, node.outputs)
    )
    return Share(reads, writes, follows)


def _head(nodes: Sequence[FusionNode]) -> int:
    """Index of the op that a group without products is about; the largest kernel, were it alone."""
    return next((index for index, node in enumerate(nodes) if op_kind(node.kind).role), 0)


def shares_of_graph(graph: Graph, *, joint: bool = True) -> dict[str, Share]:
    """Share of every op of a graph that is fused if nothing is boxed in between.

    Ops that are not named are alone.

    Parameters
    ----------
    graph : Graph
        Training graph of a model.
    joint : bool
        True if gradients of inputs and of weights run in one slot, so that they may be fused.
    """
    nodes, values = _nodes_of(graph)
    fusion_graph = fused_groups(nodes, values, joint=joint)
    shares = {
        node.name: _alone(node, values, follows=True)
        for node in nodes
        if node.kind in AT_ENDS and node.firings == 1
    }
    for group in dict.fromkeys(fusion_graph.groups.values()):
        members = [fusion_graph.nodes[index] for index in group]
        group_shares = shares_of(members, values, written(fusion_graph, group))
        shares |= {node.name: share for node, share in zip(members, group_shares, strict=True)}
    return shares


def written(fusion_graph: FusionGraph, group: Sequence[int]) -> list[Hashable]:
    """Results of a group that a node outside it reads, or none at all.

    Parameters
    ----------
    fusion_graph : FusionGraph
        All nodes and who reads their results.
    group : sequence of int
        Indexes of the group's nodes in `fusion_graph.nodes`.
    """
    inside = set(group)
    return [
        name
        for index in group
        for name in fusion_graph.nodes[index].outputs
        if not (readers := fusion_graph.readers.get(name, ())) or set(readers) - inside
    ]


def _nodes_of(graph: Graph) -> tuple[list[FusionNode], dict[Hashable, FusionTensor]]:
    """Ops of a graph as nodes; those without an actor of their own cannot be fused."""
    nodes = []
    for op in graph.ops:
        per_microbatch = op.kind == "accumulate" or any(
            graph.tensor(name).rate is Rate.MICROBATCH for name in op.outputs
        )
        nodes.append(
            FusionNode(
                name=op.name,
                kind=op.kind,
                labels=op.labels,
                inputs=op.inputs,
                outputs=op.outputs,
                section=(op.phase, op.block),
                firings=2 if per_microbatch else 1,
                free=op_kind(op.kind).fusible,
            )
        )
    values: dict[Hashable, FusionTensor] = {
        tensor.name: FusionTensor(shape=tensor.shape, dtype=tensor.dtype)
        for tensor in graph.tensors
    }
    return nodes, values
