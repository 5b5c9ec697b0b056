"""Elementwise functions by their values; slopes by a complex step where that is possible."""

from collections.abc import Callable
from math import erf, pi, sqrt

import numpy as np

from tests.models.oracle.call import Array, Call, Definition

Value = Callable[..., Array]


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def silu(x: Array) -> Array:
    return x * sigmoid(x)


FUNCTIONS: dict[str, tuple[Value, tuple[str, ...]]] = {
    "relu": (lambda x: np.maximum(x, 0), ()),
    "leaky_relu": (lambda x, slope: np.where(x > 0, x, slope * x), ("slope",)),
    "gelu": (lambda x: 0.5 * x * (1 + np.tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))), ()),
    "gelu_erf": (lambda x: x * (1 + np.vectorize(erf)(x / sqrt(2))) / 2, ()),
    "silu": (silu, ()),
    "sigmoid": (sigmoid, ()),
    "tanh": (np.tanh, ()),
    "softplus": (lambda x: np.log(1 + np.exp(x)), ()),
    "exp": (np.exp, ()),
    "log": (np.log, ()),
    "sqrt": (np.sqrt, ()),
    "rsqrt": (lambda x: 1 / np.sqrt(x), ()),
    "reciprocal": (lambda x: 1 / x, ()),
    "power": (lambda x, exponent: x**exponent, ("exponent",)),
    "sin": (np.sin, ()),
    "cos": (np.cos, ()),
    "clip": (np.clip, ("low", "high")),
    "is_positive": (lambda x: (x > 0) * 1.0, ()),
}


# Of functions that have corners, or that NumPy does not have for complex numbers; 0 at relu's.
SLOPES: dict[str, Value] = {
    "relu": lambda x: x > 0,
    "leaky_relu": lambda x, slope: np.where(x > 0, 1, slope),
    "is_positive": np.zeros_like,
    "clip": lambda x, low, high: (x >= low) & (x <= high),
    "gelu_erf": lambda x: (
        (1 + np.vectorize(erf)(x / sqrt(2))) / 2 + x * np.exp(-(x**2) / 2) / sqrt(2 * pi)
    ),
}


def slope_of(value: Callable[[Array], Array], x: Array) -> Array:
    """The derivative of an analytic function by a complex step, without cancellation."""
    return np.asarray(value(x + 1e-30j).imag / 1e-30)


def _value(name: str) -> Definition:
    value, attributes = FUNCTIONS[name]

    def definition(call: Call, x: Array) -> Array:
        return np.asarray(value(x, *(call.attributes[name] for name in attributes)))

    return definition


def _gradient(name: str) -> Definition:
    value, attributes = FUNCTIONS[name]

    def definition(call: Call, x: Array, dy: Array) -> Array:
        numbers = [call.attributes[name] for name in attributes]
        if name in SLOPES:
            return dy * SLOPES[name](x, *numbers)
        return dy * slope_of(lambda point: value(point, *numbers), x)

    return definition


def swiglu(call: Call, gate: Array, up: Array) -> Array:
    return silu(gate) * up


def clamped_swiglu(call: Call, gate: Array, up: Array) -> Array:
    cap, slope, shift = (call.attributes[name] for name in ("cap", "slope", "shift"))
    g = np.minimum(gate, cap)
    return g / (1 + np.exp(-slope * g)) * (np.clip(up, -cap, cap) + shift)


def clamped_swiglu_grad(call: Call, gate: Array, up: Array, dy: Array) -> tuple[Array, ...]:
    cap, slope, shift = (call.attributes[name] for name in ("cap", "slope", "shift"))
    g = np.minimum(gate, cap)
    s = 1 / (1 + np.exp(-slope * g))
    of_gate = (s + slope * g * s * (1 - s)) * (gate <= cap)
    dup = dy * g * s * (np.abs(up) <= cap)
    return dy * (np.clip(up, -cap, cap) + shift) * of_gate, dup


def swiglu_grad(call: Call, gate: Array, up: Array, dy: Array) -> tuple[Array, ...]:
    return dy * up * slope_of(silu, gate), dy * silu(gate)


def prelu(call: Call, x: Array, slope: Array) -> Array:
    slopes = call.aligned(slope, call.labels_in(1), call.labels_in(0)).reshape(_slope_shape(call))
    return np.where(x > 0, x, slopes * x)


def prelu_grad(call: Call, x: Array, slope: Array, dy: Array) -> tuple[Array, ...]:
    slopes = call.aligned(slope, call.labels_in(1), call.labels_in(0)).reshape(_slope_shape(call))
    of_slope = call.einsum([(np.where(x > 0, 0, x * dy), call.labels_in(0))], call.labels_in(1))
    return np.where(x > 0, dy, slopes * dy), of_slope.reshape(call.shape_out(1))


def _slope_shape(call: Call) -> list[int]:
    """The slope's shape among the dims of x."""
    slope = call.labels_in(1)
    return [call.sizes[label] if label in slope else 1 for label in call.labels_in(0)]


POINTWISE: dict[str, Definition] = {
    **{name: _value(name) for name in FUNCTIONS},
    **{f"{name}_grad": _gradient(name) for name in FUNCTIONS},
    "clamped_swiglu": clamped_swiglu,
    "clamped_swiglu_grad": clamped_swiglu_grad,
    "swiglu": swiglu,
    "swiglu_grad": swiglu_grad,
    "prelu": prelu,
    "prelu_grad": prelu_grad,
}
