"""Pointwise nodes: rules of arithmetic with tensors and numbers, activations, conditions."""

from collections.abc import Callable

import numpy as np

from millrace.models.importers.onnx.lowering import OnnxLowering
from millrace.models.importers.onnx.onnx_file import OnnxNode
from millrace.models.importers.onnx.rules.node_patterns import activation, root_mean_square
from millrace.models.importers.onnx.rules.norm_nodes import rms_norm
from millrace.models.importers.onnx.values import Constant, Traced, UnsupportedNodeError
from millrace.models.ops import Attributes

Rule = Callable[[OnnxLowering, OnnxNode], Traced]

FLOATING_TYPES = (1, 10, 11, 16)  # float32, float16, float64, bfloat16 in onnx.proto
FLOAT_MAX = float(np.finfo(np.float32).max)


def function(kind: str, attributes: Callable[[OnnxNode], Attributes] | None = None) -> Rule:
    """Return the rule of a node that is one function of the table."""
    return lambda low, node: low.pointwise(
        kind, low.name(node), low.floating(node, 0), attributes(node) if attributes else {}
    )


def scaled(low: OnnxLowering, name: str, x: Traced, factor: float) -> Traced:
    """Return x times a number; x itself for one."""
    return x if factor == 1 else low.pointwise("scale", name, x, {"factor": factor})


def shifted(low: OnnxLowering, name: str, x: Traced, value: float) -> Traced:
    """Return x plus a number; x itself for zero."""
    return x if value == 0 else low.pointwise("shift", name, x, {"value": value})


def _number(low: OnnxLowering, node: OnnxNode, index: int) -> float | None:
    """Number that an input is everywhere; None for one that would add dims to the other input."""
    number = low.scalar(node.inputs[index])
    other, operand = low.value(node, 1 - index), low.value(node, index)
    if number is None or isinstance(other, Constant) or not np.isfinite(number):
        return None
    shape = np.broadcast_shapes(operand.shape, other.shape)
    return number if shape == other.shape else None


def _two(low: OnnxLowering, node: OnnxNode) -> None:
    if len(node.inputs) != 2:
        raise UnsupportedNodeError(f"has {len(node.inputs)} inputs in place of two")
    if any(isinstance(v := low.value(node, index), Traced) and v.ids for index in (0, 1)):
        raise UnsupportedNodeError("computes with ids")


def add(low: OnnxLowering, node: OnnxNode) -> Traced:
    """Add two tensors, or a tensor and a number."""
    return _joined(low, node, "add", shifted)


def _joined(
    low: OnnxLowering,
    node: OnnxNode,
    kind: str,
    by_number: Callable[[OnnxLowering, str, Traced, float], Traced],
) -> Traced:
    _two(low, node)
    for index in (0, 1):
        number = _number(low, node, index)
        if number is not None:
            return by_number(low, low.name(node), low.traced(node, 1 - index), number)
    return low.elementwise(kind, low.name(node), (low.traced(node, 0), low.traced(node, 1)))


def sub(low: OnnxLowering, node: OnnxNode) -> Traced:
    """Subtract, as adding what is scaled by -1."""
    _two(low, node)
    name = low.name(node)
    number = _number(low, node, 1)
    if number is not None:
        return shifted(low, name, low.traced(node, 0), -number)
    negative = scaled(low, low.name(node, "negative"), low.traced(node, 1), -1.0)
    number = _number(low, node, 0)
    if number is not None:
        return shifted(low, name, negative, number)
    return low.elementwise("add", name, (low.traced(node, 0), negative))


def mul(low: OnnxLowering, node: OnnxNode) -> Traced:
    """Multiply, or end a GELU, a SiLU or an RMS norm that was written out."""
    kind, x = activation(low, node) or ("", "")
    value = low.values.get(x)
    if isinstance(value, Traced):
        return low.pointwise(kind, low.name(node), low.used(value))
    return _norm(low, node) or _joined(low, node, "mul", scaled)


def _norm(low: OnnxLowering, node: OnnxNode) -> Traced | None:
    pattern = root_mean_square(low, node)
    if pattern is None:
        return None
    x, weight, epsilon = pattern
    value, scale = low.values[x], low.values[weight] if weight else None
    if not isinstance(value, Traced) or not (scale is None or isinstance(scale, Traced)):
        return None
    if scale is not None and (len(scale.dims) != 1 or scale.shape[0] != value.shape[-1]):
        return None
    return rms_norm(low, low.name(node), low.used(value), scale, epsilon)


def div(low: OnnxLowering, node: OnnxNode) -> Traced:
    """Divide, as multiplying by the reciprocal."""
    normed = _norm(low, node)
    if normed is not None:
        return normed
    _two(low, node)
    name = low.name(node)
    number = _number(low, node, 1)
    if number is not None:
        if number == 0:
            raise UnsupportedNodeError("divides by zero")
        return scaled(low, name, low.traced(node, 0), 1 / number)
    inverse = low.pointwise("reciprocal", low.name(node, "reciprocal"), low.traced(node, 1), {})
    number = _number(low, node, 0)
    if number is not None:
        return scaled(low, name, inverse, number)
    return low.elementwise("mul", name, (low.traced(node, 0), inverse))


def power(low: OnnxLowering, node: OnnxNode) -> Traced:
    """Raise to a constant power."""
    exponent = low.scalar(node.inputs[1]) if low.has_input(node, 1) else None
    if exponent is None:
        raise UnsupportedNodeError("has an exponent that is not one number")
    x, name = low.floating(node, 0), low.name(node)
    if exponent == 1:
        return x
    if exponent == 2:
        return low.elementwise("mul", name, (x, x))
    if exponent in (0.5, -0.5, -1):
        kind = {0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}[exponent]
        return low.pointwise(kind, name, x)
    return low.pointwise("power", name, x, {"exponent": exponent})


def prelu(low: OnnxLowering, node: OnnxNode) -> Traced:
    """Return x where positive, else a learned slope times x."""
    x, slope = low.floating(node, 0), low.traced(node, 1)
    if sum(size > 1 for size in slope.shape) > 1 or len(slope.dims) > len(x.dims):
        raise UnsupportedNodeError(f"has slopes of shape {slope.shape}, not one per channel")
    return low.elementwise("prelu", low.name(node), (x, slope))


def clip(low: OnnxLowering, node: OnnxNode) -> Traced:
    """Bring between two numbers, either of which may be left out."""
    bounds: list[float] = []
    for index, default in ((1, -FLOAT_MAX), (2, FLOAT_MAX)):
        bound = low.optional(node, index)
        bounds.append(default if bound is None else float(np.ravel(bound)[0]))
    attributes: Attributes = {"low": bounds[0], "high": bounds[1]}
    return low.pointwise("clip", low.name(node), low.floating(node, 0), attributes)


def extreme(low: OnnxLowering, node: OnnxNode) -> Traced:
    """Return the larger (Max) or smaller (Min) of a tensor and a number."""
    _two(low, node)
    for index in (0, 1):
        number = _number(low, node, index)
        if number is not None:
            bound = "low" if node.kind == "Max" else "high"
            bounds = {"low": -FLOAT_MAX, "high": FLOAT_MAX} | {bound: number}
            return low.pointwise("clip", low.name(node), low.traced(node, 1 - index), bounds)
    raise UnsupportedNodeError("compares two tensors")


def gelu(low: OnnxLowering, node: OnnxNode) -> Traced:
    """Add a GELU in the form that the node names."""
    form = node.text("approximate", "none")
    if form not in ("none", "tanh"):
        raise UnsupportedNodeError(f"has approximate={form}")
    kind = "gelu_erf" if form == "none" else "gelu"
    return low.pointwise(kind, low.name(node), low.floating(node, 0))


def swish(low: OnnxLowering, node: OnnxNode) -> Traced:
    """Multiply x by sigmoid(alpha x)."""
    x, name = low.floating(node, 0), low.name(node)
    alpha = node.number("alpha", 1.0)
    inner = scaled(low, low.name(node, "scaled"), x, alpha)
    return scaled(low, name, low.pointwise("silu", low.name(node, "silu"), inner), 1 / alpha)


def hard_sigmoid(low: OnnxLowering, node: OnnxNode) -> Traced:
    """Return alpha x + beta, brought between 0 and 1."""
    alpha, beta = node.number("alpha", 0.2), node.number("beta", 0.5)
    return _hard_sigmoid(low, node, low.floating(node, 0), alpha, beta, low.name(node))


def hard_swish(low: OnnxLowering, node: OnnxNode) -> Traced:
    """Multiply x by the hard sigmoid of slope 1/6 (Howard et al., arXiv 1905.02244)."""
    x = low.floating(node, 0)
    gate = _hard_sigmoid(low, node, x, 1 / 6, 0.5, low.name(node, "gate"))
    return low.elementwise("mul", low.name(node), (x, gate))


def _hard_sigmoid(
    low: OnnxLowering, node: OnnxNode, x: Traced, alpha: float, beta: float, name: str
) -> Traced:
    sloped = scaled(low, low.name(node, "slope"), x, alpha)
    moved = shifted(low, low.name(node, "offset"), sloped, beta)
    return low.pointwise("clip", name, moved, {"low": 0.0, "high": 1.0})


def where(low: OnnxLowering, node: OnnxNode) -> Traced:
    """Choose by a known condition: what is chosen times one or zero, plus the known other."""
    softplus = low.producer(node.inputs[-1], "Softplus")
    above = low.producer(node.inputs[0], "Greater")
    if softplus and above and {*node.inputs[1:2], above.inputs[0]} == {softplus.inputs[0]}:
        # log(1 + exp(x)) is x to all digits where x is large, so the choice changes nothing.
        return low.traced(node, 2)
    condition = low.constant(node, 0).astype(bool)
    name = low.name(node)
    chosen, other = low.value(node, 1), low.value(node, 2)
    if isinstance(chosen, Constant):
        chosen, other, condition = other, chosen, ~condition
    if not isinstance(chosen, Traced) or not isinstance(other, Constant):
        raise UnsupportedNodeError("chooses between two tensors that depend on data")
    constant = np.where(condition, 0, np.nan_to_num(other.array)).astype(np.float32)
    mask = low.used(low.tensor(condition.astype(np.float32), f"{name}.mask"))
    masked = low.elementwise("mul", f"{name}.kept", (low.used(chosen), mask))
    if not constant.any():
        return masked
    return low.elementwise("add", name, (masked, low.used(low.tensor(constant, f"{name}.other"))))


def cast(low: OnnxLowering, node: OnnxNode) -> Traced | Constant:
    """Pass the tensor on between floating types: the graph has one arithmetic."""
    value = low.value(node, 0)
    if node.kind == "CastLike":
        like = low.value(node, 1)
        to_ids = like.ids if isinstance(like, Traced) else like.array.dtype.kind in "iub"
    else:
        to_ids = node.integer("to") not in FLOATING_TYPES
    if isinstance(value, Constant):
        return Constant(array=value.array.astype("int64" if to_ids else "float32"))
    if to_ids != value.ids:
        raise UnsupportedNodeError("turns ids that depend on data into floating numbers, or back")
    return value


def dropout(low: OnnxLowering, node: OnnxNode) -> Traced:
    """Add a dropout of its rate in training mode, else nothing."""
    value = low.floating(node, 0)
    training = low.optional(node, 2)
    ratio = low.optional(node, 1)
    rate = 0.5 if ratio is None else float(np.ravel(ratio)[0])
    if training is None or not bool(np.ravel(training)[0]) or rate == 0:
        return value
    if not 0 < rate < 1:
        raise UnsupportedNodeError(f"has rate {rate}")
    name = low.unique(low.name(node))
    attributes: Attributes = {"rate": rate, "op": low.full_name(name)}
    return low.pointwise("dropout", name, value, attributes)
