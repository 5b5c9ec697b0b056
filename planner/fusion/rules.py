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
    """Net of the nodes, with its groups made.

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
    net = FusionGraph(nodes, values)
    rules = (_sums_of_products, _products, _norm_gradients, _norms, _channel_norms, _sums)
    for rule in rules:
        for index, node in enumerate(net.nodes):
            if node.kind in OPS and net.alone(index):
                rule(net, index, joint)
    _siblings(net)
    return net


def _role(net: FusionGraph, index: int) -> str:
    kind = net.nodes[index].kind
    return op_kind(kind).role if kind in OPS else ""


def _follower(net: FusionGraph, value: Hashable, head: FusionNode, role: str) -> int | None:
    """Node that alone reads a value, where it may join `head` and runs as often, there too."""
    index = net.only_reader(value)
    if index is None:
        return None
    node = net.nodes[index]
    fits = (node.section, node.firings) == (head.section, head.firings)
    return index if fits and node.kind in OPS and role in op_kind(node.kind).joins else None


def _same_dims(node: FusionNode) -> bool:
    """True if all operands of an op have the same dims in the same order."""
    return len(set(parse(node.labels).operands)) == 1


def _products(net: FusionGraph, index: int, joint: bool) -> None:
    """Join a product with what is done with it before it is written."""
    if _role(net, index) != PRODUCT:
        return
    head = net.nodes[index]
    (tensor,) = head.outputs
    members = [index]
    after = _follower(net, tensor, head, PRODUCT)
    if after is not None and _is_bias(net, after, tensor):
        members.append(after)
        (tensor,) = net.nodes[after].outputs
        after = _follower(net, tensor, head, PRODUCT)
    gate = _function(net, tensor, head, PRODUCT)
    last = gate if gate is not None else after
    if last is not None and (gate is not None or _ends(net, last, tensor, len(members) == 1)):
        members.append(last)
    net.join(members)


def _siblings(net: FusionGraph) -> None:
    """Join products that share an operand, alike in all else, with what follows on each."""
    rows: dict[object, list[tuple[int, ...]]] = {}
    for index, node in enumerate(net.nodes):
        group = net.groups.get(index, (index,))
        if not node.free or _role(net, index) != PRODUCT or group[0] != index:
            continue
        if sum(_role(net, member) == PRODUCT for member in group) == 1:
            for position, name in enumerate(node.inputs):
                rows.setdefault((position, name, _likeness(net, group)), []).append(group)
    for row in rows.values():
        free = [group for group in row if net.groups.get(group[0], group) == group]
        if len(free) > 1:
            net.merge(free)


def _likeness(net: FusionGraph, group: Sequence[int]) -> object:
    """Properties that groups have in common which are one stack of products."""
    return tuple(
        (
            (node := net.nodes[index]).kind,
            node.labels,
            node.section,
            node.firings,
            tuple(
                (net.values[name].shape, net.values[name].dtype)
                for name in (*node.inputs, *node.outputs)
            ),
        )
        for index in group
    )


def _is_bias(net: FusionGraph, index: int, tensor: Hashable) -> bool:
    """True if a node adds to `tensor` what lies along its last dims, and none of those before."""
    node = net.nodes[index]
    if node.kind != "add" or len(node.inputs) != 2 or not net.alike(tensor, node.outputs[0]):
        return False
    expression = parse(node.labels)
    (dims,), bias = expression.outputs, expression.inputs[1 - node.inputs.index(tensor)]
    return 0 < len(bias) < len(dims) and dims[-len(bias) :] == bias


def _ends(net: FusionGraph, index: int, tensor: Hashable, unbiased: bool) -> bool:
    """True if a product can end in this node: a sum over microbatches, a residual, a slope."""
    node = net.nodes[index]
    if node.kind == "accumulate":
        return unbiased
    if not net.alike(tensor, node.outputs[0]):
        return False
    if node.kind == "add":
        return len(set(node.inputs)) == 2 and all(net.alike(name, tensor) for name in node.inputs)
    return unbiased and node.inputs[1:] == (tensor,)


def _function(net: FusionGraph, tensor: Hashable, head: FusionNode, role: str) -> int | None:
    """Node of a function of `tensor`, which the backward pass may read too: it is kept then."""
    for index in net.readers.get(tensor, ()):
        node = net.nodes[index]
        runs = (node.section, node.firings) == (head.section, head.firings)
        if runs and net.alone(index) and node.kind in FUNCTIONS:
            joins, (result,) = op_kind(node.kind).joins, node.outputs
            if role in joins and net.alike(tensor, result):
                return index
    return None


def _sums_of_products(net: FusionGraph, index: int, joint: bool) -> None:
    """Join the sum of two or more products, wanted for nothing else, and one other term at most."""
    node = net.nodes[index]
    if node.kind != "add" or not _same_dims(node) or len(set(node.inputs)) < len(node.inputs):
        return
    members = []
    for name in node.inputs:
        maker = net.makers.get(name)
        if not net.alike(name, node.outputs[0]):
            return
        if (
            maker is not None
            and net.alone(maker)
            and _role(net, maker) == PRODUCT
            and _follower(net, name, net.nodes[maker], PRODUCT) == index
        ):
            members.append(maker)
    if len(members) >= 2 and len(node.inputs) - len(members) <= 1:
        net.join([*members, index])


def _sums(net: FusionGraph, index: int, joint: bool) -> None:
    """Join a sum over rows with the sums over microbatches that all its results are added to."""
    if _role(net, index) == SUM and (after := _accumulated(net, index)):
        net.join([index, *after])


def _accumulated(net: FusionGraph, index: int) -> list[int]:
    """Sums over microbatches that all results of a node go into; none if one does not."""
    node = net.nodes[index]
    sums = []
    for name in node.outputs:
        after = _follower(net, name, node, SUM)
        if after is None or net.nodes[after].kind != "accumulate":
            return []
        sums.append(after)
    return sums


def _norms(net: FusionGraph, index: int, joint: bool) -> None:
    """Join a norm and the sum of two tensors that it normalises."""
    if _role(net, index) != NORM:
        return
    node = net.nodes[index]
    before = net.makers.get(node.inputs[0])
    if before is None or not net.alone(before):
        return
    added = net.nodes[before]
    fits = (added.section, added.firings) == (node.section, node.firings)
    alike = all(net.alike(name, node.inputs[0]) for name in added.inputs)
    if added.kind == "add" and fits and alike and len(added.inputs) == 2 and _same_dims(added):
        net.join([before, index])


def _channel_norms(net: FusionGraph, index: int, joint: bool) -> None:
    """Join a batch norm, the sum with a tensor like its result, and a function of what is then."""
    if _role(net, index) != CHANNEL_NORM:
        return
    head = net.nodes[index]
    (tensor,) = head.outputs
    members = [index]
    after = _follower(net, tensor, head, CHANNEL_NORM)
    if after is not None and _adds_one(net, after, tensor):
        members.append(after)
        (tensor,) = net.nodes[after].outputs
    last = _function(net, tensor, head, CHANNEL_NORM)
    net.join(members if last is None else [*members, last])


def _adds_one(net: FusionGraph, index: int, tensor: Hashable) -> bool:
    """True if a node adds one other tensor to `tensor`, and all three are alike."""
    node = net.nodes[index]
    return (
        node.kind == "add"
        and len(node.inputs) == len(set(node.inputs)) == 2
        and _same_dims(node)
        and all(net.alike(name, tensor) for name in (*node.inputs, *node.outputs))
    )


def _norm_gradients(net: FusionGraph, index: int, joint: bool) -> None:
    """Join a norm's gradient with the residual's added, and its weights' gradients beside it."""
    if _role(net, index) != NORM_GRAD:
        return
    node = net.nodes[index]
    (tensor,) = node.outputs
    members = [index]
    after = _follower(net, tensor, node, NORM_GRAD)
    if after is not None and _adds_one(net, after, tensor):
        members.append(after)
    weights = node.kind.replace("_input", "_weight")
    for beside in net.readers.get(node.inputs[0], ()) if joint else ():
        other = net.nodes[beside]
        if (
            other.kind == weights
            and net.alone(beside)
            and other.inputs[:2] == node.inputs[:2]
            and other.firings == node.firings
        ):
            sums = _accumulated(net, beside)
            if net.join([*members, beside, *sums]):
                return
            break
    net.join(members)
