"""Which repetitions of a stream are repeated blocks, and where in the period a block begins.

A repetition of equal ops is a row of equal blocks only where the blocks are wired alike: an op
reads either the same place of its own block in every copy, or from outside its block in every copy.
Where the ops of a period repeat but reading reaches back a little, only some places to begin a
block will do. Among them the one is taken at which the fewest bytes cross from block to block.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from millrace.models.blocks.repeats import Repetition, repetitions
from millrace.models.blocks.stream import NEVER, Stream

# A pattern of blocks that are wired in turns has a period of a few blocks; more are not looked for.
TURNS_MAX = 4


class Copies(NamedTuple):
    """`times` equal pieces of the stream, each `period` ops long, the first at `start`."""

    start: int
    period: int
    times: int

    @property
    def stop(self) -> int:
        """The position behind the last copy."""
        return self.start + self.period * self.times


def find_copies(stream: Stream) -> list[Copies]:
    """Return the repeated pieces of a stream in order; those that cover most are taken first."""
    candidates = _without_long_turns(repetitions(stream.word))
    found: list[Copies] = []
    pending = [(0, len(stream.word))]
    while pending:
        low, high = pending.pop()
        best = _best(stream, candidates, low, high)
        if best is not None:
            found.append(best)
            pending += [(low, best.start), (best.stop, high)]
    return sorted(found)


def _without_long_turns(found: Iterable[Repetition]) -> list[Repetition]:
    """Leave out the many multiples of the period of one stretch."""
    smallest: dict[tuple[int, int], int] = {}
    for start, stop, period in found:
        known = smallest.get((start, stop), period)
        smallest[start, stop] = min(known, period)
    return [one for one in found if one.period <= TURNS_MAX * smallest[one.start, one.stop]]


def _best(stream: Stream, candidates: Sequence[Repetition], low: int, high: int) -> Copies | None:
    """The copies between two positions that cover most; of equal ones the shortest period."""
    clipped = [
        Repetition(max(start, low), min(stop, high), period)
        for start, stop, period in candidates
        if min(stop, high) - max(start, low) >= 2 * period
    ]
    clipped.sort(key=lambda one: (-_covered(one), one.period))
    best: Copies | None = None
    for one in clipped:
        covered = 0 if best is None else best.period * best.times
        if covered >= _covered(one):
            break
        made = _cut_best(stream, one)
        # A longer period has to be worth it: a block more, not the rest of one.
        if made and (not covered or made.period * made.times >= covered + made.period):
            best = made
    return best


def _covered(one: Repetition) -> int:
    return (one.stop - one.start) // one.period * one.period


def _cut_best(stream: Stream, one: Repetition) -> Copies | None:
    """The best way to cut one repetition into blocks that are trained, if there is any."""
    if not any(stream.trains[one.start : one.start + one.period]):
        return None
    obstacles = _obstacles(stream, one)
    ways = [_longest(one, obstacles, one.start + shift) for shift in range(one.period)]
    most = max(way.times for way in ways)
    crossing = _crossing(stream, one)

    def cost(way: Copies) -> tuple[int, int, int, int]:
        middle = way.start + way.times // 2 * way.period
        return *crossing[middle - one.start], -way.times, -way.start

    # One block less is a fair price for a better place to cut.
    worthy = [way for way in ways if way.times >= max(2, most - 1)]
    return next((way for way in sorted(worthy, key=cost) if _is_chain(stream, way)), None)


def _obstacles(stream: Stream, one: Repetition) -> list[tuple[int, int, int]]:
    """Triples (position, low, high): no block that holds the position may begin in (low, high].

    Otherwise this op, or its like a period further on, reads from its own block where the other
    does not, or is read outside its block where the other is not.
    """
    found: list[tuple[int, int, int]] = []
    period = one.period
    for position in range(one.start, one.stop - period):
        here, there = stream.reads[position], stream.reads[position + period]
        for first, second in zip(here, there, strict=True):
            high = max(first, second - period)
            if second - first != period and position - high < period:
                found.append((position, NEVER, high))
        here, there = stream.lasts[position], stream.lasts[position + period]
        for first, second in zip(here, there, strict=True):
            low, high = sorted((first - period, second - 2 * period))
            if low != high and high > position - period:
                found.append((position, low, high))
    return found


def _longest(one: Repetition, obstacles: Sequence[tuple[int, int, int]], begin: int) -> Copies:
    """The longest row of equal blocks of which one would begin at `begin`."""
    period = one.period
    broken = [
        position
        for position, low, high in obstacles
        if low < position - (position - begin) % period <= high
    ]
    best = Copies(begin, period, 0)
    for after, before in zip(
        [one.start, *(position + 1 for position in broken)],
        [*(position + period for position in broken), one.stop],
        strict=True,
    ):
        start = after + (begin - after) % period
        if (times := (before - start) // period) > best.times:
            best = Copies(start, period, times)
    return best


def _crossing(stream: Stream, one: Repetition) -> list[tuple[int, int]]:
    """Per position of a repetition: bytes and number of tensors that a cut there would cross.

    What lives for a period or more crosses some border wherever the cuts are, and is left out.
    """
    size = one.stop - one.start + 1
    count, total = [0] * size, [0] * size
    for first, last, size_bytes in stream.spans:
        if last - first >= one.period or first < one.start or last >= one.stop:
            continue
        for place, sign in ((first + 1, 1), (last + 1, -1)):
            total[place - one.start] += sign * size_bytes
            count[place - one.start] += sign
    return list(zip(accumulate(total), accumulate(count), strict=True))


def _is_chain(stream: Stream, way: Copies) -> bool:
    """Whether every block reads the one before it."""
    return any(
        way.start <= made < way.start + way.period
        for position in range(way.start + way.period, way.start + 2 * way.period)
        for made in stream.producers[position]
    )
