"""Examples of norms and softmax."""

import numpy as np

from millrace.executor.kernels.context import Array
from tests.executor.examples.example import Example


def statistics(x: Array) -> tuple[Array, Array]:
    return x.mean(-1), 1 / np.sqrt(x.var(-1) + 1e-5)


def normal(x: Array) -> Array:
    mean, rstd = statistics(x)
    return (x - mean[..., None]) * rstd[..., None]


def layer_norm(x: Array, gamma: Array, beta: Array) -> tuple[Array, ...]:
    return normal(x) * gamma + beta, *statistics(x)


def layer_norm_grad_input(dy: Array, x: Array, gamma: Array, *_: Array) -> Array:
    """dx by the Jacobian of every row, rstd (I - 1/D - x̂ x̂ᵀ / D), written out."""
    d = x.shape[-1]
    jacobian = np.eye(d) - 1 / d - normal(x)[..., :, None] * normal(x)[..., None, :] / d
    return np.einsum("...i,...ij,...->...j", dy * gamma, jacobian, statistics(x)[1])


def layer_norm_grad_weight(dy: Array, x: Array, *_: Array) -> tuple[Array, ...]:
    return (dy * normal(x)).sum((0, 1)), dy.sum((0, 1))


def rstd_of(x: Array) -> Array:
    return 1 / np.sqrt((x**2).mean(-1) + 1e-5)


def rms_norm(x: Array, gamma: Array) -> tuple[Array, ...]:
    return x * rstd_of(x)[..., None] * gamma, rstd_of(x)


def rms_norm_grad_input(dy: Array, x: Array, gamma: Array, *_: Array) -> Array:
    """dx by the Jacobian of every row, rstd (I - x xᵀ rstd² / D), written out."""
    d, rstd = x.shape[-1], rstd_of(x)[..., None, None]
    jacobian = rstd * (np.eye(d) - x[..., :, None] * x[..., None, :] * rstd**2 / d)
    return np.einsum("...i,...ij->...j", dy * gamma, jacobian)


def length(x: Array) -> Array:
    return np.sqrt((x**2).sum(-1))


def l2_normalize_grad(dy: Array, y: Array, rnorm: Array) -> Array:
    """dx by the Jacobian of every row, (I - y yᵀ) / length, written out."""
    jacobian = np.eye(y.shape[-1]) - y[..., :, None] * y[..., None, :]
    return np.einsum("...i,...ij,...->...j", dy, jacobian, rnorm)


def softmax(x: Array) -> Array:
    weights = np.exp(x)
    return weights / weights.sum(-1, keepdims=True)


def softmax_grad(y: Array, dy: Array) -> Array:
    """dx by the Jacobian of every row, diag(y) - y yᵀ, written out."""
    jacobian = y[..., :, None] * (np.eye(y.shape[-1]) - y[..., None, :])
    return np.einsum("...i,...ij->...j", dy, jacobian)


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
    Example(
        kind="rms_norm",
        labels="b t d!, d! -> b t d!, b t",
        formula=rms_norm,
        attributes={"epsilon": 1e-5},
    ),
    Example(
        kind="rms_norm_grad_input",
        labels="b t d!, b t d!, d!, b t -> b t d!",
        formula=rms_norm_grad_input,
        derive=lambda dy, x, gamma, _: (dy, x, gamma, rstd_of(x)),
    ),
    Example(
        kind="rms_norm_grad_weight",
        labels="b t d, b t d, b t -> d",
        formula=lambda dy, x, rstd: (dy * x * rstd[..., None]).sum((0, 1)),
    ),
    Example(
        kind="l2_normalize",
        labels="b d! -> b d!, b",
        formula=lambda x: (x / length(x)[:, None], 1 / length(x)),
        attributes={"epsilon": 1e-12},
    ),
    Example(
        kind="l2_normalize_grad",
        labels="b d!, b d!, b -> b d!",
        formula=l2_normalize_grad,
        derive=lambda dy, y, rnorm: (dy, y / length(y)[:, None], rnorm),
    ),
    Example(kind="softmax", labels="b t n! -> b t n!", formula=softmax),
    Example(
        kind="softmax_grad",
        labels="b t n!, b t n! -> b t n!",
        formula=softmax_grad,
        derive=lambda y, dy: (softmax(y), dy),
    ),
)
