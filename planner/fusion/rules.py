"""Rules: which ops are fused, by the roles and joins of the op table.

* *Products.* What follows on a product and is done before the tile leaves the chip: a bias along
  its last dims, GELU (the value before it may be kept for the backward pass) or its slope, a
  residual, the sum of several products, the sum over microbatches that a weight's gradient is added
  to.
* *Siblings.* Products of one tensor with several that are alike (queries, keys and values; a gate
  and what it gates; the gradients of their weights), each with what follows on it: a stack of
  products where their operands lie at equal distances.
* *Sums.* A sum over rows that goes straight into the sum over microbatches.
* *Norms.* The residual sum before a norm; after a norm's gradient the sum with the residual's, and,
  where input and weight gradients run together, the gradients of its weights too, which read the
  same two tensors.
* *Norms of channels.* After a batch norm the sum with the shortcut's tensor, and the relu of what
  is there then; what stands before relu may be kept.

What the rules put together a GPU computes in one kernel, or one product and its epilogue; elsewhere
the parts run one after the other.
"""

from collections.abc import Hashable, Mapping, Sequence

from millrace.models.labels import parse
from millrace.models.ops import FUNCTIONS, OPS, op_kind
from millrace.planner.fusion.fusion_graph import FusionGraph, FusionNode, FusionTensor

PRODUCT, SUM, NORM, NORM_GRAD = "product", "sum", "norm", "norm_grad"
CHANNEL_NORM = "channel_norm"


def fused_groups(
    nodes: Sequence[FusionNode], values: Mapping[Hashable, FusionTensor], *, joint: bool = True
) -> FusionGraph:
    """Fusion graph of the nodes, with its groups made.

    Parameters
    ----------
    nodes : sequence of FusionNode
        In an order in which every value is made before it is read. Those that are not `free`, or
        whose kind the op table lacks (boxing), stay alone.
    values : mapping of FusionTensor
        Tensors that they read and make, by the names that nodes have for them.
    joint : bool
        Gradients of inputs and of weights run together (no schedule defers the latter), so that ops
        of the two can be one.

    Raises
    ------
    ModelError
        Labels of a node that a rule looks at are malformed.

    Examples
    --------
    >>> shape = {"x": (8, 4), "w": (4, 6), "b": (6,), "m": (8, 6), "y": (8, 6)}
    >>> values = {name: FusionTensor(shape=s, dtype="bfloat16") for name, s in shape.items()}
    >>> nodes = [
    ...     FusionNode(name="fc.matmul", kind="matmul", labels="t k, k n -> t n",
    ...                inputs=("x", "w"), outputs=("m",), section="F"),
    ...     FusionNode(name="fc", kind="add", labels="t n, n -> t n",
    ...                inputs=("m", "b"), outputs=("y",), section="F"),
    ... ]
    >>> fused_groups(nodes, values).groups
    {0: (0, 1), 1: (0, 1)}
    """
    fusion_graph = FusionGraph(nodes, values)
    rules = (_sums_of_products, _products, _norm_gradients, _norms, _channel_norms, _sums)
    for rule in rules:
        for index, node in enumerate(fusion_graph.nodes):
            if node.kind in OPS and fusion_graph.alone(index):
                rule(fusion_graph, index, joint)
    _siblings(fusion_graph)
    return fusion_graph


def _role(fusion_graph: FusionGraph, index: int) -> str:
    kind = fusion_graph.nodes[index].kind
    return op_kind(kind).role if kind in OPS else ""


def _follower(
    fusion_graph: FusionGraph, value: Hashable, head: FusionNode, role: str
) -> int | None:
    """Node that alone reads a value, where it may join `head` and runs as often, there too."""
    index = fusion_graph.only_reader(value)
    if index is None:
        return None
    node = fusion_graph.nodes[index]
    fits = (node.section, node.firings) == (head.section, head.firings)
    return index if fits and node.kind in OPS and role in op_kind(node.kind).joins else None


def _same_dims(node: FusionNode) -> bool:
    """True if all operands of an op have the same dims in the same order."""
    return len(set(parse(node.labels).operands)) == 1


def _products(fusion_graph: FusionGraph, index: int, joint: bool) -> None:
    """Join a product with what is done with it before it is written."""
    if _role(fusion_graph, index) != PRODUCT:
        return
    head = fusion_graph.nodes[index]
    (tensor,) = head.outputs
    members = [index]
    after = _follower(fusion_graph, tensor, head, PRODUCT)
    if after is not None and _is_bias(fusion_graph, after, tensor):
        members.append(after)
        (tensor,) = fusion_graph.nodes[after].outputs
        after = _follower(fusion_graph, tensor, head, PRODUCT)
    gate = _function(fusion_graph, tensor, head, PRODUCT)
    last = gate if gate is not None else after
    if last is not None and (
        gate is not None or _ends(fusion_graph, last, tensor, len(members) == 1)
    ):
        members.append(last)
    fusion_graph.join(members)


def _siblings(fusion_graph: FusionGraph) -> None:
    """Join products that share an operand, alike in all else, with what follows on each."""
    rows: dict[object, list[tuple[int, ...]]] = {}
    for index, node in enumerate(fusion_graph.nodes):
        group = fusion_graph.groups.get(index, (index,))
        if not node.free or _role(fusion_graph, index) != PRODUCT or group[0] != index:
            continue
        if sum(_role(fusion_graph, member) == PRODUCT for member in group) == 1:
            for position, name in enumerate(node.inputs):
                rows.setdefault((position, name, _likeness(fusion_graph, group)), []).append(group)
    for row in rows.values():
        free = [group for group in row if fusion_graph.groups.get(group[0], group) == group]
        if len(free) > 1:
            fusion_graph.merge(free)


def _likeness(fusion_graph: FusionGraph, group: Sequence[int]) -> object:
    """Properties that groups have in common which are one stack of products."""
    return tuple(
        (
            (node := fusion_graph.nodes[index]).kind,
            node.labels,
            node.section,
            node.firings,
            tuple(
                (fusion_graph.values[name].shape, fusion_graph.values[name].dtype)
                for name in (*node.inputs, *node.outputs)
            ),
        )
        for index in group
    )


def _is_bias(fusion_graph: FusionGraph, index: int, tensor: Hashable) -> bool:
    """True if a node adds to `tensor` what lies along its last dims, and none of those before."""
    node = fusion_graph.nodes[index]
    if (
        node.kind != "add"
        or len(node.inputs) != 2
        or not fusion_graph.alike(tensor, node.outputs[0])
    ):
        return False
    expression = parse(node.labels)
    (dims,), bias = expression.outputs, expression.inputs[1 - node.inputs.index(tensor)]
    return 0 < len(bias) < len(dims) and dims[-len(bias) :] == bias


def _ends(fusion_graph: FusionGraph, index: int, tensor: Hashable, unbiased: bool) -> bool:
    """True if a product can end in this node: a sum over microbatches, a residual, a slope."""
    node = fusion_graph.nodes[index]
    if node.kind == "accumulate":
        return unbiased
    if not fusion_graph.alike(tensor, node.outputs[0]):
        return False
    if node.kind == "add":
        return len(set(node.inputs)) == 2 and all(
            fusion_graph.alike(name, tensor) for name in node.inputs
        )
    return unbiased and node.inputs[1:] == (tensor,)


def _function(
    fusion_graph: FusionGraph, tensor: Hashable, head: FusionNode, role: str
) -> int | None:
    """Node of a function of `tensor`, which the backward pass may read too: it is kept then."""
    for index in fusion_graph.readers.get(tensor, ()):
        node = fusion_graph.nodes[index]
        runs = (node.section, node.firings) == (head.section, head.firings)
        if runs and fusion_graph.alone(index) and node.kind in FUNCTIONS:
            joins, (result,) = op_kind(node.kind).joins, node.outputs
            if role in joins and fusion_graph.alike(tensor, result):
                return index
    return None


def _sums_of_products(fusion_graph: FusionGraph, index: int, joint: bool) -> None:
    """Join the sum of two or more products, wanted for nothing else, and one other term at most."""
    node = fusion_graph.nodes[index]
    if node.kind != "add" or not _same_dims(node) or len(set(node.inputs)) < len(node.inputs):
        return
    members = []
    for name in node.inputs:
        maker = fusion_graph.makers.get(name)
        if not fusion_graph.alike(name, node.outputs[0]):
            return
        if (
            maker is not None
            and fusion_graph.alone(maker)
            and _role(fusion_graph, maker) == PRODUCT
            and _follower(fusion_graph, name, fusion_graph.nodes[maker], PRODUCT) == index
        ):
            members.append(maker)
    if len(members) >= 2 and len(node.inputs) - len(members) <= 1:
        fusion_graph.join([*members, index])


def _sums(fusion_graph: FusionGraph, index: int, joint: bool) -> None:
    """Join a sum over rows with the sums over microbatches that all its results are added to."""
    if _role(fusion_graph, index) == SUM and (after := _accumulated(fusion_graph, index)):
        fusion_graph.join([index, *after])


def _accumulated(fusion_graph: FusionGraph, index: int) -> list[int]:
    """Sums over microbatches that all results of a node go into; none if one does not."""
    node = fusion_graph.nodes[index]
    sums = []
    for name in node.outputs:
        after = _follower(fusion_graph, name, node, SUM)
        if after is None or fusion_graph.nodes[after].kind != "accumulate":
            return []
        sums.append(after)
    return sums


def _norms(fusion_graph: FusionGraph, index: int, joint: bool) -> None:
    """Join a norm and the sum of two tensors that it normalises."""
    if _role(fusion_graph, index) != NORM:
        return
    node = fusion_graph.nodes[index]
    before = fusion_graph.makers.get(node.inputs[0])
    if before is None or not fusion_graph.alone(before):
        return
    added = fusion_graph.nodes[before]
    fits = (added.section, added.firings) == (node.section, node.firings)
    alike = all(fusion_graph.alike(name, node.inputs[0]) for name in added.inputs)
    if added.kind == "add" and fits and alike and len(added.inputs) == 2 and _same_dims(added):
        fusion_graph.join([before, index])


def _channel_norms(fusion_graph: FusionGraph, index: int, joint: bool) -> None:
    """Join a batch norm, the sum with a tensor like its result, and a function of what is then."""
    if _role(fusion_graph, index) != CHANNEL_NORM:
        return
    head = fusion_graph.nodes[index]
    (tensor,) = head.outputs
    members = [index]
    after = _follower(fusion_graph, tensor, head, CHANNEL_NORM)
    if after is not None and _adds_one(fusion_graph, after, tensor):
        members.append(after)
        (tensor,) = fusion_graph.nodes[after].outputs
    last = _function(fusion_graph, tensor, head, CHANNEL_NORM)
    fusion_graph.join(members if last is None else [*members, last])


def _adds_one(fusion_graph: FusionGraph, index: int, tensor: Hashable) -> bool:
    """True if a node adds one other tensor to `tensor`, and all three are alike."""
    node = fusion_graph.nodes[index]
    return (
        node.kind == "add"
        and len(node.inputs) == len(set(node.inputs)) == 2
        and _same_dims(node)
        and all(fusion_graph.alike(name, tensor) for name in (*node.inputs, *node.outputs))
    )


def _norm_gradients(fusion_graph: FusionGraph, index: int, joint: bool) -> None:
    """Join a norm's gradient with the residual's added, and its weights' gradients beside it."""
    if _role(fusion_graph, index) != NORM_GRAD:
        return
    node = fusion_graph.nodes[index]
    (tensor,) = node.outputs
    members = [index]
    after = _follower(fusion_graph, tensor, node, NORM_GRAD)
    if after is not None and _adds_one(fusion_graph, after, tensor):
        members.append(after)
    weights = node.kind.replace("_input", "_weight")
    for beside in fusion_graph.readers.get(node.inputs[0], ()) if joint else ():
        other = fusion_graph.nodes[beside]
        if (
            other.kind == weights
            and fusion_graph.alone(beside)
            and other.inputs[:2] == node.inputs[:2]
            and other.firings == node.firings
        ):
            sums = _accumulated(fusion_graph, beside)
            if fusion_graph.join([*members, beside, *sums]):
                return
            break
    fusion_graph.join(members)
