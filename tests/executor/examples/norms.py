"""Examples of norms and softmax."""

import numpy as np

from millrace.executor.kernels.context import Array
from tests.executor.examples.example import Example


def statistics(x: Array) -> tuple[Array, Array]:
    return x.mean(-1), 1 / np.sqrt(x.var(-1) + 1e-5)


def length(x: Array) -> Array:
    return np.sqrt((x**2).sum(-1))


def softmax(x: Array) -> Array:
    weights = np.exp(x)
    return weights / weights.sum(-1, keepdims=True)


EXAMPLES = (
    Example(
        kind="layer_norm", labels="b t d!, d!, d! -> b t d!, b t, b t",
        attributes={"epsilon": 1e-5},
    ),
    Example(
        kind="layer_norm_grad_input", labels="b t d!, b t d!, d!, b t, b t -> b t d!",
        derive=lambda dy, x, gamma, *_: (dy, x, gamma, *statistics(x)),
    ),
    Example(
        kind="layer_norm_grad_weight", labels="b t d, b t d, b t, b t -> d, d",
        derive=lambda dy, x, *_: (dy, x, *statistics(x)),
    ),
    *(
        Example(kind="rms_norm", labels=labels, attributes={"epsilon": 1e-5})
        for labels in ("b t d!, d! -> b t d!, b t", "b t z h d!, d! -> b t z h d!, b t z h")
    ),
    Example(
        kind="rms_norm_grad_input", labels="b t d!, b t d!, d!, b t -> b t d!",
        derive=lambda dy, x, gamma, _: (dy, x, gamma, 1 / np.sqrt((x**2).mean(-1) + 1e-5)),
    ),
    Example(kind="rms_norm_grad_weight", labels="b t d, b t d, b t -> d"),
    Example(kind="l2_normalize", labels="b d! -> b d!, b", attributes={"epsilon": 1e-12}),
    Example(
        kind="l2_normalize_grad", labels="b d!, b d!, b -> b d!",
        derive=lambda dy, y, rnorm: (dy, y / length(y)[:, None], rnorm),
    ),
    Example(kind="softmax", labels="b t n! -> b t n!"),
    Example(
        kind="softmax_grad", labels="b t n!, b t n! -> b t n!",
        derive=lambda y, dy: (softmax(y), dy),
    ),
    *(
        Example(
            kind=kind, labels=f"{form} -> b t i! j!", attributes={"rounds": 4, "epsilon": 1e-3},
            derive=lambda x, *dy: (1 / (1 + np.exp(-x)), *dy),
        )
        for kind, form in (
            ("sinkhorn", "b t i! j!"), ("sinkhorn_grad", "b t i! j!, b t i! j!")
        )
    ),
)  # fmt: skip
