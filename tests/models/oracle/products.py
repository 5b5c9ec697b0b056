"""Products, sums, softmax and losses."""

import numpy as np

from tests.models.oracle.call import Array, Call, Definition


def contract(call: Call, *inputs: Array) -> Array:
    """A product of all inputs, summed over what the output lacks."""
    operands = [(x, call.labels_in(index)) for index, x in enumerate(inputs)]
    return call.einsum(operands, call.labels_out()).reshape(call.shape_out())


def add(call: Call, *inputs: Array) -> Array:
    out = call.labels_out()
    total = np.zeros([call.sizes[label] for label in out])
    for index, x in enumerate(inputs):
        total += call.aligned(x, call.labels_in(index), out)
    return total.reshape(call.shape_out())


def scale(call: Call, x: Array) -> Array:
    return x * call.attributes["factor"]


def shift(call: Call, x: Array) -> Array:
    return x + call.attributes["value"]


def softmax(call: Call, x: Array) -> Array:
    return np.asarray(np.exp(x) / np.exp(x).sum(-1, keepdims=True))


def softmax_grad(call: Call, y: Array, dy: Array) -> Array:
    return y * (dy - (y * dy).sum(-1, keepdims=True))


def _rounds(call: Call, x: Array) -> list[tuple[int, Array, Array]]:
    """Axis, sums and matrices of every step of Sinkhorn's rounds."""
    steps = []
    for step in range(2 * call.attributes["rounds"] - 1):
        axis = -1 if step % 2 else -2
        sums = x.sum(axis, keepdims=True) + call.attributes["epsilon"]
        x = x / sums
        steps.append((axis, sums, x))
    return steps


def sinkhorn(call: Call, x: Array) -> Array:
    return _rounds(call, x)[-1][2]


def sinkhorn_grad(call: Call, x: Array, dy: Array) -> Array:
    for axis, sums, shares in reversed(_rounds(call, x)):
        dy = (dy - (dy * shares).sum(axis, keepdims=True)) / sums
    return dy


def _picked(logits: Array, targets: Array) -> Array:
    return np.asarray(targets[..., None] == np.arange(logits.shape[-1]))


def cross_entropy(call: Call, logits: Array, targets: Array) -> tuple[Array, ...]:
    logsumexp = np.log(np.exp(logits).sum(-1))
    target_logits = np.where(_picked(logits, targets), logits, 0).sum(-1)
    return np.where(targets >= 0, logsumexp - target_logits, 0), logsumexp


def cross_entropy_grad(call: Call, logits: Array, targets: Array, logsumexp: Array) -> Array:
    is_target = _picked(logits, targets)
    return np.where(targets[..., None] >= 0, np.exp(logits - logsumexp[..., None]) - is_target, 0)


def logistic_loss(call: Call, logits: Array, targets: Array) -> Array:
    chance = 1 / (1 + np.exp(-logits))
    return np.where(targets >= 0, -targets * np.log(chance) - (1 - targets) * np.log(1 - chance), 0)


def logistic_loss_grad(call: Call, logits: Array, targets: Array) -> Array:
    return np.where(targets >= 0, 1 / (1 + np.exp(-logits)) - targets, 0)


def count_valid(call: Call, targets: Array) -> Array:
    return np.asarray(float((targets >= 0).sum()))


def arc_margin(call: Call, cosine: Array, targets: Array) -> Array:
    is_target = _picked(cosine, targets)
    turned = np.cos(np.arccos(np.where(is_target, cosine, 0)) + call.attributes["margin"])
    return np.asarray(call.attributes["scale"] * np.where(is_target, turned, cosine))


def arc_margin_grad(call: Call, cosine: Array, targets: Array, dy: Array) -> Array:
    is_target = _picked(cosine, targets)
    angle = np.arccos(np.where(is_target, cosine, 0))
    slope = np.where(is_target, np.sin(angle + call.attributes["margin"]) / np.sin(angle), 1)
    return np.asarray(call.attributes["scale"] * slope * dy)


def row_max(call: Call, logits: Array) -> Array:
    return np.asarray(logits.max(-1))


def shifted_sums(call: Call, logits: Array, largest: Array, targets: Array) -> Array:
    is_target = _picked(logits, targets)
    sums = np.exp(logits - largest[..., None]).sum(-1)
    return np.stack([sums, np.where(is_target, logits, 0).sum(-1)], -1)


def loss_from_sums(call: Call, largest: Array, sums: Array, targets: Array) -> tuple[Array, ...]:
    logsumexp = largest + np.log(sums[..., 0])
    return np.where(targets >= 0, logsumexp - sums[..., 1], 0), logsumexp


def squared_sum(call: Call, x: Array) -> Array:
    return np.asarray((x**2).sum())


def step_totals(call: Call, *inputs: Array) -> Array:
    return np.array([inputs[0], inputs[1], sum(inputs[2:])], dtype=float)


PRODUCTS: dict[str, Definition] = {
    "matmul": contract,
    "mul": contract,
    "sum": contract,
    "add": add,
    "scale": scale,
    "shift": shift,
    "sinkhorn": sinkhorn,
    "sinkhorn_grad": sinkhorn_grad,
    "softmax": softmax,
    "softmax_grad": softmax_grad,
    "cross_entropy": cross_entropy,
    "cross_entropy_grad": cross_entropy_grad,
    "logistic_loss": logistic_loss,
    "logistic_loss_grad": logistic_loss_grad,
    "count_valid": count_valid,
    "arc_margin": arc_margin,
    "arc_margin_grad": arc_margin_grad,
    "row_max": row_max,
    "shifted_sums": shifted_sums,
    "loss_from_sums": loss_from_sums,
    "squared_sum": squared_sum,
    "step_totals": step_totals,
}
