"""Examples of elementwise functions and of their gradients."""

import numpy as np

from millrace.executor.kernels.context import Array
from tests.executor.examples.example import Example


def positive(x: Array, *rest: Array) -> tuple[Array, ...]:
    return np.abs(x) + 0.5, *rest


LABELS, GRAD_LABELS = "b t n -> b t n", "b t n, b t n -> b t n"
CLAMPED = {"cap": 0.8, "slope": 1.7, "shift": 1.0}
OF_ANY = (
    "gelu", "silu", "sigmoid", "tanh", "softplus", "exp", "sin", "cos", "gelu_erf", "relu",
    "is_positive",
)  # fmt: skip
OF_POSITIVE = ("log", "sqrt", "rsqrt", "reciprocal")


def pair(kind: str, **more: object) -> tuple[Example, Example]:
    """A function and its gradient."""
    return (
        Example(kind=kind, labels=LABELS, **more),
        Example(kind=f"{kind}_grad", labels=GRAD_LABELS, **more),
    )


def prelu(x: str, slope: str) -> tuple[Example, Example]:
    """A function with slopes along some dims of x, and its gradient."""
    return (
        Example(kind="prelu", labels=f"{x}, {slope} -> {x}"),
        Example(kind="prelu_grad", labels=f"{x}, {slope}, {x} -> {x}, {slope}"),
    )


EXAMPLES = (
    *(example for kind in OF_ANY for example in pair(kind)),
    *(example for kind in OF_POSITIVE for example in pair(kind, derive=positive)),
    *pair("leaky_relu", attributes={"slope": 0.1}),
    *pair("clip", attributes={"low": -0.5, "high": 0.75}),
    *(
        example
        for exponent in (2, 2.5, -0.5)
        for example in pair("power", derive=positive, attributes={"exponent": exponent})
    ),
    Example(kind="swiglu", labels="b t n, b t n -> b t n"),
    Example(kind="swiglu_grad", labels="b t n, b t n, b t n -> b t n, b t n"),
    Example(kind="clamped_swiglu", labels="b t n, b t n -> b t n", attributes=CLAMPED),
    Example(
        kind="clamped_swiglu_grad",
        labels="b t n, b t n, b t n -> b t n, b t n",
        attributes=CLAMPED,
    ),
    *prelu("b c h d", "c"),
    *prelu("b t n", "n"),
    *prelu("b t n", "()"),
)
