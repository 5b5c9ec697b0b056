"""The scores of a block of queries: scaled products, what is added to them, and masks.

Scores are held as [g, s, r, t] with queries innermost: the maximum over keys and what is
subtracted per query run along contiguous memory (three times as fast as rows of keys), and the
query heads of a group are one product with the keys they share. Shape legend as in `geometry.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, log2, prod

import numpy as np

from millrace.executor.kernels.attention.geometry import Block, Geometry, part
from millrace.executor.kernels.context import Array, KernelContext
from millrace.executor.kernels.dims import layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """A block with its scratch, every array in two shapes: heads apart, and merged for products.

    `query` is [g, r, t, d] or [g, r t, d], `scores` [g, s, r, t] or [g, s, r t].
    """

    block: Block
    query_apart: Array
    query: Array
    scores_apart: Array
    scores: Array


def rooms(found: Geometry) -> list[Room]:
    """Return the blocks with scratch for their queries and scores, which all of them share."""
    queries, scores = found.rows(found.head_dim), found.scores()
    made = []
    for block in found.blocks:
        query = part(queries, found.groups, found.repeats, block.queries, found.head_dim)
        score = part(scores, found.groups, block.keys, found.repeats, block.queries)
        made.append(
            Room(
                block=block,
                query_apart=query,
                query=query.reshape(found.groups, -1, found.head_dim),
                scores_apart=score,
                scores=score.reshape(found.groups, block.keys, found.repeats * block.queries),
            )
        )
    return made


Added = Callable[[Room, int, Sequence[Array]], None]
"""`added(room, sample, inputs)`: add to the scores of a block what a form of attention adds."""


def score(room: Room, key: Array) -> None:
    """Leave the products of the scaled queries with keys [g, s, d] in the room's scores."""
    np.matmul(key[:, room.block.columns], room.query.transpose(0, 2, 1), out=room.scores)


def hide(room: Room) -> None:
    """Give minus infinity to keys that a query does not see."""
    for mask in room.block.masks:
        hidden = room.scores_apart[:, mask.keys]
        np.add(hidden, mask.values, out=hidden)


def additions(context: KernelContext, found: Geometry, bias: int | None) -> list[Added]:
    """Return what is added to scaled products: distances times slopes, and input `bias`."""
    made: list[Added] = []
    slopes = head_slopes(context)
    if slopes is not None:
        made.append(_distances_added(found, slopes.astype(found.dtype)[:, None, :, None]))
    if bias is not None:
        view = BiasView(context, found, bias)

        def biased(room: Room, sample: int, inputs: Sequence[Array]) -> None:
            values = view.of(room.block, sample, inputs[bias])
            np.add(room.scores_apart, values, out=room.scores_apart)

        made.append(biased)
    return made


def alibi_slopes(heads: int, exponent: float) -> Array:
    """Return how fast the scores of every head fall with the distance.

    Head i of a power of two of heads has 2^(-exponent (i + 1) / heads); otherwise every second
    slope of the next power of two comes first, then the others.

    Notes
    -----
    Press et al., "Train short, test long", ICLR 2022, section 3, where the exponent is 8; other
    numbers of heads in the order of MPT's.
    """
    power = 1 << ceil(log2(heads))
    slopes = 2.0 ** (-exponent / power * np.arange(1, power + 1))
    return slopes if power == heads else np.concatenate([slopes[1::2], slopes[::2]])[:heads]


def head_slopes(context: KernelContext) -> Array | None:
    """Return the slopes of this rank's heads as [g, r]; None without `alibi`."""
    exponent = context.number("alibi", 0.0)
    if not exponent:
        return None
    query = context.inputs[0]
    whole, first = query.global_shape[2:-1], query.offsets[2:-1]
    slopes = alibi_slopes(prod(whole), exponent).reshape(whole[0], -1)
    repeat = first[1] if len(first) == 2 else 0
    groups, *repeats = query.shape[2:-1]
    here: Array = slopes[first[0] :, repeat:][:groups, : prod(repeats)]
    return here


def _distances_added(found: Geometry, slopes: Array) -> Added:
    """Take away slope · |t - s|; the distances of every block are a part of one array."""
    queries = max(block.queries for block in found.blocks)
    lowest = min(block.columns.start - block.first for block in found.blocks)
    highest = max(block.columns.stop - block.first for block in found.blocks)
    behind = np.subtract.outer(np.arange(lowest, highest), np.arange(queries))
    table = -np.abs(behind).astype(found.dtype)
    scratch = found.scores()

    def add(room: Room, sample: int, inputs: Sequence[Array]) -> None:
        block = room.block
        start = block.columns.start - block.first - lowest
        distances = table[start : start + block.keys, None, : block.queries]
        fallen = part(scratch, *room.scores_apart.shape)
        np.multiply(distances, slopes, out=fallen)
        np.add(room.scores_apart, fallen, out=room.scores_apart)

    return add


class BiasView:
    """An operand that is added to scores, seen as [b, g, s, r, t] with 1 for a dim it lacks.

    Parameters
    ----------
    context, found
        The kernel's context and sizes.
    at
        Which input it is; its gradient has the same labels.

    Attributes
    ----------
    shape
        Its shape as seen.
    lacks
        Which of [g, s, r, t] it lacks.
    """

    def __init__(self, context: KernelContext, found: Geometry, at: int) -> None:
        dims = layout(context)
        query, key, bias = dims.inputs[0], dims.inputs[1], dims.inputs[at]
        batch, queries, group, *repeat = query[:-1]
        order = [batch, group, key[1], *(repeat or [""]), queries]
        self._split = tuple(dims.sizes[label] for label in bias)
        self._order = tuple(bias.index(label) for label in order if label in bias)
        self.shape = tuple(dims.sizes[label] if label in bias else 1 for label in order)
        self._per_sample = batch in bias
        self.lacks = tuple(
            axis for axis, label in enumerate(order[1:]) if label and label not in bias
        )

    def of(self, block: Block, sample: int, array: Array) -> Array:
        """View what a block of a sample takes of the operand, [g, s, r, t]."""
        whole = array.reshape(self._split).transpose(self._order).reshape(self.shape)
        columns = slice(None) if 1 in self.lacks else block.columns
        rows = slice(None) if 3 in self.lacks else block.rows
        return whole[sample if self._per_sample else 0, :, columns, :, rows]
