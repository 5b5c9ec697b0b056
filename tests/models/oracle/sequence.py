"""Embedding, rotary positions, T5's relative bias, and attention in all its forms."""

from math import log2

import numpy as np

from millrace.models.labels import SEQUENCE
from millrace.models.rotary import rotary_frequencies
from tests.models.oracle.call import Array, Call, Definition


def _rows(call: Call, ids: Array, row: str) -> Array:
    return (ids[..., None] == np.arange(call.sizes[row])).astype(float)


def embedding(call: Call, ids: Array, table: Array) -> Array:
    return _rows(call, ids, call.labels_in(1)[0]) @ table


def embedding_grad(call: Call, ids: Array, dy: Array) -> Array:
    row = call.labels_out()[0]
    ids = np.where(ids == call.attributes.get("padding", -1), -1, ids)
    hits = _rows(call, ids, row).reshape(-1, call.sizes[row])
    return np.asarray(hits.T @ dy.reshape(-1, dy.shape[-1]))


def rotary(call: Call, x: Array) -> Array:
    """x with pair i turned by position base^(-2i/n).

    Su et al., arXiv 2104.09864 (2021), section 3.2.2.
    """
    labels, dims = call.labels_in(0), call.attributes["dims"]
    if call.attributes.get("scaling"):
        paces = np.array(rotary_frequencies(call.attributes))
    else:
        paces = call.attributes["base"] ** (-2.0 * np.arange(dims // 2) / dims)
    sequence_dim = labels.index(SEQUENCE)
    place = np.arange(call.sizes[SEQUENCE])
    shape = [len(place) if n == sequence_dim else 1 for n in range(len(labels))]
    angle = place.reshape(shape) * (-paces if call.attributes["inverse"] else paces)
    both = np.arange(dims).reshape(-1, 2) if call.attributes["interleaved"] else None
    first, second = np.arange(dims).reshape(2, -1) if both is None else both.T
    out = x.copy()
    size = call.attributes.get("amplitude", 1.0)
    out[..., first] = size * (x[..., first] * np.cos(angle) - x[..., second] * np.sin(angle))
    out[..., second] = size * (x[..., second] * np.cos(angle) + x[..., first] * np.sin(angle))
    return out


def _buckets(call: Call, queries: str, keys: str, count: int) -> Array:
    """One hot [t, s, m], by Raffel et al., arXiv 1910.10683 (2020), section 2.1, in integers.

    The first half of a side's buckets hold one distance each; bucket half + i begins at distance
    half (largest / half)^(i / half).
    """
    ahead = np.arange(call.sizes[keys])[None, :] - np.arange(call.sizes[queries])[:, None]
    shift = np.zeros_like(ahead)
    distance = np.maximum(-ahead, 0)
    if call.attributes["bidirectional"]:
        count //= 2
        shift, distance = count * (ahead > 0), np.abs(ahead)
    half, largest = count // 2, call.attributes["max_distance"]
    rest = count - half
    begins = [
        min(n for n in range(half, largest + 1) if n**rest >= half ** (rest - i) * largest**i)
        for i in range(rest)
    ]
    wide = half - 1 + (distance[..., None] >= np.array(begins)).sum(-1)
    bucket = shift + np.where(distance < half, distance, wide)
    return np.asarray(bucket[..., None] == np.arange(bucket.max() + 1))


def relative_bias(call: Call, table: Array) -> Array:
    _, queries, keys = call.labels_out()
    hits = _buckets(call, queries, keys, table.shape[0])
    return np.einsum("tsm,mh->hts", hits.astype(float), table[: hits.shape[-1]])


def relative_bias_grad(call: Call, dy: Array) -> Array:
    _, queries, keys = call.labels_in(0)
    out = np.zeros(call.shape_out())
    hits = _buckets(call, queries, keys, out.shape[0])
    out[: hits.shape[-1]] = np.einsum("tsm,hts->mh", hits.astype(float), dy)
    return out


def alibi_slopes(heads: int, exponent: float) -> Array:
    """Slope of each head's bias.

    Press et al., arXiv 2108.12409 (2021), section 3; other than powers of two as MPT does.
    """
    power = 2 ** int(np.ceil(log2(heads)))
    slopes = [2 ** (-exponent * (head + 1) / power) for head in range(power)]
    return np.array(slopes if power == heads else [*slopes[1::2], *slopes[::2]][:heads])


def _scores(call: Call, inputs: tuple[Array, ...], bias: bool) -> tuple[Array, tuple[str, ...]]:
    """Scores of every query and key, and their labels (b, t, heads..., s)."""
    query, key = call.labels_in(0), call.labels_in(1)
    labels = (*query[:-1], key[1])
    scores = call.attributes["scale"] * call.einsum([(inputs[0], query), (inputs[1], key)], labels)
    if cap := call.attributes.get("cap", 0):
        scores = cap * np.tanh(scores / cap)
    if bias:
        scores = scores + call.aligned(inputs[3], call.labels_in(3), labels)
    return _masked(call, scores, labels, (query[1], *query[2:-1])), labels


def _masked(
    call: Call, scores: Array, labels: tuple[str, ...], query_labels: tuple[str, ...]
) -> Array:
    """Scores less what ALiBi takes away, minus infinity where hidden.

    `query_labels` are those of the queries and the heads.
    """
    queries, *heads = query_labels
    keys = labels[-1]
    behind = np.arange(call.sizes[queries])[:, None] - np.arange(call.sizes[keys])[None, :]
    shape = [call.sizes[label] if label in (queries, keys) else 1 for label in labels]
    if exponent := call.attributes.get("alibi", 0):
        slopes = alibi_slopes(int(np.prod([call.sizes[x] for x in heads])), exponent)
        over = call.aligned(slopes, tuple(heads), labels)
        scores = scores - over * np.abs(behind).reshape(shape)
    hidden = np.zeros(behind.shape, bool)
    if call.attributes["causal"]:
        hidden |= behind < 0
    if window := call.attributes.get("window", 0):
        hidden |= np.abs(behind) >= window
    return np.where(hidden.reshape(shape), -np.inf, scores)


def _forward(call: Call, inputs: tuple[Array, ...], bias: bool) -> tuple[Array, ...]:
    scores, labels = _scores(call, inputs, bias)
    logsumexp = np.log(np.exp(scores).sum(-1))
    weights = np.exp(scores - logsumexp[..., None])
    out = call.einsum([(weights, labels), (inputs[2], call.labels_in(2))], call.labels_out())
    return out, logsumexp


def _backward(call: Call, inputs: tuple[Array, ...], bias: bool) -> tuple[Array, ...]:
    scores, labels = _scores(call, inputs, bias)
    query, key, value = (call.labels_in(index) for index in range(3))
    out, logsumexp, dout = inputs[-3:]
    weights = np.exp(scores - logsumexp[..., None])
    out_labels = call.labels_in(len(inputs) - 1)
    of_weights = call.einsum([(dout, out_labels), (inputs[2], value)], labels)
    of_scores = weights * (of_weights - (dout * out).sum(-1)[..., None])
    scaled = of_scores * call.attributes["scale"]
    if cap := call.attributes.get("cap", 0):
        plain = call.einsum([(inputs[0], query), (inputs[1], key)], labels)
        scaled = scaled * (1 - np.tanh(call.attributes["scale"] * plain / cap) ** 2)
    gradients = (
        call.einsum([(scaled, labels), (inputs[1], key)], query),
        call.einsum([(scaled, labels), (inputs[0], query)], key),
        call.einsum([(weights, labels), (dout, out_labels)], value),
    )
    return (
        (*gradients, call.einsum([(of_scores, labels)], call.labels_in(3))) if bias else gradients
    )


def attention(call: Call, *inputs: Array) -> tuple[Array, ...]:
    return _forward(call, inputs, False)


def attention_grad(call: Call, *inputs: Array) -> tuple[Array, ...]:
    return _backward(call, inputs, False)


def biased_attention(call: Call, *inputs: Array) -> tuple[Array, ...]:
    return _forward(call, inputs, True)


def biased_attention_grad(call: Call, *inputs: Array) -> tuple[Array, ...]:
    return _backward(call, inputs, True)


def masked_softmax(call: Call, x: Array, *sinks: Array) -> Array:
    labels = call.labels_in(0)
    _, *heads, queries, _ = labels
    scores = _masked(call, call.attributes["scale"] * x, labels, (queries, *heads))
    total = np.exp(scores).sum(-1, keepdims=True)
    for sink in sinks:
        total = total + call.aligned(np.exp(sink), tuple(heads), labels)
    return np.asarray(np.exp(scores) / total)


def masked_softmax_grad_sink(call: Call, y: Array, dy: Array) -> Array:
    rows = -(1 - y.sum(-1)) * (y * dy).sum(-1)
    return call.einsum([(rows, call.labels_in(0)[:-1])], call.labels_out())


def attention_sink(call: Call, out: Array, logsumexp: Array, sink: Array) -> tuple[Array, Array]:
    """Attention's output times the share of its keys among these and the sink."""
    total = np.exp(logsumexp) + np.exp(sink)
    return out * (np.exp(logsumexp) / total)[..., None], np.log(total)


def attention_sink_grad(
    call: Call, out: Array, logsumexp: Array, sink: Array, dout: Array
) -> Array:
    rows = -np.exp(sink - logsumexp) * (out * dout).sum(-1)
    return call.einsum([(rows, call.labels_in(1))], call.labels_out())


def masked_softmax_grad(call: Call, y: Array, dy: Array) -> Array:
    along = np.einsum("...s,...s->...", y, dy)
    return np.asarray(call.attributes["scale"] * (y * dy - y * along[..., None]))


def attention_round(call: Call, *inputs: Array) -> tuple[Array, ...]:
    """Attention to these keys and those before; each part counts by its sum of exponentials."""
    out, logsumexp = _forward(call, inputs[:3], False)
    total = np.exp(logsumexp) + np.exp(inputs[4])
    share = (np.exp(logsumexp) / total)[..., None]
    return share * out + (1 - share) * inputs[3], np.log(total)


def attention_grad_round(call: Call, *inputs: Array) -> tuple[Array, ...]:
    query, key, value = _backward(call, inputs[:6], False)
    return query + inputs[6], key, value


SEQUENCES: dict[str, Definition] = {
    "embedding": embedding,
    "embedding_grad": embedding_grad,
    "rotary": rotary,
    "relative_bias": relative_bias,
    "relative_bias_grad": relative_bias_grad,
    "attention": attention,
    "attention_grad": attention_grad,
    "attention_sink": attention_sink,
    "attention_sink_grad": attention_sink_grad,
    "masked_softmax": masked_softmax,
    "masked_softmax_grad": masked_softmax_grad,
    "masked_softmax_grad_sink": masked_softmax_grad_sink,
    "attention_round": attention_round,
    "attention_grad_round": attention_grad_round,
    "biased_attention": biased_attention,
    "biased_attention_grad": biased_attention_grad,
}
