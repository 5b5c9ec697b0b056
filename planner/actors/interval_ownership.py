"""Interval ownership: each instant of a window counts for one of the intervals that cover it."""

from collections.abc import Hashable, Iterable
from heapq import heappop, heappush
from typing import NamedTuple


class OwnedInterval(NamedTuple):
    """Time from `start_ns` to `end_ns` of one owner; a lower `rank` goes before a higher one."""

    start_ns: int
    end_ns: int
    rank: int
    owner: Hashable


def covering_ns(
    intervals: Iterable[OwnedInterval], begin_ns: int, end_ns: int
) -> dict[Hashable, int]:
    """Nanoseconds of a window by the owner of the interval that covers them; the rest under None.

    An instant counts for the interval of lowest rank, of equals for the one that ends first.

    Parameters
    ----------
    intervals : iterable of OwnedInterval
        In any order; of one that reaches beyond the window, the part inside counts.
    begin_ns, end_ns : int
        The window, in nanoseconds on the clock of the intervals.

    Returns
    -------
    dict
        Owners that no instant counts for are left out, None too; the values add up to the window.

    Examples
    --------
    >>> work, moves = OwnedInterval(0, 4, 0, "work"), OwnedInterval(2, 7, 1, "moves")
    >>> covering_ns([work, moves], 0, 9)
    {'work': 4, 'moves': 3, None: 2}
    """
    coming = sorted(
        (
            interval
            for interval in intervals
            if interval.end_ns > begin_ns and interval.start_ns < end_ns
        ),
        key=lambda interval: -interval.start_ns,
    )
    owned_ns: dict[Hashable, int] = {}
    under_way: list[tuple[int, int, int, Hashable]] = []
    now, count = begin_ns, 0
    while now < end_ns:
        while coming and coming[-1].start_ns <= now:
            interval = coming.pop()
            heappush(under_way, (interval.rank, interval.end_ns, count, interval.owner))
            count += 1
        while under_way and under_way[0][1] <= now:
            heappop(under_way)
        upto = min(end_ns, coming[-1].start_ns) if coming else end_ns
        owner: Hashable = None
        if under_way:
            _, until, _, owner = under_way[0]
            upto = min(upto, until)
        owned_ns[owner] = owned_ns.get(owner, 0) + upto - now
        now = upto
    return owned_ns
