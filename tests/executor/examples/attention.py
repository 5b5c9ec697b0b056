"""Examples of attention."""

from collections.abc import Callable

import numpy as np

from executor.kernels.context import Array
from tests.executor.examples.example import Example


def probabilities(q: Array, k: Array, causal: bool) -> tuple[Array, Array]:
    """Softmax [b, h, t, s] and its logsumexp [b, t, h]."""
    scores = np.einsum("bthd,bshd->bhts", q, k) / np.sqrt(q.shape[-1])
    if causal:
        allowed = np.arange(k.shape[1])[None, :] <= np.arange(q.shape[1])[:, None]
        scores = np.where(allowed, scores, -np.inf)
    weights = np.exp(scores)
    total = weights.sum(-1, keepdims=True)
    return weights / total, np.log(total[..., 0]).transpose(0, 2, 1)


def attention(causal: bool) -> Callable[..., tuple[Array, ...]]:
    def formula(q: Array, k: Array, v: Array) -> tuple[Array, ...]:
        weights, logsumexp = probabilities(q, k, causal)
        return np.einsum("bhts,bshd->bthd", weights, v), logsumexp

    return formula


def attention_grad(causal: bool) -> Callable[..., tuple[Array, ...]]:
    """By the softmax's Jacobian, out of q, k, v and dout alone."""

    def formula(
        q: Array, k: Array, v: Array, out: Array, logsumexp: Array, dout: Array
    ) -> tuple[Array, ...]:
        weights, _ = probabilities(q, k, causal)
        dweights = np.einsum("bthd,bshd->bhts", dout, v)
        # the Jacobian of a row is diag(w) - w wᵀ
        along = np.einsum("bhtj,bhtj->bht", weights, dweights)
        dscores = weights * dweights - np.einsum("bhti,bht->bhti", weights, along)
        dscores /= np.sqrt(q.shape[-1])
        return (
            np.einsum("bhts,bshd->bthd", dscores, k),
            np.einsum("bhts,bthd->bshd", dscores, q),
            np.einsum("bhts,bthd->bshd", weights, dout),
        )

    return formula


def with_attention(causal: bool) -> Callable[..., tuple[Array, ...]]:
    """Make `out` and `logsumexp` those of q, k and v."""

    def derive(q: Array, k: Array, v: Array, *rest: Array) -> tuple[Array, ...]:
        return q, k, v, *attention(causal)(q, k, v), rest[-1]

    return derive


_GRAD_LABELS = (
    "b t h d!, b s! h d!, b s! h d!, b t h d!, b t h, b t h d! -> b t h d!, b s! h d!, b s! h d!"
)
_LONG = {"b": 2, "t": 144, "s": 144, "h": 2, "d": 4}  # more than two blocks of queries

EXAMPLES = (
    *(
        Example(
            kind="attention",
            labels="b t h d!, b s! h d!, b s! h d! -> b t h d!, b t h",
            formula=attention(causal),
            attributes={"causal": causal},
            sizes=sizes,
        )
        for causal in (True, False)
        for sizes in ({}, _LONG)
    ),
    *(
        Example(
            kind="attention_grad",
            labels=_GRAD_LABELS,
            formula=attention_grad(causal),
            derive=with_attention(causal),
            attributes={"causal": causal},
            sizes=sizes,
        )
        for causal in (True, False)
        for sizes in ({}, _LONG)
    ),
)  # fmt: skip
