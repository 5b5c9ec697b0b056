"""The scores of a block of queries: scaled products, what is added to them, and masks.

Scores are held as [g, s, r, t] with queries innermost: the maximum over keys and what is
subtracted per query run along contiguous memory (three times as fast as rows of keys), and the
query heads of a group are one product with the keys they share. Shape legend as in `geometry.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, log2, prod

import numpy as np

from millrace.executor.kernels.attention.geometry import Geometry, ScoreBlock, part
from millrace.executor.kernels.context import Array, KernelContext
from millrace.executor.kernels.dims import bind_operand_dims


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreScratch:
    """A block with its scratch, every array in two shapes: heads apart, and merged for products.

    `query` is [g, r, t, d] or [g, r t, d], `scores` [g, s, r, t] or [g, s, r t].
    """

    block: ScoreBlock
    query_apart: Array
    query: Array
    scores_apart: Array
    scores: Array


def rooms(sizes: Geometry) -> list[ScoreScratch]:
    """Blocks with scratch for their queries and scores, which all of them share."""
    queries, scores = sizes.rows(sizes.head_dim), sizes.scores()
    block_rooms = []
    for block in sizes.blocks:
        query = part(queries, sizes.groups, sizes.repeats, block.queries, sizes.head_dim)
        score = part(scores, sizes.groups, block.keys, sizes.repeats, block.queries)
        block_rooms.append(
            ScoreScratch(
                block=block,
                query_apart=query,
                query=query.reshape(sizes.groups, -1, sizes.head_dim),
                scores_apart=score,
                scores=score.reshape(sizes.groups, block.keys, sizes.repeats * block.queries),
            )
        )
    return block_rooms


Added = Callable[[ScoreScratch, int, Sequence[Array]], None]
"""`added(room, sample, inputs)`: add to the scores of a block what a form of attention adds."""


def score(room: ScoreScratch, key: Array) -> None:
    """Leave the products of the scaled queries with keys [g, s, d] in the room's scores."""
    np.matmul(key[:, room.block.columns], room.query.transpose(0, 2, 1), out=room.scores)


def hide(room: ScoreScratch) -> None:
    """Give minus infinity to keys that a query does not see."""
    for mask in room.block.masks:
        hidden = room.scores_apart[:, mask.keys]
        np.add(hidden, mask.values, out=hidden)


def additions(
    context: KernelContext, sizes: Geometry, bias: int | None, capped: Array | None = None
) -> list[Added]:
    """Functions that change scaled products: a cap, distances times slopes, and input `bias`.

    The slopes of the cap at the scores are left in `capped`, flat scratch of a block's scores.
    """
    adders: list[Added] = []
    if cap := context.number("cap", 0.0):
        adders.append(_capped(cap, capped))
    slopes = head_slopes(context)
    if slopes is not None:
        adders.append(_distances_added(sizes, slopes.astype(sizes.dtype)[:, None, :, None]))
    if bias is not None:
        view = BiasView(context, sizes, bias)

        def biased(room: ScoreScratch, sample: int, inputs: Sequence[Array]) -> None:
            values = view.of(room.block, sample, inputs[bias])
            np.add(room.scores_apart, values, out=room.scores_apart)

        adders.append(biased)
    return adders


def _capped(cap: float, slopes: Array | None) -> Added:
    """Function that makes scores x cap tanh(x / cap), whose slope is 1 - tanh(x / cap)^2."""

    def change(room: ScoreScratch, sample: int, inputs: Sequence[Array]) -> None:
        scores = room.scores
        np.tanh(np.multiply(scores, 1 / cap, out=scores), out=scores)
        if slopes is not None:
            squares = part(slopes, *scores.shape)
            np.subtract(1, np.multiply(scores, scores, out=squares), out=squares)
        np.multiply(scores, cap, out=scores)

    return change


def alibi_slopes(heads: int, exponent: float) -> Array:
    """Slopes with which the scores of every head fall with the distance.

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
    """Slopes of this rank's heads as [g, r]; None without `alibi`."""
    exponent = context.number("alibi", 0.0)
    if not exponent:
        return None
    query = context.inputs[0]
    global_heads, first = query.global_shape[2:-1], query.offsets[2:-1]
    slopes = alibi_slopes(prod(global_heads), exponent).reshape(global_heads[0], -1)
    repeat = first[1] if len(first) == 2 else 0
    groups, *repeats = query.shape[2:-1]
    here: Array = slopes[first[0] :, repeat:][:groups, : prod(repeats)]
    return here


def _distances_added(sizes: Geometry, slopes: Array) -> Added:
    """Function that takes away slope · |t - s|; all blocks' distances are parts of one array."""
    queries = max(block.queries for block in sizes.blocks)
    lowest = min(block.columns.start - block.first for block in sizes.blocks)
    highest = max(block.columns.stop - block.first for block in sizes.blocks)
    behind = np.subtract.outer(np.arange(lowest, highest), np.arange(queries))
    table = -np.abs(behind).astype(sizes.dtype)
    scratch = sizes.scores()

    def add(room: ScoreScratch, sample: int, inputs: Sequence[Array]) -> None:
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
    context, sizes
        The kernel's context and sizes.
    input_index
        Number of the input that it is; its gradient has the same labels.

    Attributes
    ----------
    shape
        Its shape as seen.
    lacks
        Those of [g, s, r, t] that it lacks.
    """

    def __init__(self, context: KernelContext, sizes: Geometry, input_index: int) -> None:
        dims = bind_operand_dims(context)
        query, key, bias = dims.inputs[0], dims.inputs[1], dims.inputs[input_index]
        batch, queries, group, *repeat = query[:-1]
        order = [batch, group, key[1], *(repeat or [""]), queries]
        self._split = tuple(dims.sizes[label] for label in bias)
        self._order = tuple(bias.index(label) for label in order if label in bias)
        self.shape = tuple(dims.sizes[label] if label in bias else 1 for label in order)
        self._per_sample = batch in bias
        self.lacks = tuple(
            axis for axis, label in enumerate(order[1:]) if label and label not in bias
        )

    def of(self, block: ScoreBlock, sample: int, array: Array) -> Array:
        """View what a block of a sample takes of the operand, [g, s, r, t]."""
        view = array.reshape(self._split).transpose(self._order).reshape(self.shape)
        columns = slice(None) if 1 in self.lacks else block.columns
        rows = slice(None) if 3 in self.lacks else block.rows
        return view[sample if self._per_sample else 0, :, columns, :, rows]
