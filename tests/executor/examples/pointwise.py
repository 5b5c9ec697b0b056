"""Examples of elementwise functions."""

import numpy as np

from executor.kernels.context import Array
from tests.executor.examples.example import Example


def gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def gelu_grad(x: Array, dy: Array) -> Array:
    """By a complex step, which has no cancellation."""
    return dy * gelu(x + 1e-30j).imag / 1e-30


EXAMPLES = (
    Example(kind="relu", labels="b t n -> b t n", formula=lambda x: np.maximum(x, 0)),
    Example(kind="relu_grad", labels="n, n -> n", formula=lambda x, dy: np.where(x > 0, dy, 0)),
    Example(kind="gelu", labels="b t n -> b t n", formula=gelu),
    Example(kind="gelu_grad", labels="b t n, b t n -> b t n", formula=gelu_grad),
)  # fmt: skip
