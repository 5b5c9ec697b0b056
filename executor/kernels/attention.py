"""Attention and its gradient, recomputing the probabilities from the logsumexp of every query.

b samples, t queries here, s keys, h heads, d head dim. Work goes sample by sample and by blocks of
queries, so that the scores of a block stay in the cache and a causal block computes only the keys
that some of its queries see. Scores are held as [h, s, block]: with queries innermost, the maximum
over keys and what is subtracted per query run along contiguous memory (three times as fast as
rows of keys). Queries may be a shard of the sequence: their offset shifts the mask. Keys are whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from executor.kernels.context import Array, Kernel, KernelContext

QUERY_BLOCK = 64
"""Queries of a block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """Queries `start:stop` see the keys below `keys`; those from `masked` on only in part."""

    start: int
    stop: int
    keys: int
    masked: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Geometry:
    """Sizes, scale, blocks and mask that forward and backward share."""

    samples: int
    queries: int
    keys: int
    heads: int
    head_dim: int
    scale: float
    dtype: str
    blocks: tuple[_Block, ...]
    mask: Array

    @property
    def block(self) -> int:
        """Queries of the largest block."""
        return min(QUERY_BLOCK, self.queries)

    @property
    def scores_shape(self) -> tuple[int, int, int]:
        """Shape of the scores of the largest block."""
        return self.heads, self.keys, self.block


def _geometry(context: KernelContext) -> _Geometry:
    """Read the sizes off the shards and cut the queries into blocks."""
    query, key = context.inputs[0], context.inputs[1]
    samples, queries, heads, head_dim = query.shape
    keys = key.shape[1]
    causal = bool(context.attributes.get("causal", True))
    blocks = []
    for start in range(0, queries, QUERY_BLOCK):
        stop = min(start + QUERY_BLOCK, queries)
        first = query.offsets[1] + start
        if causal:
            blocks.append(
                _Block(
                    start=start,
                    stop=stop,
                    keys=min(first + stop - start, keys),
                    masked=min(first, keys),
                )
            )
        else:
            blocks.append(_Block(start=start, stop=stop, keys=keys, masked=keys))
    return _Geometry(
        samples=samples,
        queries=queries,
        keys=keys,
        heads=heads,
        head_dim=head_dim,
        scale=context.number("scale", 1 / sqrt(head_dim)),
        dtype=query.dtype,
        blocks=tuple(blocks),
        mask=np.tril(np.full((QUERY_BLOCK, QUERY_BLOCK), -np.inf, query.dtype), -1),
    )


def _scores(block: _Block, found: _Geometry, q: Array, k: Array, out: Array) -> Array:
    """Return the masked scores [h, keys, block] of scaled queries q [h, block, d], inside `out`."""
    scores = out[:, : block.keys, : block.stop - block.start]
    np.matmul(k[: block.keys].transpose(1, 0, 2), q.transpose(0, 2, 1), out=scores)
    if block.masked < block.keys:
        part = scores[:, block.masked :]
        np.add(part, found.mask[: part.shape[1], : part.shape[2]], out=part)
    return scores


def attention(context: KernelContext) -> Kernel:
    """Return the output and the logsumexp of the scores of every query, of (q, k, v)."""
    found = _geometry(context)
    buffer = np.empty(found.scores_shape, found.dtype)
    scaled = np.empty((found.heads, found.block, found.head_dim), found.dtype)
    ones = np.ones((1, found.keys), found.dtype)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        for sample in range(found.samples):
            q, k, v = (array[sample] for array in inputs)
            out, logsumexp = outputs[0][sample], outputs[1][sample]
            for block in found.blocks:
                rows = slice(block.start, block.stop)
                query = scaled[:, : block.stop - block.start]
                np.multiply(q[rows].transpose(1, 0, 2), found.scale, out=query)
                scores = _scores(block, found, query, k, buffer)
                largest = np.maximum.reduce(scores, axis=1)
                np.subtract(scores, largest[:, None, :], out=scores)
                np.exp(scores, out=scores)
                total = np.matmul(ones[:, : block.keys], scores)[:, 0]
                mixed = out[rows].transpose(1, 0, 2)
                np.matmul(scores.transpose(0, 2, 1), v[: block.keys].transpose(1, 0, 2), out=mixed)
                np.divide(mixed, total[:, :, None], out=mixed)
                np.log(total, out=total)
                np.add(total, largest, out=logsumexp[rows].T)

    return kernel


def attention_grad(context: KernelContext) -> Kernel:
    """Return dq, dk and dv of (q, k, v, out, logsumexp, dout).

    With P = exp(scores − logsumexp) and D = Σ_d dout · out per query (Dao 2022, appendix B.2):
    dv = Pᵀ dout, dS = P · (dout vᵀ − D), dq = scale · dS k, dk = scale · dSᵀ q. Blocks go from
    the last query to the first: in a causal sequence the last block sees the most keys and writes
    dk and dv, earlier ones add to them.
    """
    found = _geometry(context)
    probabilities_buffer, scores_buffer = (
        np.empty(found.scores_shape, found.dtype) for _ in range(2)
    )
    block_shape = (found.heads, found.block, found.head_dim)
    scaled, products = (np.empty(block_shape, found.dtype) for _ in range(2))
    added = np.empty((found.heads, found.keys, found.head_dim), found.dtype)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        for sample in range(found.samples):
            q, k, v, out, logsumexp, dout = (array[sample] for array in inputs)
            dq, dk, dv = (array[sample] for array in outputs)
            written = 0
            for block in reversed(found.blocks):
                rows = slice(block.start, block.stop)
                count = block.stop - block.start
                query, product = scaled[:, :count], products[:, :count]
                np.multiply(q[rows].transpose(1, 0, 2), found.scale, out=query)
                probabilities = _scores(block, found, query, k, probabilities_buffer)
                np.subtract(probabilities, logsumexp[rows].T[:, None, :], out=probabilities)
                np.exp(probabilities, out=probabilities)
                slope = dout[rows].transpose(1, 0, 2)
                _add_to(dv, probabilities, slope, written, added)
                np.multiply(slope, out[rows].transpose(1, 0, 2), out=product)
                weighted = np.add.reduce(product, axis=2)
                scores = scores_buffer[:, : block.keys, :count]
                np.matmul(v[: block.keys].transpose(1, 0, 2), slope.transpose(0, 2, 1), out=scores)
                np.subtract(scores, weighted[:, None, :], out=scores)
                np.multiply(scores, probabilities, out=scores)
                _add_to(dk, scores, query, written, added)
                mixed = dq[rows].transpose(1, 0, 2)
                np.matmul(scores.transpose(0, 2, 1), k[: block.keys].transpose(1, 0, 2), out=mixed)
                np.multiply(mixed, found.scale, out=mixed)
                written = max(written, block.keys)
            dk[written:] = 0
            dv[written:] = 0

    return kernel


def _add_to(total: Array, weights: Array, rows: Array, written: int, added: Array) -> None:
    """Add weights @ rows [h, keys, d] to total [s, h, d], of which `written` keys hold values."""
    keys = weights.shape[1]
    target = total[:keys].transpose(1, 0, 2)
    if written == 0:
        np.matmul(weights, rows, out=target)
        return
    np.add(target, np.matmul(weights, rows, out=added[:, :keys]), out=target)
