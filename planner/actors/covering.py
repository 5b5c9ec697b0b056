"""Covering: which of many intervals a time counts for, so that every instant counts once."""

from collections.abc import Hashable, Iterable
from heapq import heappop, heappush
from typing import NamedTuple


class Interval(NamedTuple):
    """What is under way from `start_ns` to `end_ns`; a lower `rank` goes before a higher one."""

    start_ns: int
    end_ns: int
    rank: int
    owner: Hashable


def covering_ns(intervals: Iterable[Interval], begin_ns: int, end_ns: int) -> dict[Hashable, int]:
    """Split a window among the owners of the intervals that cover it; the rest is under None.

    An instant counts for the interval of lowest rank, of equals for the one that ends first.

    Examples
    --------
    >>> work, moves = Interval(0, 4, 0, "work"), Interval(2, 7, 1, "moves")
    >>> covering_ns([work, moves], 0, 9)
    {'work': 4, 'moves': 3, None: 2}
    """
    coming = sorted(
        (one for one in intervals if one.end_ns > begin_ns and one.start_ns < end_ns),
        key=lambda one: -one.start_ns,
    )
    found: dict[Hashable, int] = {}
    under_way: list[tuple[int, int, int, Hashable]] = []
    at, count = begin_ns, 0
    while at < end_ns:
        while coming and coming[-1].start_ns <= at:
            one = coming.pop()
            heappush(under_way, (one.rank, one.end_ns, count, one.owner))
            count += 1
        while under_way and under_way[0][1] <= at:
            heappop(under_way)
        upto = min(end_ns, coming[-1].start_ns) if coming else end_ns
        owner: Hashable = None
        if under_way:
            _, until, _, owner = under_way[0]
            upto = min(upto, until)
        found[owner] = found.get(owner, 0) + upto - at
        at = upto
    return found
