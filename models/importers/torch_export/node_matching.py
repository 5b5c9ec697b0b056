"""Patterns: several calls of a program that are one op here.

Each matcher looks backwards from a call and returns the op's name and what it reads, or None. The
calls in between are then read by nothing and fall away.
"""

from collections.abc import Callable
from typing import Any

from millrace.models.importers.patterns import ACTIVATIONS, WEIGHTED_RMS_NORM, matched

Found = tuple[str, dict[str, Any]]

# Calls that change neither values nor shape.
_KINDS = (
    "add",
    "mul",
    "div",
    "neg",
    "pow",
    "square",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "mean",
    "tanh",
)
SAME = {"to", "_to_copy", "alias", "contiguous", "clone", "type_as", "lift_fresh_copy"}


def kind(node: Any) -> str:
    """Name of an aten op without its overload, or of a function."""
    schema = getattr(getattr(node, "target", None), "_schema", None)
    if schema is not None:
        return str(schema.name).rpartition("::")[2]
    return str(getattr(getattr(node, "target", None), "__name__", ""))


def without_casts(node: Any) -> Any:
    """Node that a call reads, behind casts and copies."""
    while kind(node) in SAME and node.meta["val"].is_floating_point():
        below = node.args[0]
        if not below.meta["val"].is_floating_point():
            break
        node = below
    return node


def is_call(node: Any, *names: str) -> bool:
    """True if a node is a call of one of these ops."""
    return getattr(node, "op", "") == "call_function" and kind(node) in names


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def match_operand(node: Any, first: Callable[[Any], Any]) -> tuple[Any, Any] | None:
    """Match of `first` in one of a call's two operands, and the other operand; or None.

    Parameters
    ----------
    node : torch.fx.Node
        A call of two positional operands, such as `add` or `mul`.
    first : callable
        Matcher: given an operand behind its casts, what it finds there or None; numbers are not
        shown to it.

    Returns
    -------
    (Any, Any) or None
        What `first` returned, and the other operand as the call has it: a node with its casts, or a
        number. The first operand is tried first.
    """
    for operand, other in (node.args[:2], reversed(node.args[:2])):
        matched = first(without_casts(operand)) if hasattr(operand, "meta") else None
        if matched is not None:
            return matched, other
    return None


class _FxCalls:
    """Calls of a program, for patterns."""

    def uncast(self, value: Any) -> Any:
        """Node that a call reads, behind casts, or the number itself."""
        return without_casts(value) if hasattr(value, "meta") else value

    def number(self, value: Any) -> float | None:
        """Return a number that is written in a call."""
        return _number(value)

    def call(self, value: Any) -> tuple[str, tuple[Any, ...]] | None:
        """Kind and operands of a call."""
        node = self.uncast(value)
        if not is_call(node, *_KINDS):
            return None
        if kind(node) == "mean":
            return ("mean", node.args[:1]) if _over_last(node) else None
        return (
            (kind(node), node.args) if not set(node.kwargs) & {"alpha", "rounding_mode"} else None
        )


def _over_last(mean: Any) -> bool:
    """True if a mean is over the last dim, which it keeps."""
    if len(mean.args) < 3 or not mean.args[2]:
        return False
    dims = mean.args[1] if isinstance(mean.args[1], list | tuple) else [mean.args[1]]
    rank = mean.args[0].meta["val"].ndim
    return [dim % rank for dim in dims] == [rank - 1]


def rms_norm(node: Any) -> Found | None:
    """Match of weight times x rsqrt(mean(x^2) + epsilon)."""
    bound = matched(_FxCalls(), WEIGHTED_RMS_NORM, node)
    if bound is None or not hasattr(bound["weight"], "meta"):
        return None
    x, weight = bound["x"], bound["weight"]
    parameter = (
        without_casts(weight.args[0])
        if is_call(weight, "add") and len(weight.users) == 1
        else weight
    )
    if (
        getattr(parameter, "op", "") != "placeholder"
        or weight.meta["val"].shape != x.meta["val"].shape[-1:]
    ):
        return None
    shape = [int(weight.meta["val"].shape[0])]
    arguments = {"input": x, "normalized_shape": shape, "weight": weight, "eps": bound["epsilon"]}
    return "rms_norm", arguments


def gelu(node: Any) -> Found | None:
    """Match of the tanh form written out, as transformers' `gelu_new` has it."""
    bound = matched(_FxCalls(), ACTIVATIONS["gelu"], node)
    return None if bound is None else ("gelu", {"self": bound["x"], "approximate": "tanh"})


def swiglu(node: Any) -> Found | None:
    """Match of silu of one tensor times another of the same shape."""
    if not is_call(node, "mul"):
        return None
    matched = match_operand(node, lambda x: x if is_call(x, "silu") and len(x.users) == 1 else None)
    if matched is None or not hasattr(matched[1], "meta"):
        return None
    gate, up = matched[0].args[0], matched[1]
    if gate.meta["val"].shape != up.meta["val"].shape:
        return None
    return "swiglu", {"gate": gate, "up": up}


def eager_attention(node: Any) -> Found | None:
    """Match of a softmax of scaled (and masked) products, times values."""
    if not is_call(node, "matmul", "bmm"):
        return None
    weights, value = without_casts(node.args[0]), node.args[1]
    dropped = 0.0
    if is_call(weights, "getitem") and is_call(weights.args[0], "native_dropout"):
        weights, dropped, train = weights.args[0].args
        weights, dropped = without_casts(weights), dropped if train is not False else 0.0
    if not is_call(weights, "softmax") or value.meta["val"].ndim != 4:
        return None
    if weights.args[1] not in (-1, weights.meta["val"].ndim - 1):
        return None
    scores, mask = without_casts(weights.args[0]), None
    if is_call(scores, "add") and hasattr(scores.args[1], "meta"):
        scores, mask = without_casts(scores.args[0]), scores.args[1]
    scale = 1.0
    if is_call(scores, "mul", "div") and _number(scores.args[1]) is not None:
        number = float(scores.args[1])
        scale = number if kind(scores) == "mul" else 1 / number
        scores = without_casts(scores.args[0])
    if not is_call(scores, "matmul", "bmm"):
        return None
    query, key = scores.args[0], without_casts(scores.args[1])
    if not is_call(key, "transpose") or {dim % 4 for dim in key.args[1:]} != {2, 3}:
        return None
    if mask is not None and mask.meta["val"].ndim > 4:
        return None
    return "scaled_dot_product_attention", {
        "query": query,
        "key": key.args[0],
        "value": value,
        "attn_mask": mask,
        "dropout_p": dropped,
        "is_causal": False,
        "scale": scale,
        "enable_gqa": False,
    }


MATCHERS = (rms_norm, gelu, swiglu, eager_attention)
