"""Counting: how many versions of what a chunk keeps are alive at once, by the order of its stage.

A version is made in a forward or a backward, and kept until the last slot that reads it. So there
are three lifetimes: from F to B, from F to W and from B to W; where gradients of weights are made
together with those of inputs, the first two are equal and the third is nothing. During a slot a
version is alive that was made in it or before, and was not read for the last time before it.

Shapes: S stages, C chunks on the stage, N slots of a stage, K moments.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from millrace.planner.schedules.orders import PARTS, TurnRule, indices_of, ordered_pieces

Shorts = NDArray[np.int16]

LIFETIMES = (("F", "B"), ("F", "W"), ("B", "W"))
MAKES = np.array([[part == first for part in PARTS] for first, _ in LIFETIMES], np.int16)
READ_LAST = np.array([[last in part for part in PARTS] for _, last in LIFETIMES], np.int16)
READ_LAST[2, PARTS.index("BW")] = 0  # nothing is kept from one half of a slot to the other


@lru_cache(maxsize=16)
def alive(
    rule: TurnRule, stages: int, chunks: int, microbatches: int, exchanged: bool = False
) -> Shorts:
    """Versions alive during every slot of every stage: [C, 3 lifetimes, N, S].

    `exchanged`: gradients of inputs give back, block by block, what they read for the last time,
    and what they make for deferred gradients of weights takes its place.
    """
    (part, chunk, _), orders = ordered_pieces(rule, indices_of(stages, chunks, microbatches))
    deferred = PARTS.index("W") in part
    lifetimes = slice(None if deferred else 1)  # the second is as the first where none is deferred
    here = chunk == np.arange(chunks)[:, None, None]
    versions_made, read_last = (here * table[lifetimes, part] for table in (MAKES, READ_LAST))
    piece_order = np.ascontiguousarray(orders.T)
    changes = np.take(versions_made, piece_order, axis=2)
    changes[:, :, 1:] -= np.take(read_last, piece_order[:-1], axis=2)
    counts: Shorts = np.cumsum(changes, axis=2, out=changes)
    if exchanged and deferred:
        counts[:, 0] -= np.take(read_last[:, 0], piece_order, axis=1)
    if not deferred:
        counts = np.concatenate([counts, counts, np.zeros_like(counts)], axis=1)
    counts.setflags(write=False)
    return counts


def undominated(counts: Shorts) -> tuple[Shorts, ...]:
    """Moments [K, C, 3] of every stage that no other moment exceeds in every count of `alive`."""
    chunks, lifetimes, slots, stages = counts.shape
    counts = np.swapaxes(counts, 2, 3).reshape(chunks * lifetimes, -1)
    joint = not counts[lifetimes - 1 :: lifetimes].any()
    rows = counts[::lifetimes] if joint else counts  # the first two lifetimes are equal then
    candidates = np.arange(stages * slots)
    # Most moments are below one nearby. What is left is little enough to compare all with all.
    for lag in (1, 1, 2):
        rows, candidates = _thinned(rows, candidates, candidates // slots, lag)
    _, first = np.unique(_numbered([candidates // slots, *rows]), return_index=True)
    first.sort()
    rows, candidates = rows[:, first], candidates[first]
    # Moments in a table [S, K] as long as any stage's, with zeros where a stage has fewer.
    stage = candidates // slots
    begins = np.searchsorted(stage, np.arange(stages))
    place = np.arange(len(candidates)) - begins[stage]
    above = np.ones((stages, place.max() + 1, place.max() + 1), np.bool_)
    table = np.zeros(above.shape[:2], np.int16)
    for row in rows:
        table[stage, place] = row
        above &= table[:, None, :] >= table[:, :, None]
    alone = above.sum(axis=2)[stage, place] == 1  # nothing is above it but itself
    moments = np.take(counts, candidates[alone], axis=1).T.reshape(-1, chunks, lifetimes)
    return tuple(np.split(moments, np.cumsum(np.bincount(stage[alone]))[:-1]))


def _thinned(
    rows: Shorts, candidates: NDArray[np.int64], stage: NDArray[np.int64], lag: int
) -> tuple[Shorts, NDArray[np.int64]]:
    """Rows and candidates less the moments below the one `lag` later, or before, in every count.

    Of two that are equal the later one stays.
    """
    other = stage[lag:] != stage[:-lag]
    later, before = rows[:, lag:], rows[:, :-lag]
    falls = (later < before).any(axis=0)
    rises = (later > before).any(axis=0)
    stays = np.ones(len(stage), np.bool_)
    stays[:-lag] &= falls | other
    stays[lag:] &= rises | other | ~falls
    survivors = np.flatnonzero(stays)
    return np.take(rows, survivors, axis=1), candidates[survivors]


def _numbered(columns: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Number of every row of `columns`, equal for equal rows."""
    number, count = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        size = int(column.max(initial=0)) + 1
        if count * size > 2**62:
            values, number = np.unique(number, return_inverse=True)
            count = len(values)
        number, count = number * size + column, count * size
    return number
