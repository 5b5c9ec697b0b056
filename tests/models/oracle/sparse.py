"""Sparse attention: a choice of keys, and attention to these, over whole matrices of scores."""

import numpy as np

from tests.models.oracle.call import Array, Call, Definition


def choose_keys(call: Call, query: Array, weights: Array, key: Array) -> Array:
    """Places of the largest sums of weighted products that are positive, in their order."""
    window, stride = (call.attributes.get(name, 0) for name in ("window", "stride"))
    count = call.shape_out()[-1] - window
    products = np.einsum("btie,bse->btis", query, key)
    scores = np.einsum("bti,btis->bts", weights, np.where(products > 0, products, 0))
    chosen = np.full(call.shape_out(), -1)
    for sample, place in np.ndindex(*scores.shape[:2]):
        row = scores[sample, place, : (place + 1) // (stride or 1)]
        best = sorted(range(len(row)), key=lambda s: (-row[s], s))[:count]
        behind = query.shape[1] if window else 0
        _fill(chosen[sample, place], place, window, [behind + s for s in sorted(best)])
    return chosen


def _fill(row: Array, place: int, window: int, keys: list[int]) -> None:
    """Write the places of a window and of keys behind it to the end of a row."""
    seen = [*range(max(place + 1 - window, 0), place + 1), *keys] if window else keys
    row[len(row) - len(seen) :] = seen


def seen_keys(call: Call) -> Array:
    seen = np.full(call.shape_out(), -1)
    window, stride, tokens = (call.attributes[name] for name in ("window", "stride", "tokens"))
    for sample, place in np.ndindex(*seen.shape[:2]):
        keys = range(min((place + 1) // stride, seen.shape[-1] - window))
        _fill(seen[sample, place], place, window, [tokens + key for key in keys])
    return seen


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
    q, k, v, chosen, out, logsumexp, dout = inputs
    scale = call.attributes["scale"]
    weights, of_keys = _weights(q, k, chosen, scale)
    weights = weights * np.exp(of_keys - logsumexp)[..., None]  # less than one with a sink
    of_weights = np.einsum("bthu,bsu->bths", dout, v)
    of_scores = scale * weights * (of_weights - (dout * out).sum(-1)[..., None])
    return (
        np.einsum("bths,bsd->bthd", of_scores, k),
        np.einsum("bths,bthd->bsd", of_scores, q),
        np.einsum("bths,bthu->bsu", weights, dout),
    )


SPARSE: dict[str, Definition] = {
    "choose_keys": choose_keys,
    "seen_keys": seen_keys,
    "sparse_attention": sparse_attention,
    "sparse_attention_grad": sparse_attention_grad,
}
