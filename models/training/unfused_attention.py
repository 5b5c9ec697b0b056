"""Attention as separate ops, whose probabilities are kept: what flash attention does without.

Each attention becomes a product (scores), `masked_softmax` and a product (context), with a sum
between where something is added to the scores. The same mathematics, so the same gradients.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from millrace.models.builder import GraphBuilder
from millrace.models.errors import ModelError
from millrace.models.graph import Graph, Op, Phase
from millrace.models.labels import Operand, parse, write
from millrace.models.ops import Attributes

FLASH, UNFUSED = ATTENTIONS = ("flash", "unfused")
KINDS = ("attention", "biased_attention")
SINK = "attention_sink"


def unfused(graph: Graph) -> Graph:
    """Return the forward graph with every attention as separate ops.

    Op `h.0.attn.core` becomes `h.0.attn.core.scores` (b h t s, in the dtype of the queries),
    `h.0.attn.core.probabilities` and `h.0.attn.core`, the product with the values. Labels split as
    those of attention do: heads, batch and queries; keys and features stay whole.

    Raises
    ------
    ModelError
        The graph has no attention.

    Examples
    --------
    >>> from millrace.models.zoo.catalogue import build, model_spec
    >>> graph = unfused(build(model_spec("gpt2-small"), 1))
    >>> next(op.labels for op in graph.ops if op.name == "h.0.attn.core.scores")
    'b t h d!, b s! h d! -> b h t s!'
    """
    if not any(op.kind in KINDS for op in graph.ops):
        raise ModelError(
            f"model `{graph.name}` has no attention that could be {UNFUSED}; leave the option out"
        )
    tensors = graph.tensors_by_name
    builder = GraphBuilder.extending(replace(graph, ops=(), tensors=()))
    waiting: dict[str, Op] = {}  # attentions whose sink is still to come, by their outputs
    with_sink = {op.inputs[0] for op in graph.ops if op.kind == SINK}
    for op in graph.ops:
        if op.kind in KINDS and op.outputs[0] in with_sink:
            waiting[op.outputs[0]] = op
        elif op.kind in KINDS:
            _write_apart(builder, op, op.name, ())
        elif op.kind == SINK:
            _write_apart(builder, waiting[op.inputs[0]], op.name, op.inputs[2:])
        else:
            builder.adopt(op, [tensors[name] for name in op.outputs])
    return builder.build()


def _write_apart(builder: GraphBuilder, op: Op, name: str, sinks: tuple[str, ...]) -> None:
    expression = parse(op.labels)
    query, key, value, *bias = expression.inputs
    batch, queries, *heads, _ = query
    scores: Operand = (batch, *heads, queries, key[1])
    whole_labels = expression.whole_labels

    def add(
        kind: str, name: str, inputs: tuple[str, ...], labels: str, attributes: Attributes
    ) -> str:
        return builder.emit(
            kind, name, inputs, labels, attributes=attributes, block=op.block, phase=op.phase
        )[0]

    labels = write((query, key), (scores,), whole_labels)
    scores_tensor = add("matmul", f"{op.name}.scores", op.inputs[:2], labels, {})
    attributes = dict(op.attributes)
    labels = write((scores,), (scores,), whole_labels)
    if cap := attributes.pop("cap", 0):
        factor: Attributes = {"factor": float(attributes["scale"]) / float(cap)}
        part = add("scale", f"{op.name}.scores.part", (scores_tensor,), labels, factor)
        scores_tensor = add("tanh", f"{op.name}.scores.capped", (part,), labels, {})
        attributes["scale"] = cap
    if bias:
        if attributes["scale"] != 1:  # what is added is not scaled
            factor = {"factor": attributes["scale"]}
            scores_tensor = add(
                "scale", f"{op.name}.scores.scaled", (scores_tensor,), labels, factor
            )
            attributes["scale"] = 1.0
        labels = write((scores, *bias), (scores,), whole_labels)
        scores_tensor = add(
            "add", f"{op.name}.scores.biased", (scores_tensor, op.inputs[3]), labels, {}
        )
    labels = write((scores, *(tuple(heads) for _ in sinks)), (scores,), whole_labels)
    read = (scores_tensor, *sinks)
    probabilities = add("masked_softmax", f"{op.name}.probabilities", read, labels, attributes)
    labels = write((scores, value), (expression.outputs[0],), whole_labels)
    add("matmul", name, (probabilities, op.inputs[2]), labels, {})


def scores_ops(graph: Graph) -> frozenset[str]:
    """Names of the ops between queries and probabilities: products, sums and `masked_softmax`."""
    makers: Mapping[str, Op] = {
        name: op for op in graph.ops if op.phase is Phase.FORWARD for name in op.outputs
    }
    names: set[str] = set()
    for op in makers.values():
        maker: Op | None = op if op.kind == "masked_softmax" else None
        while maker is not None:
            names.add(maker.name)
            passes_on = maker.kind in ("masked_softmax", "add", "scale", "tanh")
            maker = makers.get(maker.inputs[0]) if passes_on else None
    return frozenset(names)
