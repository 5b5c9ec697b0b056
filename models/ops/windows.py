"""Windows: the share of an attention's scores that its window lets through.

Model FLOPs count attention in full, causal or not: every query meets every key. Within a window of
w it meets w keys (both ways, where it is not causal: 2 w - 1), at the ends of a sequence too, where
fewer are; so a window as long as the sequence changes nothing.
"""

from fractions import Fraction

from millrace.models.graph import Graph, Op
from millrace.models.labels import Shape
from millrace.models.ops.kind import OpKind

SOFTMAX = "masked_softmax"  # attention as separate ops has one


def window_fractions(graph: Graph, kinds: dict[str, OpKind]) -> dict[str, Fraction]:
    """Share of the keys that a query meets, by name of each op that multiplies within a window.

    Of an attention written as separate ops these are the products that make or read its scores,
    its probabilities, or a gradient of theirs.

    Parameters
    ----------
    graph : Graph
        Forward or training graph; without windows the result is empty.
    kinds : dict of str to OpKind
        The op table, `millrace.models.ops.OPS`: tells which kinds multiply.

    Returns
    -------
    dict of str to Fraction
        Above 0, at most 1: min(w, keys) / keys for a causal window of w, else with 2 w - 1.
    """
    shapes = {tensor.name: tensor.shape for tensor in graph.tensors}
    scores = _scores(graph, shapes)
    shares: dict[str, Fraction] = {}
    for op in graph.ops:
        if not kinds[op.kind].products:
            continue
        if op.attributes.get("window"):
            shares[op.name] = _share(op, shapes[op.inputs[1]][1])
        for name in (*op.inputs, *op.outputs) if scores else ():
            if name in scores:
                shares[op.name] = scores[name]
    return shares


def _share(op: Op, keys: int) -> Fraction:
    window = int(op.attributes["window"])
    met = window if op.attributes.get("causal") else 2 * window - 1
    return Fraction(min(met, keys), keys)


def _scores(graph: Graph, shapes: dict[str, Shape]) -> dict[str, Fraction]:
    """Share of the keys that a query meets, per score tensor of unfused attention.

    These are the scores, the probabilities, and their gradients.
    """
    shares: dict[str, Fraction] = {}
    for op in reversed(graph.ops):  # the product lies before the softmax
        if op.kind == SOFTMAX and op.attributes.get("window"):
            shares[op.inputs[0]] = shares[op.outputs[0]] = _share(op, shapes[op.inputs[0]][-1])
        elif op.outputs and op.outputs[0] in shares and op.kind in ("add", "scale", "cast", "tanh"):
            shares[op.inputs[0]] = shares[op.outputs[0]]
    for op in graph.ops if shares else ():
        if op.kind == f"{SOFTMAX}_grad" and op.inputs[0] in shares:
            shares[op.inputs[1]] = shares[op.outputs[0]] = shares[op.inputs[0]]
        elif op.kind in ("scale", "cast", "tanh_grad") and op.inputs[0] in shares:
            shares[op.outputs[0]] = shares[op.inputs[0]]
    return shares
