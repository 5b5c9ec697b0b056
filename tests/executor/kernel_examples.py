"""One example per op kind: labels, sizes, inputs, and what comes out by a plain formula.

Formulas are written in float64 from the definition, without the kernels' tricks. Labels: b batch,
t queries, s keys, h heads, d and k features, n made, v vocabulary, p positions.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from executor.kernels.context import Array
from models.labels import parse, shape_of

SIZES = {
    "b": 4, "t": 6, "s": 6, "h": 2, "d": 4, "k": 8, "n": 10, "v": 12, "p": 9, "c": 2,
    "i": 2, "j": 3, "z": 3,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Example:
    """One kind on small tensors.

    `ids` are the inputs that hold ids (-1 for no target, below v), `derive` replaces the random
    inputs by consistent ones, `formula` maps the inputs to the outputs.
    """

    kind: str
    labels: str
    formula: Callable[..., tuple[Array, ...] | Array]
    ids: tuple[int, ...] = ()
    lowest_id: int = -1
    attributes: dict[str, int | float | str | bool] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    derive: Callable[..., tuple[Array, ...]] = lambda *inputs: inputs

    @property
    def label_sizes(self) -> dict[str, int]:
        return SIZES | self.sizes

    def inputs(self, dtype: str, seed: int = 0) -> list[Array]:
        """Random inputs, made consistent; float ones in `dtype`."""
        rng = np.random.default_rng(seed)
        found = []
        for at, operand in enumerate(parse(self.labels).inputs):
            shape = shape_of(operand, self.label_sizes)
            if at in self.ids:
                vocab = self.label_sizes["v"]
                found.append(rng.integers(self.lowest_id, vocab, shape).astype(np.int32))
            else:
                found.append(rng.standard_normal(shape))
        derived = self.derive(*found)
        return [array if array.dtype == np.int32 else array.astype(dtype) for array in derived]

    def expected(self, inputs: list[Array]) -> tuple[Array, ...]:
        """The outputs by the formula, in float64."""
        wide = [a if a.dtype == np.int32 else a.astype(np.float64) for a in inputs]
        made = self.formula(*wide)
        return made if isinstance(made, tuple) else (np.asarray(made),)


def einsum(text: str) -> Callable[..., Array]:
    return lambda *inputs: np.einsum(text, *inputs)


def gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def gelu_grad(x: Array, dy: Array) -> Array:
    """By a complex step, which has no cancellation."""
    return dy * gelu(x + 1e-30j).imag / 1e-30


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


def one_hot(ids: Array, size: int) -> Array:
    """Rows of zeros where an id is negative."""
    return (ids[..., None] == np.arange(size)).astype(np.float64)


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


_GRAD_LABELS = (
    "b t h d!, b s! h d!, b s! h d!, b t h d!, b t h, b t h d! -> b t h d!, b s! h d!, b s! h d!"
)
_LONG = {"b": 2, "t": 144, "s": 144, "h": 2, "d": 4}  # more than two blocks of queries

EXAMPLES = (
    Example(kind="matmul", labels="b t k, k n -> b t n", formula=einsum("btk,kn->btn")),
    Example(kind="matmul", labels="b t n, k n -> b t k", formula=einsum("btn,kn->btk")),
    Example(kind="matmul", labels="b t k, b t n -> k n", formula=einsum("btk,btn->kn")),
    Example(kind="matmul", labels="b t k, k h d -> b t h d", formula=einsum("btk,khd->bthd")),
    Example(kind="matmul", labels="b t h d, h d n -> b t n", formula=einsum("bthd,hdn->btn")),
    Example(kind="matmul", labels="b t h d, k h d -> b t k", formula=einsum("bthd,khd->btk")),
    Example(kind="matmul", labels="b t k, b t h d -> k h d", formula=einsum("btk,bthd->khd")),
    Example(kind="matmul", labels="b t h d, b s h d -> b h t s", formula=einsum("bthd,bshd->bhts")),
    Example(kind="matmul", labels="b t k, d k h -> h b d t", formula=einsum("btk,dkh->hbdt")),
    Example(kind="matmul", labels="k, n -> n k", formula=einsum("k,n->nk")),
    Example(kind="matmul", labels="b k, b k -> ", formula=einsum("bk,bk->")),
    Example(kind="add", labels="b t n, n -> b t n", formula=lambda x, y: x + y),
    Example(kind="add", labels="b t d, t d -> b t d", formula=lambda x, y: x + y),
    Example(kind="add", labels="k n, k n, k n -> k n", formula=lambda x, y, z: x + y + z),
    Example(kind="add", labels="k n, n k -> n k", formula=lambda x, y: x.T + y),
    Example(kind="sum", labels="b t n -> n", formula=lambda x: x.sum((0, 1))),
    Example(kind="sum", labels="b t n -> b n", formula=lambda x: x.sum(1)),
    Example(kind="sum", labels="b t h -> h b", formula=lambda x: x.sum(1).T),
    Example(kind="sum", labels="b t -> ", formula=lambda x: x.sum()),
    Example(
        kind="rearrange", labels="b i j -> b (i j)", formula=lambda x: x.reshape(x.shape[0], -1)
    ),
    Example(
        kind="rearrange",
        labels="b t (h i) -> b h i t",
        formula=lambda x: x.reshape(4, 6, 2, 2).transpose(0, 2, 3, 1),
        sizes={"h": 2, "i": 2},
    ),
    Example(kind="narrow", labels="p! d -> t! d", formula=lambda x: x[:6], attributes={"start": 0}),
    Example(
        kind="widen",
        labels="t! d -> p! d",
        attributes={"start": 0},
        formula=lambda x: np.concatenate([x, np.zeros((3, x.shape[1]))]),
    ),
    Example(kind="cast", labels="k n -> k n", formula=lambda x: x),
    Example(kind="accumulate", labels="k n -> k n", formula=lambda x: x),
    Example(kind="relu", labels="b t n -> b t n", formula=lambda x: np.maximum(x, 0)),
    Example(kind="relu_grad", labels="n, n -> n", formula=lambda x, dy: np.where(x > 0, dy, 0)),
    Example(kind="gelu", labels="b t n -> b t n", formula=gelu),
    Example(kind="gelu_grad", labels="b t n, b t n -> b t n", formula=gelu_grad),
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
        kind="embedding",
        labels="b t, v d -> b t d",
        formula=lambda ids, table: table[ids],
        ids=(0,),
        lowest_id=0,
    ),
    Example(
        kind="embedding_grad",
        labels="b t, b t d -> v d",
        formula=lambda ids, dy: np.einsum("btv,btd->vd", one_hot(ids, 12), dy),
        ids=(0,),
        lowest_id=0,
    ),
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
)  # fmt: skip
