"""Examples of losses, softmax, and what a step ends with."""

import numpy as np

from millrace.executor.kernels.context import Array
from tests.executor.examples.example import Example, one_hot


def log_sum_exp(logits: Array) -> Array:
    return np.log(np.exp(logits).sum(-1))


def cross_entropy(logits: Array, targets: Array) -> tuple[Array, ...]:
    picked = (logits * one_hot(targets, logits.shape[-1])).sum(-1)
    return np.where(targets < 0, 0, log_sum_exp(logits) - picked), log_sum_exp(logits)


def cross_entropy_grad(logits: Array, targets: Array, *_: Array) -> Array:
    softmax = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    return (softmax - one_hot(targets, logits.shape[-1])) * (targets >= 0)[..., None]


def shifted_sums(logits: Array, largest: Array, targets: Array) -> Array:
    picked = (logits * one_hot(targets, logits.shape[-1])).sum(-1)
    return np.stack([np.exp(logits - largest[..., None]).sum(-1), picked], -1)


def loss_from_sums(largest: Array, sums: Array, targets: Array) -> tuple[Array, ...]:
    logsumexp = largest + np.log(sums[..., 0])
    return np.where(targets < 0, 0, logsumexp - sums[..., 1]), logsumexp


def logistic_loss(logits: Array, targets: Array) -> Array:
    chances = 1 / (1 + np.exp(-logits))
    loss = -np.where(targets == 1, np.log(chances), np.log(1 - chances))
    return np.where(targets < 0, 0, loss)


def logistic_loss_grad(logits: Array, targets: Array) -> Array:
    return np.where(targets < 0, 0, 1 / (1 + np.exp(-logits)) - targets)


MARGIN = {"scale": 16.0, "margin": 0.5}


def turned(cosine: Array, targets: Array, margin: float) -> Array:
    is_target = one_hot(targets, cosine.shape[-1])
    return 16 * np.cos(np.arccos(cosine) + margin * is_target)


def arc_margin_grad(cosine: Array, targets: Array, dy: Array) -> Array:
    """Gradient by the chain rule through the angle."""
    angle = np.arccos(cosine)
    slope = 16 * np.sin(angle + 0.5 * one_hot(targets, cosine.shape[-1])) / np.sin(angle)
    return dy * slope


def with_cosines(given: Array, *rest: Array) -> tuple[Array, ...]:
    return np.tanh(given), *rest


EXAMPLES = (
    Example(
        kind="cross_entropy", labels="b t v!, b t -> b t, b t", formula=cross_entropy, ids=(1,)
    ),
    Example(
        kind="cross_entropy_grad",
        labels="b t v, b t, b t -> b t v",
        formula=cross_entropy_grad,
        ids=(1,),
        derive=lambda logits, targets, _: (logits, targets, log_sum_exp(logits)),
    ),
    Example(kind="row_max", labels="b t v -> b t", formula=lambda x: x.max(-1)),
    Example(
        kind="shifted_sums",
        labels="b t v, b t, b t -> b t c!",
        formula=shifted_sums,
        ids=(2,),
        derive=lambda logits, _, targets: (logits, logits.max(-1), targets),
    ),
    Example(
        kind="loss_from_sums",
        labels="b t, b t c!, b t -> b t, b t",
        formula=loss_from_sums,
        ids=(2,),
        derive=lambda largest, sums, targets: (largest, np.abs(sums) + 1, targets),
    ),
    Example(
        kind="count_valid",
        labels="b t -> ",
        formula=lambda targets: np.sum(targets >= 0).astype(float),
        ids=(0,),
    ),
    Example(kind="squared_sum", labels="k n -> ", formula=lambda x: (x**2).sum()),
    Example(
        kind="logistic_loss", labels="b t, b t -> b t", formula=logistic_loss, ids=(1,),
        ids_below="c",
    ),
    Example(
        kind="logistic_loss_grad", labels="b t, b t -> b t", formula=logistic_loss_grad, ids=(1,),
        ids_below="c",
    ),
    Example(
        kind="arc_margin",
        labels="b v, b -> b v",
        formula=lambda cosine, targets: turned(cosine, targets, 0.5),
        ids=(1,),
        derive=with_cosines,
        attributes=MARGIN,
    ),
    Example(
        kind="arc_margin_grad",
        labels="b v, b, b v -> b v",
        formula=arc_margin_grad,
        ids=(1,),
        derive=with_cosines,
        attributes=MARGIN,
    ),
)  # fmt: skip
