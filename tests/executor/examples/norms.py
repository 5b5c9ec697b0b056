"""Examples of norms."""

import numpy as np

from executor.kernels.context import Array
from tests.executor.examples.example import Example


def statistics(x: Array) -> tuple[Array, Array]:
    return x.mean(-1), 1 / np.sqrt(x.var(-1) + 1e-5)


def normal(x: Array) -> Array:
    mean, rstd = statistics(x)
    return (x - mean[..., None]) * rstd[..., None]


def layer_norm(x: Array, gamma: Array, beta: Array) -> tuple[Array, ...]:
    return normal(x) * gamma + beta, *statistics(x)


def layer_norm_grad_input(dy: Array, x: Array, gamma: Array, *_: Array) -> Array:
    """By the Jacobian of every row, rstd (I - 1/D - x̂ x̂ᵀ / D), written out."""
    d = x.shape[-1]
    jacobian = np.eye(d) - 1 / d - normal(x)[..., :, None] * normal(x)[..., None, :] / d
    return np.einsum("...i,...ij,...->...j", dy * gamma, jacobian, statistics(x)[1])


def layer_norm_grad_weight(dy: Array, x: Array, *_: Array) -> tuple[Array, ...]:
    return (dy * normal(x)).sum((0, 1)), dy.sum((0, 1))


EXAMPLES = (
    Example(
        kind="layer_norm",
        labels="b t d!, d!, d! -> b t d!, b t, b t",
        formula=layer_norm,
        attributes={"epsilon": 1e-5},
    ),
    Example(
        kind="layer_norm_grad_input",
        labels="b t d!, b t d!, d!, b t, b t -> b t d!",
        formula=layer_norm_grad_input,
        derive=lambda dy, x, gamma, *_: (dy, x, gamma, *statistics(x)),
    ),
    Example(
        kind="layer_norm_grad_weight",
        labels="b t d, b t d, b t, b t -> d, d",
        formula=layer_norm_grad_weight,
        derive=lambda dy, x, *_: (dy, x, *statistics(x)),
    ),
)  # fmt: skip
