"""Sparse attention: keys chosen by an indexer, and attention to these, forward and backward.

b samples, t queries here (from the shard's offset on), s keys (all of them), h heads of queries
that share a key, c keys chosen for a query, d head dim, u value dim; i heads and e features of the
indexer. Products are of whole rows of keys, of which those that are not chosen are hidden: at the
lengths that one processor trains, faster than to bring the chosen ones together.
"""

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from millrace.executor.kernels.context import Array, Kernel, KernelContext

BLOCK_ELEMENTS = 1 << 18
"""Elements of the largest scratch of a block, which in float32 stays in a core's L2."""


SEEN = ("window", "stride", "tokens")
"""Attributes of `seen_keys`."""


def choose_keys(context: KernelContext) -> Kernel:
    """Kernel of the chosen keys' places, equals by the lower place, from (query, weights, key)."""
    samples, queries, heads, features = context.inputs[0].shape
    keys, first = context.inputs[2].shape[1], context.inputs[0].offsets[1]
    window, stride = int(context.number("window", 0)), int(context.number("stride", 1))
    count = context.outputs[0].shape[-1] - window
    behind = context.inputs[0].global_shape[1] if window else 0

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        query, weights, key = inputs
        for sample, rows in _blocks(samples, queries, heads * keys):
            products = query[sample, rows].reshape(-1, features) @ key[sample].T
            np.maximum(products, 0, out=products)
            apart = products.reshape(-1, heads, keys)
            scores = np.matmul(weights[sample, rows, None], apart)[:, 0]
            places = first + np.arange(rows.start, rows.stop)
            hidden = np.arange(keys) >= (places[:, None] + 1) // stride
            scores[hidden] = -np.inf
            order = np.argsort(-scores, axis=1, kind="stable")[:, :count]
            lacking = np.take_along_axis(hidden, order, 1)
            order += behind
            order[lacking] = -1
            outputs[0][sample, rows] = _after_window(places, window, order)

    return kernel


def seen_keys(context: KernelContext) -> Kernel:
    """Kernel of the places of tokens in a window, and of all keys behind the tokens."""
    (_, queries, count), first = context.outputs[0].shape, context.outputs[0].offsets[1]
    window, stride, tokens = (int(context.number(name, 1)) for name in SEEN)
    places = first + np.arange(queries)
    keys = np.arange(count - window)
    seen = np.where(keys < (places[:, None] + 1) // stride, tokens + keys, -1)
    table = _after_window(places, window, seen)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0][...] = table

    return kernel


def _after_window(places: Array, window: int, keys: Array) -> Array:
    """Places of a window up to each query's and then those of `keys`, in order; -1 is none."""
    near = places[:, None] - np.arange(window)
    joined = np.concatenate([np.maximum(near, -1), keys], axis=1)
    joined.sort(axis=1)
    return joined


def sparse_attention(context: KernelContext) -> Kernel:
    """Kernel of output and logsumexp from (q, k, v, chosen)."""
    sizes = _Sizes(context)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        query, key, value, chosen = inputs
        out, logsumexp = sizes.rows(outputs[0]), sizes.rows(outputs[1])
        for sample, rows in sizes.blocks():
            scores = sizes.scores(query, key, chosen, sample, rows)
            largest = np.maximum.reduce(scores, axis=2)
            np.exp(np.subtract(scores, largest[..., None], out=scores), out=scores)
            total = np.add.reduce(scores, axis=2)
            mixed = out[sample, rows]
            np.matmul(_merged(scores), value[sample], out=_merged(mixed))
            np.divide(mixed, total[..., None], out=mixed)
            np.add(np.log(total), largest, out=logsumexp[sample, rows, :, 0])

    return kernel


def sparse_attention_grad(context: KernelContext) -> Kernel:
    """Kernel of dq, dk and dv from (q, k, v, chosen, out, logsumexp, dout); as `backward.py`."""
    sizes = _Sizes(context)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        query, key, value, chosen = inputs[:4]
        out, logsumexp, dout = (sizes.rows(array) for array in inputs[4:])
        dq, dk, dv = sizes.rows(outputs[0]), *outputs[1:]
        dk.fill(0)
        dv.fill(0)
        for sample, rows in sizes.blocks():
            scores = sizes.scores(query, key, chosen, sample, rows)
            np.exp(np.subtract(scores, logsumexp[sample, rows], out=scores), out=scores)
            slope = dout[sample, rows]
            delta = np.vecdot(slope, out[sample, rows])
            dscores = np.matmul(_merged(slope), value[sample].T).reshape(scores.shape)
            np.subtract(dscores, delta[..., None], out=dscores)
            np.multiply(dscores, scores, out=dscores)
            np.multiply(dscores, sizes.scale, out=dscores)
            np.matmul(_merged(dscores), key[sample], out=_merged(dq[sample, rows]))
            dk[sample] += _merged(dscores).T @ _merged(sizes.rows(query)[sample, rows])
            dv[sample] += _merged(scores).T @ _merged(slope)

    return kernel


class _Sizes:
    """Sizes of an op, and the scores of its blocks of queries: whole rows, -inf for other keys."""

    def __init__(self, context: KernelContext) -> None:
        samples, queries, *heads, _ = context.inputs[0].shape
        self.scale = context.number("scale", 1.0)
        self._shape = (samples, queries, prod(heads))
        self._keys = context.inputs[1].shape[1]

    def rows(self, array: Array) -> Array:
        """Values of every query and head, as [b, t, h, columns]; one column where it has none."""
        return array.reshape(*self._shape, array.size // max(prod(self._shape), 1))

    def blocks(self) -> Iterator[tuple[int, slice]]:
        samples, queries, heads = self._shape
        return _blocks(samples, queries, heads * self._keys)

    def scores(self, query: Array, key: Array, chosen: Array, sample: int, rows: slice) -> Array:
        places = chosen[sample, rows]
        hidden = np.full((len(places), self._keys + 1), -np.inf, query.dtype)
        np.put_along_axis(hidden, places, 0, axis=1)  # a place that is none is the last
        scaled = _merged(self.rows(query)[sample, rows]) * self.scale
        scores: Array = np.matmul(scaled, key[sample].T).reshape(len(places), -1, self._keys)
        np.add(scores, hidden[:, None, :-1], out=scores)
        return scores


def _merged(rows: Array) -> Array:
    """Rows of queries and heads as one dim."""
    return rows.reshape(-1, rows.shape[-1])


def _blocks(samples: int, queries: int, each: int) -> Iterator[tuple[int, slice]]:
    """Blocks of queries of a sample, whose scratch has `each` elements for every query."""
    step = max(1, BLOCK_ELEMENTS // max(each, 1))
    for sample in range(samples):
        for start in range(0, queries, step):
            yield sample, slice(start, min(start + step, queries))
