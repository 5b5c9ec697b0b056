"""Examples of elementwise functions: slopes are taken by a complex step where that is possible."""

from collections.abc import Callable
from math import erf

import numpy as np

from millrace.executor.kernels.context import Array
from tests.executor.examples.example import Example

Function = Callable[[Array], Array]


def by_complex_step(value: Function) -> Callable[[Array, Array], Array]:
    """dy times the slope of an analytic function, without cancellation."""
    return lambda x, dy: dy * value(x + 1e-30j).imag / 1e-30


def gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def normal(x: Array) -> Array:
    return 0.5 * (1 + np.vectorize(erf)(x / np.sqrt(2)))


def gelu_erf_grad(x: Array, dy: Array) -> Array:
    return dy * (normal(x) + x * np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi))


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def positive(x: Array, *rest: Array) -> tuple[Array, ...]:
    return np.abs(x) + 0.5, *rest


ANALYTIC: dict[str, Function] = {
    "gelu": gelu,
    "silu": lambda x: x * sigmoid(x),
    "sigmoid": sigmoid,
    "tanh": np.tanh,
    "softplus": lambda x: np.log(1 + np.exp(x)),
    "exp": np.exp,
    "sin": np.sin,
    "cos": np.cos,
}
OF_POSITIVE: dict[str, Function] = {
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: x**-0.5,
    "reciprocal": lambda x: 1 / x,
}
NUMBERS = {"leaky_relu": {"slope": 0.1}, "clip": {"low": -0.5, "high": 0.75}}
CORNERED: dict[str, tuple[Function, Function]] = {
    "relu": (lambda x: np.maximum(x, 0), lambda x: x > 0),
    "leaky_relu": (lambda x: np.where(x > 0, x, 0.1 * x), lambda x: np.where(x > 0, 1, 0.1)),
    "clip": (lambda x: np.clip(x, -0.5, 0.75), lambda x: (x >= -0.5) & (x <= 0.75)),
}
LABELS, GRAD_LABELS = "b t n -> b t n", "b t n, b t n -> b t n"


def pair(
    kind: str, value: Function, gradient: Callable[..., Array], **more: object
) -> list[Example]:
    """A function and its gradient."""
    return [
        Example(kind=kind, labels=LABELS, formula=value, **more),
        Example(kind=f"{kind}_grad", labels=GRAD_LABELS, formula=gradient, **more),
    ]


def power(exponent: float) -> list[Example]:
    def value(x: Array) -> Array:
        return x**exponent

    return pair(
        "power", value, by_complex_step(value), derive=positive, attributes={"exponent": exponent}
    )


def by_slope(slope: Function) -> Callable[[Array, Array], Array]:
    return lambda x, dy: dy * slope(x)


def swiglu(gate: Array, up: Array) -> Array:
    return gate * sigmoid(gate) * up


def swiglu_grad(gate: Array, up: Array, dy: Array) -> tuple[Array, ...]:
    def of_gate(given: Array) -> Array:
        return swiglu(given, up)

    return by_complex_step(of_gate)(gate, dy), dy * gate * sigmoid(gate)


def prelu(dims: str) -> list[Example]:
    """Examples of both kinds, with the slopes along the dims of x that `dims` says."""
    labels, axes = {
        "channels inside": ("b c h d, c", (0, 2, 3)),
        "channels last": ("b t n, n", (0, 1)),
        "one slope": ("b t n, ()", (0, 1, 2)),
    }[dims]
    x = labels.partition(",")[0]

    def value(given: Array, slope: Array) -> Array:
        return np.where(given > 0, given, given * np.expand_dims(slope, axes))

    def gradient(given: Array, slope: Array, dy: Array) -> tuple[Array, ...]:
        below = np.where(given > 0, 0, given)
        return dy * np.where(given > 0, 1, np.expand_dims(slope, axes)), (dy * below).sum(axes)

    return [
        Example(kind="prelu", labels=f"{labels} -> {x}", formula=value),
        Example(
            kind="prelu_grad",
            labels=f"{labels}, {x} -> {x}, {labels.partition(', ')[2]}",
            formula=gradient,
        ),
    ]


EXAMPLES = (
    *(e for kind, f in ANALYTIC.items() for e in pair(kind, f, by_complex_step(f))),
    *(
        example
        for kind, function in OF_POSITIVE.items()
        for example in pair(kind, function, by_complex_step(function), derive=positive)
    ),
    *(
        example
        for kind, (value, slope) in CORNERED.items()
        for example in pair(kind, value, by_slope(slope), attributes=NUMBERS.get(kind, {}))
    ),
    *pair("gelu_erf", lambda x: x * normal(x), gelu_erf_grad),
    *power(2),
    *power(2.5),
    *power(-0.5),
    Example(kind="swiglu", labels="b t n, b t n -> b t n", formula=swiglu),
    Example(kind="swiglu_grad", labels="b t n, b t n, b t n -> b t n, b t n", formula=swiglu_grad),
    *prelu("channels inside"),
    *prelu("channels last"),
    *prelu("one slope"),
)
