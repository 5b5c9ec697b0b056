"""Notes for the user of an import: weights left out, and attention that sees the answers."""

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from millrace.models.graph import Graph, Op
from millrace.models.labels import SEQUENCE, parse

_MASKED = 0.15  # share of positions predicted; Devlin et al., arXiv 1810.04805 (2018), 3.1


def masked_text(tokens: int, mask_id: int) -> dict[str, int]:
    """Attributes of an input whose tokens are hidden here and there, to be filled in.

    Parameters
    ----------
    tokens
        Tokens of a sample.
    mask_id
        Id of a hidden token.
    """
    return {"masked": max(1, round(_MASKED * tokens)), "mask_id": mask_id}


def for_masked_text(graph: Graph, mask_id: int | None) -> Graph:
    """Return the graph whose tokens see those behind them as one that fills in masked text.

    Next tokens would show it each answer. Without the id of a hidden token no data feeds it.

    Parameters
    ----------
    graph
        As it was imported.
    mask_id
        Id of a hidden token, where it was said.
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
    more = masked_text(graph.tensor(op.outputs[0]).shape[-1], mask_id)
    return replace(op, attributes={**op.attributes, "source": "masked_tokens", **more})


def _sees_both_ways(op: Op) -> bool:
    """True if tokens attend to all tokens; what is added to scores may hide some."""
    if op.kind != "attention" or op.attributes.get("causal", True):
        return False
    return parse(op.labels).inputs[0][1] == (SEQUENCE,)


def left_out(values: Mapping[str, int]) -> Iterator[str]:
    """Note on parameters, each with its number of values, that the loss does not depend on."""
    if values:
        shown = ", ".join(f"`{name}`" for name in list(values)[:4])
        more = f" and {len(values) - 4} more" if len(values) > 4 else ""
        yield (
            f"the loss does not depend on {shown}{more} ({sum(values.values()):,} values): left out"
        )


def seen_answers(graph: Graph, where: str = "") -> Iterator[str]:
    """Note where training on the next tokens would show each answer.

    Parameters
    ----------
    graph
        Training graph.
    where
        Which attention it is, for the sentence; it begins with a blank.
    """
    sources = {op.attributes["source"] for op in graph.ops if op.kind == "input"}
    if "masked_targets" in sources and "masked_tokens" not in sources:
        yield (
            f"attention looks both ways{where}, so next tokens are no task for it: say mask_id= "
            f"(the id of a hidden token) to train on masked text"
        )
