"""Calls of arithmetic, functions of one element, sums and masks."""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from millrace.models.importers.torch_export.algebra import combined, reduced, scaled
from millrace.models.importers.torch_export.draft import Array, Draft, Value, pointwise
from millrace.models.importers.torch_export.program_reader import (
    Arguments,
    BatchNumber,
    Handler,
    ProgramReader,
    UnsupportedCallError,
)
from millrace.models.importers.torch_export.views import expanded, selected, viewed
from millrace.models.labels import BATCH

_LOWEST = -3.0e38  # stands for minus infinity where something is added to it
_RELU6: dict[str, Value] = {"low": 0.0, "high": 6.0}  # Howard et al., arXiv 1905.02244


def floating(value: Any) -> Any:
    """Value itself; integer inputs do not enter arithmetic."""
    if isinstance(value, Array) and value.tensor.integer:
        raise UnsupportedCallError("it computes with the ids of an input")
    return value


def shifted(draft: Draft, array: Array, value: float) -> Array:
    """Add a number."""
    return array if value == 0 else pointwise(draft, "shift", array, {"value": float(value)})


def added(reader: ProgramReader, left: Any, right: Any, factor: float = 1.0) -> Array:
    """Left plus `factor` times right; either may be a number or a constant."""
    left, right = floating(left), floating(right)
    for operand, other, times in ((left, right, factor), (right, left, 1.0)):
        number = reader.number(other)
        if number is not None:
            base = reader.array(operand)
            base = base if operand is left else scaled(reader.draft, base, factor)
            return shifted(reader.draft, base, number * times)
    right = scaled(reader.draft, reader.array(right), factor)
    return combined(reader.draft, "add", reader.array(left), right)


def multiplied(reader: ProgramReader, left: Any, right: Any) -> Array:
    """Left times right; either may be a number or a constant."""
    left, right = floating(left), floating(right)
    for operand, other in ((left, right), (right, left)):
        number = reader.number(other)
        if number is not None:
            return scaled(reader.draft, reader.array(operand), number)
    return combined(reader.draft, "mul", reader.array(left), reader.array(right))


def _sum_of(first: str, second: str, sign: int = 1) -> Handler:
    """Handler of the first argument plus (or minus) alpha times the second."""

    def draft(reader: ProgramReader, a: Arguments) -> Array:
        alpha = reader.number(a.get("alpha", 1))
        return added(reader, a[first], a[second], sign * (1.0 if alpha is None else alpha))

    return draft


def _div(reader: ProgramReader, a: Arguments) -> Array:
    if a.get("rounding_mode"):
        raise UnsupportedCallError("it rounds the quotient")
    number = reader.number(a["other"])
    if number is not None:
        return scaled(reader.draft, reader.array(floating(a["self"])), 1 / number)
    other = floating(a["other"])
    if not isinstance(other, Array):
        return multiplied(reader, a["self"], 1 / other)
    return multiplied(reader, a["self"], pointwise(reader.draft, "reciprocal", other))


def _pow(reader: ProgramReader, a: Arguments) -> Array:
    exponent = reader.number(a["exponent"])
    if exponent is None or not isinstance(a["self"], Array):
        raise UnsupportedCallError("the exponent is a tensor")
    array = floating(a["self"])
    if exponent == 1:
        return reader.array(array)
    if exponent == 0.5:
        return pointwise(reader.draft, "sqrt", array)
    return pointwise(reader.draft, "power", array, {"exponent": exponent})


def _function(
    kind: str, attributes: Callable[[Arguments], dict[str, Value]] = lambda a: {}
) -> Handler:
    """Handler of a function of every element."""
    return lambda reader, a: pointwise(reader.draft, kind, floating(a["self"]), attributes(a))


def _gelu(reader: ProgramReader, a: Arguments) -> Array:
    kind = "gelu" if a["approximate"] == "tanh" else "gelu_erf"
    return pointwise(reader.draft, kind, floating(a["self"]))


def _softplus(reader: ProgramReader, a: Arguments) -> Array:
    beta = float(a["beta"])
    softplus = pointwise(reader.draft, "softplus", scaled(reader.draft, floating(a["self"]), beta))
    return scaled(reader.draft, softplus, 1 / beta)


def _log_sigmoid(reader: ProgramReader, a: Arguments) -> Array:
    turned = scaled(reader.draft, floating(a["self"]), -1.0)
    return scaled(reader.draft, pointwise(reader.draft, "softplus", turned), -1.0)


def _clip(low_name: str = "", high_name: str = "") -> Handler:
    """Handler of a clip between two arguments, either of which may be left out."""

    def draft(reader: ProgramReader, a: Arguments) -> Array:
        bounds = [a.get(name) for name in (low_name, high_name)]
        low, high = (reader.number(bound) for bound in bounds)
        if (low, high).count(None) != bounds.count(None):
            raise UnsupportedCallError(
                "its bounds are tensors; clamp by numbers, or say m + relu(x - m)"
            )
        attributes = {
            "low": _LOWEST if low is None else low,
            "high": -_LOWEST if high is None else high,
        }
        return pointwise(reader.draft, "clip", floating(a["self"]), attributes)

    return draft


def _hardsigmoid(reader: ProgramReader, a: Arguments) -> Array:
    moved = shifted(reader.draft, floating(a["self"]), 3.0)
    return scaled(reader.draft, pointwise(reader.draft, "clip", moved, _RELU6), 1 / 6)


def _hardswish(reader: ProgramReader, a: Arguments) -> Array:
    return multiplied(reader, a["self"], _hardsigmoid(reader, a))


def _prelu(reader: ProgramReader, a: Arguments) -> Array:
    x, slope = floating(a["self"]), a["weight"]
    if slope.shape == (1,):
        raise UnsupportedCallError("one slope for all channels; give one per channel")
    over = Array(slope.tensor, (*slope.dims, *((),) * (len(x.dims) - 2)))
    return combined(reader.draft, "prelu", x, over)


def _swiglu(reader: ProgramReader, a: Arguments) -> Array:
    gate, up = floating(a["gate"]), floating(a["up"])
    if not (isinstance(gate, Array) and isinstance(up, Array)):
        return multiplied(reader, pointwise(reader.draft, "silu", reader.array(gate)), up)
    if len(gate.tensor.leaves()) != len(up.tensor.leaves()):
        return multiplied(reader, pointwise(reader.draft, "silu", gate), up)
    return combined(reader.draft, "swiglu", gate, up)


def dims_of(value: Any, rank: int) -> list[int]:
    """Dims that an op reduces: a list, one, or all."""
    if value is None or value == []:
        return list(range(rank))
    return [dim % rank for dim in (value if isinstance(value, list | tuple) else [value])]


def _reduction(rule: Callable[[ProgramReader, Array, list[int], bool], Array]) -> Handler:
    """Handler of a sum or mean over dims that a call names, or all."""

    def draft(reader: ProgramReader, a: Arguments) -> Array:
        array = floating(a["self"])
        dims = dims_of(a.get("dim"), len(array.dims))
        return rule(reader, array, dims, bool(a.get("keepdim", False)))

    return draft


def mean(reader: ProgramReader, array: Array, dims: list[int], keep: bool) -> Array:
    """Mean over dims of a sample."""
    if any(axis.role == BATCH for dim in dims for axis in array.dims[dim]):
        raise UnsupportedCallError("it takes the mean over samples")
    count = prod(array.shape[dim] for dim in dims)
    return scaled(reader.draft, reduced(reader.draft, array, dims, keep=keep), 1 / count)


def _vector_norm(reader: ProgramReader, a: Arguments) -> Array:
    if float(a["ord"]) != 2:
        raise UnsupportedCallError(f"a norm of order {a['ord']}; the Euclidean one (2) is known")
    array = pointwise(reader.draft, "power", floating(a["self"]), {"exponent": 2.0})
    dims = dims_of(a["dim"], len(array.dims))
    total = reduced(reader.draft, array, dims, keep=bool(a["keepdim"]))
    return pointwise(reader.draft, "sqrt", total)


def _masked_fill(reader: ProgramReader, a: Arguments) -> Array:
    mask, value = a["mask"], reader.number(a["value"])
    if value is None:
        raise UnsupportedCallError("what it fills in is a tensor of several numbers")
    if isinstance(mask, Array) or (isinstance(a["self"], Array) and not mask.any()):
        return where(reader, {"condition": mask, "self": value, "other": a["self"]})
    value = max(value, _LOWEST)
    unmasked = multiplied(reader, a["self"], (~mask).float())
    return unmasked if value == 0 else added(reader, unmasked, mask.float() * value)


def where(reader: ProgramReader, a: Arguments) -> Array:
    """Choose one of two values by a condition, a constant or what a comparison made."""
    mask, values = a["condition"], (a["self"], a["other"])
    if isinstance(mask, Array):
        return _blended(reader, floating(mask), *values)
    chosen = values[0] if mask.all() else values[1] if not mask.any() else None
    if isinstance(chosen, Array):
        return expanded(chosen, np.broadcast_shapes(chosen.shape, mask.shape))
    parts = []
    for value, part_mask in ((a["self"], mask), (a["other"], ~mask)):
        number = None if isinstance(value, BatchNumber) else reader.number(value)
        if isinstance(value, Array):
            parts.append(multiplied(reader, value, part_mask.float()))
        elif number is not None:
            parts.append(part_mask.float() * max(number, _LOWEST))
        else:
            parts.append(part_mask.float() * value.clamp(min=_LOWEST))
    return added(reader, parts[0], parts[1])


def _blended(reader: ProgramReader, mask: Array, chosen: Any, other: Any) -> Array:
    """One value times a mask of ones and zeros plus the other times the rest; both are finite."""
    parts = []
    for value, negated in ((chosen, False), (other, True)):
        number = None if isinstance(value, BatchNumber) else reader.number(value)
        if number == 0:
            continue
        share = shifted(reader.draft, scaled(reader.draft, mask, -1.0), 1.0) if negated else mask
        value = value if number is None else max(number, _LOWEST)
        parts.append(multiplied(reader, value, share))
    if not parts:
        return scaled(reader.draft, mask, 0.0)
    return parts[0] if len(parts) == 1 else added(reader, parts[0], parts[1])


def _glu(reader: ProgramReader, a: Arguments) -> Array:
    array = floating(a["self"])
    dim = a["dim"] % len(array.dims)
    size = array.shape[dim]
    shape = (*array.shape[:dim], 2, size // 2, *array.shape[dim + 1 :])
    apart = viewed(reader.draft, array, shape)
    value, gate = (selected(reader.draft, apart, dim, index) for index in (0, 1))
    return multiplied(reader, value, pointwise(reader.draft, "sigmoid", gate))


_PLAIN = (
    "relu", "silu", "sigmoid", "tanh", "exp", "log", "sqrt", "rsqrt", "reciprocal", "sin", "cos",
)  # fmt: skip

HANDLERS: dict[str, Handler] = {
    **{kind: _function(kind) for kind in _PLAIN},
    "add": _sum_of("self", "other"),
    "sub": _sum_of("self", "other", -1),
    "rsub": _sum_of("other", "self", -1),
    **dict.fromkeys(
        ("mul", "multiply"), lambda reader, a: multiplied(reader, a["self"], a["other"])
    ),
    "div": _div,
    "neg": lambda reader, a: scaled(reader.draft, floating(a["self"]), -1.0),
    "pow": _pow,
    "square": _function("power", lambda a: {"exponent": 2.0}),
    # The slope of |x| at 0 is -1 here.
    "abs": _function("leaky_relu", lambda a: {"slope": -1.0}),
    "expm1": lambda reader, a: shifted(
        reader.draft, pointwise(reader.draft, "exp", floating(a["self"])), -1.0
    ),
    "log_sigmoid": _log_sigmoid,
    "gelu": _gelu,
    "leaky_relu": _function("leaky_relu", lambda a: {"slope": float(a["negative_slope"])}),
    "softplus": _softplus,
    "clamp": _clip("min", "max"),
    "clamp_min": _clip(low_name="min"),
    "clamp_max": _clip(high_name="max"),
    "hardtanh": _clip("min_val", "max_val"),
    "relu6": _function("clip", lambda a: _RELU6),
    "hardsigmoid": _hardsigmoid,
    "hardswish": _hardswish,
    "prelu": _prelu,
    "swiglu": _swiglu,
    "glu": _glu,
    "sum": _reduction(lambda reader, x, dims, keep: reduced(reader.draft, x, dims, keep=keep)),
    "mean": _reduction(mean),
    "linalg_vector_norm": _vector_norm,
    "masked_fill": _masked_fill,
    "where": where,
}
