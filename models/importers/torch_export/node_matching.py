"""Node matching: patterns of several calls of a program that are one op here.

Each matcher looks backwards from a call and returns the op's name and what it reads, or None. The
calls in between are then read by nothing and fall away.
"""

from collections.abc import Mapping
from typing import Any

from millrace.models.importers.patterns import (
    ACTIVATIONS,
    WEIGHTED_RMS_NORM,
    Either,
    Number,
    matched,
)

MatchedCall = tuple[str, dict[str, Any]]

# Calls that change neither values nor shape.
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


class FxCalls:
    """Calls of a program, for patterns."""

    tolerance = 1e-6

    def uncast(self, value: Any) -> Any:
        """Node that a call reads, behind casts, or the number itself."""
        return without_casts(value) if hasattr(value, "meta") else value

    def number(self, value: Any) -> float | None:
        """Return a number that is written in a call."""
        return float(value) if isinstance(value, int | float) else None

    def call(self, value: Any) -> tuple[str, tuple[Any, ...]] | None:
        """Kind and operands of a call; one along a dim is known along the last alone."""
        node = self.uncast(value)
        if getattr(node, "op", "") != "call_function":
            return None
        name, operands = kind(node), node.args
        match name:
            case "mean":
                return (name, operands[:1]) if _over_last(node) else None
            case "logsumexp":
                last = operands[1:] in (([-1],), ([node.meta["val"].ndim],))
                return (name, operands[:1]) if last else None
            case "softmax":
                return (name, operands[:1]) if _is_last(operands[1:2], node) else None
            case "cat" | "stack":
                return (name, tuple(operands[0])) if _is_last(operands[1:], node) else None
            case "slice":
                return (_part(node), operands[:1])
            case "silu":
                return (name, operands) if len(node.users) == 1 else None
            case "sum":
                return (name, operands[:1]) if operands[1:] == ([1],) else None
            case "index":
                return (name, (operands[0], *operands[1]))
            case "squeeze" | "unsqueeze" | "repeat_interleave":
                return (name, operands[:1])
            case "flatten" | "reshape" | "view":
                return ("flatten", operands[:1])
            case "transpose":
                return (name, operands[:1]) if {dim % 4 for dim in operands[1:]} == {2, 3} else None
            case "bmm":
                return ("matmul", operands)
            case "getitem" if is_call(operands[0], "split"):
                below = operands[0].args[0]
                half = 2 * node.meta["val"].shape[-1] == below.meta["val"].shape[-1]
                return (f"half{operands[1]}", (below,)) if half else None
            case "getitem" if is_call(operands[0], "native_dropout"):
                dropped, rate, train = operands[0].args
                return ("dropout", (dropped, rate if train is not False else 0.0))
        return None if set(node.kwargs) & {"alpha", "rounding_mode"} else (name, operands)


CALLS = FxCalls()

_SCORES = ("matmul", "query", ("transpose", "key"))
_SCALED = Either((("mul", _SCORES, Number("scale")), ("div", _SCORES, Number("divisor")), _SCORES))
_CAPPED = ("mul", ("tanh", ("div", _SCALED, Number("cap"))), Number("capped_by"))
_SCORED = Either((_CAPPED, _SCALED))
_MASKED = Either((("add", _SCORED, "mask"), _SCORED))
# A number that is taken off all scores of a query changes no probability.
_SUNK = ("but_last", ("softmax", ("sub", ("cat", _MASKED, "sinks"), "largest")))
_WEIGHTS = Either((("softmax", _MASKED), _SUNK))
_DROPPED = Either((("dropout", _WEIGHTS, Number("rate")), _WEIGHTS))
_EAGER_ATTENTION = ("matmul", _DROPPED, "value")
# The share of a query's probabilities that its sink leaves: 1 / (1 + exp(sink - logsumexp)).
_SINK_SHARE = ("sigmoid", ("sub", ("logsumexp", _MASKED), "sinks"))
_SHARED_WITH_SINKS = ("mul", ("matmul", ("softmax", _MASKED), "value"), ("unsqueeze", _SINK_SHARE))


def _is_last(dim: tuple[Any, ...], node: Any) -> bool:
    return dim in ((-1,), (node.meta["val"].ndim - 1,))


def part_of(node: Any) -> tuple[Any, ...] | None:
    """Bounds (start, end, step) of a slice of the last dim, and the size of that."""
    given, usual = list(node.args[1:]), [0, None, None, 1]
    dim, start, end, step = given + usual[len(given) :]
    *before, size = node.args[0].meta["val"].shape
    end = size if end is None else end
    if isinstance(end, int) and end < 0:
        end += size
    bounds = (start or 0, end, step, size)
    if dim % (len(before) + 1) != len(before) or not all(isinstance(x, int) for x in bounds):
        return None
    return (bounds[0], min(bounds[1], size), step, size)


def _over_last(mean: Any) -> bool:
    """True if a mean is over the last dim, which it keeps."""
    if len(mean.args) < 3 or not mean.args[2]:
        return False
    dims = mean.args[1] if isinstance(mean.args[1], list | tuple) else [mean.args[1]]
    rank = mean.args[0].meta["val"].ndim
    return [dim % rank for dim in dims] == [rank - 1]


def _part(node: Any) -> str:
    """Name of the part of the last dim that a slice takes."""
    *bounds, size = part_of(node) or (0, 0, 0, 0)
    front, back = (0, size // 2, 1), (size // 2, size, 1)
    parts = {(0, size - 1, 1): "but_last", front: "front", back: "back"}
    parts |= {(0, size, 2): "even", (1, size, 2): "odd"}
    return parts.get(tuple(bounds), "")


def rms_norm(node: Any) -> MatchedCall | None:
    """Match of weight times x rsqrt(mean(x^2) + epsilon)."""
    bound = matched(CALLS, WEIGHTED_RMS_NORM, node)
    if bound is None or not hasattr(bound["weight"], "meta"):
        return None
    x, weight = bound["x"], without_casts(bound["weight"])
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


def gelu(node: Any) -> MatchedCall | None:
    """Match of the tanh form written out, as transformers' `gelu_new` has it."""
    bound = matched(CALLS, ACTIVATIONS["gelu"], node)
    return None if bound is None else ("gelu", {"self": bound["x"], "approximate": "tanh"})


def swiglu(node: Any) -> MatchedCall | None:
    """Match of silu of one tensor times another of the same shape."""
    bound = matched(CALLS, ("mul", ("silu", "gate"), "up"), node)
    if bound is None or not hasattr(bound["up"], "meta"):
        return None
    same = bound["gate"].meta["val"].shape == bound["up"].meta["val"].shape
    return ("swiglu", dict(bound)) if same else None


def shifted_softmax(node: Any) -> MatchedCall | None:
    """Match of a softmax of values less the largest of them, which changes nothing."""
    if not is_call(node, "softmax", "_softmax"):
        return None
    shifted = node.args[0]
    if not is_call(shifted, "sub") or shifted.kwargs:
        return None
    largest = without_casts(shifted.args[1])
    if not is_call(largest, "getitem", "amax") or len(largest.args) < 2:
        return None
    over = largest if is_call(largest, "amax") else largest.args[0]
    if not is_call(over, "amax", "max") or over.args[0] is not shifted.args[0]:
        return None
    rank = node.meta["val"].ndim
    dims = over.args[1] if isinstance(over.args[1], list | tuple) else [over.args[1]]
    keeps = len(over.args) > 2 and bool(over.args[2])
    if not keeps or [dim % rank for dim in dims] != [node.args[1] % rank]:
        return None
    return "softmax", {"self": shifted.args[0], "dim": node.args[1]}


def eager_attention(node: Any) -> MatchedCall | None:
    """Match of a softmax of scaled (and masked) products, times values."""
    bound = matched(CALLS, _EAGER_ATTENTION, node)
    if bound is None or (bound.get("sinks") is not None and not _of_heads(bound)):
        return None
    return _attention_call(bound)


def sink_shares(node: Any) -> MatchedCall | None:
    """Match of attention times the share that the sink of a head leaves of a query's sum."""
    bound = matched(CALLS, _SHARED_WITH_SINKS, node)
    if bound is None or not hasattr(bound["sinks"], "meta"):
        return None
    sinks, heads = bound["sinks"].meta["val"].shape, bound["query"].meta["val"].shape[1]
    return _attention_call(bound) if tuple(sinks) == (1, heads, 1) else None


def _attention_call(bound: Mapping[str, Any]) -> MatchedCall | None:
    if bound["value"].meta["val"].ndim != 4:
        return None
    mask = bound.get("mask")
    if mask is not None and (not hasattr(mask, "meta") or mask.meta["val"].ndim > 4):
        return None
    cap, sinks = bound.get("cap", 0.0), bound.get("sinks")
    if bound.get("capped_by", cap) != cap:
        return None
    return "scaled_dot_product_attention", {
        "query": bound["query"],
        "key": bound["key"],
        "value": bound["value"],
        "attn_mask": mask,
        "dropout_p": bound.get("rate", 0.0),
        "is_causal": False,
        "scale": bound.get("scale", 1 / bound.get("divisor", 1.0)),
        "enable_gqa": False,
        "cap": cap,
        "sinks": sinks,
    }


def _of_heads(bound: Mapping[str, Any]) -> bool:
    """True if sinks are one number per head, and what is taken off scores is one per query."""
    sinks, largest = (bound[name].meta["val"].shape for name in ("sinks", "largest"))
    expands = is_call(bound["sinks"], "expand")
    return expands and sinks[-1] == largest[-1] == 1 and _shape_below(bound["sinks"])[2:] == (1, 1)


def _shape_below(node: Any) -> tuple[int, ...]:
    return tuple(node.args[0].meta["val"].shape)


MATCHERS = (rms_norm, gelu, swiglu, shifted_softmax, eager_attention, sink_shares)
