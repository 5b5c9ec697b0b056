"""Windows: of the scores of an attention, those that its window lets through.

Model FLOPs count attention in full, causal or not: every query meets every key. Within a window of
w it meets w keys (both ways, where it is not causal: 2 w - 1), at the ends of a sequence too, where
fewer are; so a window as long as the sequence changes nothing.
"""

from fractions import Fraction

from millrace.models.graph import Graph, Op
from millrace.models.labels import Shape
from millrace.models.ops.kind import OpKind

SOFTMAX = "masked_softmax"  # of an attention that is written as separate ops


def seen_shares(graph: Graph, kinds: dict[str, OpKind]) -> dict[str, Fraction]:
    """Return the share of the keys that a query meets, by op that multiplies within a window.

    Of an attention written as separate ops these are the products that make or read its scores,
    its probabilities, or a gradient of theirs.
    """
    shapes = {tensor.name: tensor.shape for tensor in graph.tensors}
    scores = _scores(graph, shapes)
    found: dict[str, Fraction] = {}
    for op in graph.ops:
        if not kinds[op.kind].products:
            continue
        if op.attributes.get("window"):
            found[op.name] = _share(op, shapes[op.inputs[1]][1])
        for name in (*op.inputs, *op.outputs) if scores else ():
            if name in scores:
                found[op.name] = scores[name]
    return found


def _share(op: Op, keys: int) -> Fraction:
    window = int(op.attributes["window"])
    met = window if op.attributes.get("causal") else 2 * window - 1
    return Fraction(min(met, keys), keys)


def _scores(graph: Graph, shapes: dict[str, Shape]) -> dict[str, Fraction]:
    """Scores and probabilities of attention written as separate ops, and their gradients."""
    found: dict[str, Fraction] = {}
    for op in reversed(graph.ops):  # back from the softmax to the product
        if op.kind == SOFTMAX and op.attributes.get("window"):
            found[op.inputs[0]] = found[op.outputs[0]] = _share(op, shapes[op.inputs[0]][-1])
        elif op.outputs and op.outputs[0] in found and op.kind in ("add", "scale", "cast"):
            found[op.inputs[0]] = found[op.outputs[0]]
    for op in graph.ops if found else ():
        if op.kind == f"{SOFTMAX}_grad" and op.inputs[0] in found:
            found[op.inputs[1]] = found[op.outputs[0]] = found[op.inputs[0]]
        elif op.kind in ("scale", "cast") and op.inputs[0] in found:
            found[op.outputs[0]] = found[op.inputs[0]]
    return found
