"""Reductions in one order, whoever adds: a balanced tree over the members of a group.

The members of a span are halved at the largest power of two below their number, and each half is
reduced before the two are joined. Two or three members are so added in their order; of eight, the
first four and the last four have sums of their own. Where the ranks of a host are such a half, or
several, the host may add them up before it sends: what comes out is to the bit what one process
would have added.
"""

from collections.abc import Collection, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from millrace.models.arrays import Array

REDUCTIONS: dict[str, np.ufunc] = {"sum": np.add, "max": np.maximum}

Span = tuple[int, int]  # first member, and the one behind the last
BLOCK_BYTES = 2**18  # a target and two terms of it fit a core's second cache


class _Join(NamedTuple):
    """Join of two operands: numbers of terms, then those of buffers, the first being the target."""

    target: int
    first: int
    second: int


def spans_of(members: Collection[int], count: int) -> tuple[Span, ...]:
    """Spans, as large as they can be, whose sums these members of `count` make up among them.

    Examples
    --------
    >>> spans_of({0, 1, 2, 3}, 8)
    ((0, 4),)
    >>> spans_of({3, 4, 5}, 6)
    ((3, 4), (4, 6))
    """

    def cover(span: Span) -> tuple[Span, ...]:
        inside = sum(span[0] <= member < span[1] for member in members)
        if inside == span[1] - span[0]:
            return (span,)
        return tuple(part for half in halves(span) for part in cover(half)) if inside else ()

    return cover((0, count))


def halves(span: Span) -> tuple[Span, Span]:
    """Halves of a span of two or more members."""
    start, end = span
    middle = start + 2 ** ((end - start - 1).bit_length() - 1)
    return (start, middle), (middle, end)


def reduce_into(
    out: Array, terms: Sequence[Array], reduction: str, spans: tuple[Span, ...] | None = None
) -> None:
    """Reduce `terms` into `out` in the order of the tree.

    Parameters
    ----------
    out
        What is written; one of the terms may lie there, bit for bit.
    terms
        What the members send, in their order.
    reduction
        A key of `REDUCTIONS`.
    spans
        Members whose sum each term is already; None: a member each.
    """
    if len(terms) == 1:
        np.copyto(out, terms[0])
        return
    if spans is None:
        spans = _single(len(terms))
    operation, joins = REDUCTIONS[reduction], _joins(spans)
    buffers = max(join.target for join in joins) - len(terms)
    if len(joins) == 1 or out.nbytes <= BLOCK_BYTES:
        _reduce(operation, joins, [*terms, out], buffers)
        return
    places = [*terms, out]
    if all(place.flags.c_contiguous for place in places):
        places = [place.reshape(-1) for place in places]
    rows = places[-1].shape[0]
    step = max(1, BLOCK_BYTES * rows // out.nbytes)
    for start in range(0, rows, step):
        block = slice(start, start + step)
        _reduce(operation, joins, [place[block] for place in places], buffers)


def _reduce(operation: np.ufunc, joins: Sequence[_Join], places: list[Array], buffers: int) -> None:
    *terms, out = places
    target_place = out
    if len(joins) > 1 and any(np.may_share_memory(out, term) for term in terms):
        target_place = np.empty_like(out)  # the first joins would write over a term read later
    places = [*terms, target_place, *(np.empty_like(out) for _ in range(buffers))]
    for target, first, second in joins:
        operation(places[first], places[second], out=places[target])
    if target_place is not out:
        np.copyto(out, target_place)


@cache
def _single(count: int) -> tuple[Span, ...]:
    return tuple((member, member + 1) for member in range(count))


@cache
def _joins(spans: tuple[Span, ...]) -> tuple[_Join, ...]:
    """Joins that reduce terms of these spans into the place behind them; buffers come after it."""
    joins: list[_Join] = []
    number_of = {span: number for number, span in enumerate(spans)}

    def join(span: Span, target: int) -> int:
        if span in number_of:
            return number_of[span]
        first, second = halves(span)
        places = join(first, target), join(second, target + 1)
        joins.append(_Join(target, *places))
        return target

    join((spans[0][0], spans[-1][1]), len(spans))
    return tuple(joins)
