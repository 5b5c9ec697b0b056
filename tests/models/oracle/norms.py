"""Norms over rows (the last dim) and over channels (the dim that sums and squares have)."""

from math import prod

import numpy as np

from tests.models.oracle.call import Array, Call, Definition


def layer_norm(call: Call, x: Array, gamma: Array, beta: Array) -> tuple[Array, ...]:
    mean = x.mean(-1)
    rstd = 1 / np.sqrt(((x - mean[..., None]) ** 2).mean(-1) + call.attributes["epsilon"])
    return (x - mean[..., None]) * rstd[..., None] * gamma + beta, mean, rstd


def layer_norm_grad_input(call: Call, *inputs: Array) -> Array:
    dy, x, gamma, mean, rstd = inputs
    normed = (x - mean[..., None]) * rstd[..., None]
    scaled = dy * gamma
    centred = scaled - scaled.mean(-1, keepdims=True)
    return rstd[..., None] * (centred - normed * (scaled * normed).mean(-1, keepdims=True))


def layer_norm_grad_weight(call: Call, *inputs: Array) -> tuple[Array, ...]:
    dy, x, mean, rstd = inputs
    rows = tuple(range(x.ndim - 1))
    normed = (x - mean[..., None]) * rstd[..., None]
    return (dy * normed).sum(rows), dy.sum(rows)


def rms_norm(call: Call, x: Array, gamma: Array) -> tuple[Array, ...]:
    rstd = 1 / np.sqrt((x**2).mean(-1) + call.attributes["epsilon"])
    return x * rstd[..., None] * gamma, rstd


def rms_norm_grad_input(call: Call, dy: Array, x: Array, gamma: Array, rstd: Array) -> Array:
    """Gradient of x, where y = x r gamma and dr / dx = -r^3 x / size."""
    of_rstd = (dy * gamma * x).sum(-1, keepdims=True)
    return dy * gamma * rstd[..., None] - of_rstd * rstd[..., None] ** 3 * x / x.shape[-1]


def rms_norm_grad_weight(call: Call, dy: Array, x: Array, rstd: Array) -> Array:
    return np.asarray((dy * x * rstd[..., None]).sum(tuple(range(x.ndim - 1))))


def l2_normalize(call: Call, x: Array) -> tuple[Array, ...]:
    length = np.maximum(np.sqrt((x**2).sum(-1)), call.attributes["epsilon"])
    return x / length[..., None], 1 / length


def l2_normalize_grad(call: Call, dy: Array, y: Array, rnorm: Array) -> Array:
    jacobian = np.eye(y.shape[-1]) - y[..., :, None] * y[..., None, :]
    return np.einsum("...i,...ij->...j", dy, jacobian) * rnorm[..., None]


def _points(call: Call, labels: tuple[str, ...], channel: tuple[str, ...]) -> int:
    """Number of values that a channel has."""
    return prod(call.sizes[label] for label in labels if label not in channel)


def channel_sums(call: Call, x: Array) -> Array:
    return call.einsum([(x, call.labels_in(0))], call.labels_out())


def channel_squares(call: Call, x: Array, sums: Array) -> Array:
    labels, channel = call.labels_in(0), call.labels_in(1)
    mean = call.aligned(sums / _points(call, labels, channel), channel, labels)
    return call.einsum([((x - mean) ** 2, labels)], channel)


def _normed(call: Call, x: Array, sums: Array, squares: Array, index: int) -> tuple[Array, Array]:
    """x of mean 0 and variance 1 by channel (input `index` is x, then sums), and 1 / deviation."""
    labels, channel = call.labels_in(index), call.labels_in(index + 1)
    points = _points(call, labels, channel)
    rstd = 1 / np.sqrt(squares / points + call.attributes["epsilon"])
    mean, scale = (call.aligned(statistic, channel, labels) for statistic in (sums / points, rstd))
    return (x - mean) * scale, scale


def batch_norm(
    call: Call, x: Array, sums: Array, squares: Array, gamma: Array, beta: Array
) -> Array:
    labels, channel = call.labels_in(0), call.labels_in(1)
    normed, _ = _normed(call, x, sums, squares, 0)
    gain, bias = (call.aligned(parameter, channel, labels) for parameter in (gamma, beta))
    return normed * gain + bias


def batch_norm_grad_sums(
    call: Call, dy: Array, x: Array, sums: Array, squares: Array
) -> tuple[Array, ...]:
    labels, channel = call.labels_in(1), call.labels_in(2)
    normed, _ = _normed(call, x, sums, squares, 1)
    return call.einsum([(dy * normed, labels)], channel), call.einsum([(dy, labels)], channel)


def batch_norm_grad_input(call: Call, *inputs: Array) -> Array:
    """Gradient of x, on which mean and variance depend.

    Ioffe and Szegedy, arXiv 1502.03167 (2015), section 3.
    """
    dy, x, sums, squares, gamma, dgamma, dbeta = inputs
    labels, channel = call.labels_in(1), call.labels_in(2)
    points = _points(call, labels, channel)
    normed, scale = _normed(call, x, sums, squares, 1)
    gain, along, mean = (
        call.aligned(per_channel, channel, labels)
        for per_channel in (gamma, dgamma / points, dbeta / points)
    )
    return gain * scale * (dy - mean - normed * along)


NORMS: dict[str, Definition] = {
    "layer_norm": layer_norm,
    "layer_norm_grad_input": layer_norm_grad_input,
    "layer_norm_grad_weight": layer_norm_grad_weight,
    "rms_norm": rms_norm,
    "rms_norm_grad_input": rms_norm_grad_input,
    "rms_norm_grad_weight": rms_norm_grad_weight,
    "l2_normalize": l2_normalize,
    "l2_normalize_grad": l2_normalize_grad,
    "channel_sums": channel_sums,
    "channel_squares": channel_squares,
    "batch_norm": batch_norm,
    "batch_norm_grad_sums": batch_norm_grad_sums,
    "batch_norm_grad_input": batch_norm_grad_input,
}
