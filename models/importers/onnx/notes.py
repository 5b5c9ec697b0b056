"""Notes for the user of an import: weights left out, and attention that sees the answers."""

from collections.abc import Container, Iterator
from math import prod

from msgspec.structs import replace

from millrace.models.graph import Graph, Op
from millrace.models.importers.onnx.onnx_file import OnnxSource
from millrace.models.labels import SEQUENCE, parse

_MASKED = 0.15  # share of positions predicted; Devlin et al., arXiv 1810.04805 (2018), 3.1


def for_masked_text(graph: Graph, mask_id: int | None) -> Graph:
    """Return the graph whose tokens see those behind them as one that fills in masked text.

    Next tokens would show it each answer. Without the id of a hidden token no data feeds it.
    """
    if not any(map(_sees_both_ways, graph.ops)):
        return graph
    return replace(graph, ops=tuple(_masked(graph, op, mask_id) for op in graph.ops))


def _masked(graph: Graph, op: Op, mask_id: int | None) -> Op:
    source = op.attributes.get("source") if op.kind == "input" else None
    if source == "targets":
        return replace(op, attributes={**op.attributes, "source": "masked_targets"})
    if source != "tokens" or mask_id is None:
        return op
    count = max(1, round(_MASKED * graph.tensor(op.outputs[0]).shape[-1]))
    more = {"source": "masked_tokens", "masked": count, "mask_id": mask_id}
    return replace(op, attributes={**op.attributes, **more})


def _sees_both_ways(op: Op) -> bool:
    """True if tokens attend to all tokens; what is added to scores may hide some."""
    if op.kind != "attention" or op.attributes.get("causal", True):
        return False
    return parse(op.labels).inputs[0][1] == (SEQUENCE,)


def notes_on(source: OnnxSource, used: Container[str], graph: Graph) -> Iterator[str]:
    """Yield notes for the user; `used` are weights that are variables, or need not be."""
    gone = [
        initializer
        for initializer in source.initializers.values()
        if initializer.trained and initializer.name not in used
    ]
    if gone:
        shown = ", ".join(f"`{initializer.name}`" for initializer in gone[:4])
        more = f" and {len(gone) - 4} more" if len(gone) > 4 else ""
        values = sum(prod(initializer.shape) for initializer in gone)
        yield f"the loss does not depend on {shown}{more} ({values:,} values): left out"
    sources = {op.attributes["source"] for op in graph.ops if op.kind == "input"}
    if "masked_targets" in sources and "masked_tokens" not in sources:
        yield (
            "attention looks both ways, so next tokens are no task for it: say mask_id= (the id of "
            "a hidden token) to train on masked text"
        )
