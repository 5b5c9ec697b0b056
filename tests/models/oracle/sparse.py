"""Sparse attention: a choice of keys, and attention to these, over whole matrices of scores."""

import numpy as np

from tests.models.oracle.call import Array, Call, Definition


def choose_keys(call: Call, query: Array, weights: Array, key: Array) -> Array:
    """Places of the largest sums of weighted products that are positive, in their order."""
    count = call.shape_out()[-1]
    products = np.einsum("btie,bse->btis", query, key)
    scores = np.einsum("bti,btis->bts", weights, np.where(products > 0, products, 0))
    chosen = np.full(call.shape_out(), -1)
    for sample, place in np.ndindex(*scores.shape[:2]):
        row = scores[sample, place, : place + 1]
        best = sorted(range(len(row)), key=lambda s: (-row[s], s))[:count]
        chosen[sample, place, count - len(best) :] = sorted(best)
    return chosen


def _weights(q: Array, k: Array, chosen: Array, scale: float) -> tuple[Array, Array]:
    """Probabilities [b t h s] and logsumexp, zero for keys that are not chosen."""
    scores = np.exp(scale * np.einsum("bthd,bsd->bths", q, k))
    seen = (chosen[..., None] == np.arange(k.shape[1])).any(-2)
    scores = scores * seen[:, :, None]
    total = scores.sum(-1)
    return scores / total[..., None], np.log(total)


def sparse_attention(
    call: Call, q: Array, k: Array, v: Array, chosen: Array
) -> tuple[Array, Array]:
    weights, logsumexp = _weights(q, k, chosen, call.attributes["scale"])
    return np.einsum("bths,bsu->bthu", weights, v), logsumexp


def sparse_attention_grad(call: Call, *inputs: Array) -> tuple[Array, ...]:
    q, k, v, chosen, out, _, dout = inputs
    scale = call.attributes["scale"]
    weights, _ = _weights(q, k, chosen, scale)
    of_weights = np.einsum("bthu,bsu->bths", dout, v)
    of_scores = scale * weights * (of_weights - (dout * out).sum(-1)[..., None])
    return (
        np.einsum("bths,bsd->bthd", of_scores, k),
        np.einsum("bths,bthd->bsd", of_scores, q),
        np.einsum("bths,bthu->bsu", weights, dout),
    )


SPARSE: dict[str, Definition] = {
    "choose_keys": choose_keys,
    "sparse_attention": sparse_attention,
    "sparse_attention_grad": sparse_attention_grad,
}
