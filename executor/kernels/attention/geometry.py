"""Geometry: the keys that a block of queries sees, and the sizes that forward and backward share.

b samples, t queries here, s keys, g groups of heads that share keys, r query heads of a group, d
head dim, u value dim. Queries may be a shard of the sequence: their offset shifts masks and
distances. Keys are whole, or the block of one device on a ring (`first_key`).
"""

from dataclasses import dataclass
from math import prod, sqrt

import numpy as np

from millrace.executor.errors import ExecutorError
from millrace.executor.kernels.context import Array, KernelContext
from millrace.planner.sbp import shard_offsets, split

QUERY_BLOCK = 64
"""Queries of a block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreMask:
    """Minus infinity or zero, added to the scores of `keys` (counted from the block's first)."""

    keys: slice
    values: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreBlock:
    """Queries `rows` see the keys `columns`; where only some of them do, `masks` say which.

    `queries` and `keys` are how many there are, `first` is the place of the first query, counted
    from the first key here. `blind`: some query sees no key at all.
    """

    rows: slice
    columns: slice
    queries: int
    keys: int
    first: int
    masks: tuple[ScoreMask, ...]
    blind: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """Sizes, scale and blocks; `windowed` where a block may not see the first keys."""

    samples: int
    queries: int
    keys: int
    groups: int
    repeats: int
    head_dim: int
    value_dim: int
    scale: float
    dtype: str
    blocks: tuple[ScoreBlock, ...]
    windowed: bool

    @property
    def heads(self) -> tuple[int, int, int, int]:
        """Samples, queries, groups and query heads of a group: the shape of the logsumexp."""
        return self.samples, self.queries, self.groups, self.repeats

    def rows(self, columns: int) -> Array:
        """Flat scratch for `columns` values of every query of a block."""
        queries = max(block.queries for block in self.blocks)
        return np.empty(self.groups * self.repeats * queries * columns, self.dtype)

    def scores(self) -> Array:
        """Flat scratch for the scores of the largest block."""
        return self.rows(max(block.keys for block in self.blocks))


def part(flat: Array, *shape: int) -> Array:
    """Beginning of flat scratch in this shape."""
    return flat[: prod(shape)].reshape(shape)


def geometry(context: KernelContext) -> Geometry:
    """Read the sizes off the shards and cut the queries into blocks.

    Raises
    ------
    ExecutorError
        The window hides every key from a query.
    """
    query, key, value = context.inputs[:3]
    samples, queries, groups, *repeats, head_dim = query.shape
    keys = key.shape[1]
    behind, ahead = reach(context)
    starts = range(0, queries, QUERY_BLOCK)
    offset = query.offsets[1] - first_key(context)
    blocks = tuple(
        _block(slice(start, min(start + QUERY_BLOCK, queries)), offset, keys, behind, ahead,
               query.dtype)
        for start in starts
    )  # fmt: skip
    return Geometry(
        samples=samples,
        queries=queries,
        keys=keys,
        groups=groups,
        repeats=prod(repeats),
        head_dim=head_dim,
        value_dim=value.shape[-1],
        scale=context.number("scale", 1 / sqrt(head_dim)),
        dtype=query.dtype,
        blocks=blocks,
        windowed=behind is not None,
    )


def reach(context: KernelContext) -> tuple[int | None, int | None]:
    """Distances behind and ahead that a query at t sees: the keys with -ahead < t - s < behind.

    None is without end.

    Raises
    ------
    ExecutorError
        The window hides every key from a query.
    """
    query, key = context.inputs[:2]
    window = int(context.attributes.get("window", 0))
    last, there = query.offsets[1] + query.shape[1] - 1, key.global_shape[1]
    if window and last - window + 1 >= there:
        raise ExecutorError(
            f"query {last} sees none of {there} keys through a window of {window}; widen it",
            actor=context.name,
        )
    behind = window or None
    return behind, 1 if context.attributes.get("causal", True) else behind


def first_key(context: KernelContext) -> int:
    """Place of the first key here in the whole sequence.

    After `round` rounds a device of a ring holds the block of the device that many places before.
    """
    key, rounds = context.inputs[1], int(context.attributes.get("round", 0))
    if not rounds:
        return key.offsets[1]
    sizes, sbp = context.axis_sizes, context.input_sbp[1]
    ring = [axis for axis, axis_sbp in enumerate(sbp) if axis_sbp == split(1)]
    here = [sizes[axis] for axis in ring]
    place = int(np.ravel_multi_index([context.coordinate[axis] for axis in ring], here))
    source = np.unravel_index((place - rounds) % prod(here), here)
    coordinate = list(context.coordinate)
    for axis, axis_coordinate in zip(ring, source, strict=True):
        coordinate[axis] = int(axis_coordinate)
    return shard_offsets(key.global_shape, sbp, sizes, tuple(coordinate))[1]


def _block(
    rows: slice, offset: int, keys: int, behind: int | None, ahead: int | None, dtype: str
) -> ScoreBlock:
    """Block of `rows`: a query at t sees the keys with -ahead < t - s < behind."""
    first, queries = offset + rows.start, rows.stop - rows.start
    last = first + queries - 1
    begin = 0 if behind is None else min(max(0, first - behind + 1), keys)
    end = keys if ahead is None else max(begin, min(last + ahead, keys))
    square = np.full((queries, queries), -np.inf, dtype)
    hidden = []
    if ahead is not None:
        # key number i from here on is hidden from the queries before number i
        hidden.append((first + ahead - 1, np.tril(square, -1)))
    if behind is not None:
        # and here from number i on
        hidden.append((first - behind, np.triu(square)))
    masks = []
    for start, values in hidden:
        low, high = max(start, begin), min(start + queries, end)
        if low < high:
            seen = values[low - start : high - start, None, :]
            masks.append(ScoreMask(keys=slice(low - begin, high - begin), values=seen))
    return ScoreBlock(
        rows=rows,
        columns=slice(begin, end),
        queries=queries,
        keys=end - begin,
        first=first,
        masks=tuple(masks),
        blind=(ahead is not None and first + ahead <= 0)
        or (behind is not None and last - behind + 1 >= keys),
    )
