"""Repeated blocks: which repetitions of a stream are such, and where a block begins.

A repetition of equal ops is a row of equal blocks only where the blocks are wired alike: an op
reads either the same place of its own block in every copy, or from outside its block in every copy.
Where the ops of a period repeat but reading reaches back a little, only some places to begin a
block will do. Among them the one is taken at which the fewest bytes cross from block to block.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from millrace.models.blocks.maximal_repetitions import Repetition, maximal_repetitions
from millrace.models.blocks.op_sequence import NEVER, Stream

# A pattern of blocks that are wired in turns has a period of a few blocks; more are not looked for.
TURNS_MAX = 4


class RepeatedBlocks(NamedTuple):
    """`times` equal pieces of the stream, each `period` ops long, the first at `start`."""

    start: int
    period: int
    times: int

    @property
    def stop(self) -> int:
        """The position behind the last copy."""
        return self.start + self.period * self.times


def find_repeated_blocks(stream: Stream) -> list[RepeatedBlocks]:
    """Return the repeated pieces of a stream in order; those that cover most are taken first."""
    candidates = _without_long_turns(maximal_repetitions(stream.word))
    copies: list[RepeatedBlocks] = []
    pending = [(0, len(stream.word))]
    while pending:
        low, high = pending.pop()
        best = _best(stream, candidates, low, high)
        if best is not None:
            copies.append(best)
            pending += [(low, best.start), (best.stop, high)]
    return sorted(copies)


def _without_long_turns(candidates: Iterable[Repetition]) -> list[Repetition]:
    """Leave out the many multiples of the period of one stretch."""
    smallest: dict[tuple[int, int], int] = {}
    for start, stop, period in candidates:
        shortest = smallest.get((start, stop), period)
        smallest[start, stop] = min(shortest, period)
    return [
        repetition
        for repetition in candidates
        if repetition.period <= TURNS_MAX * smallest[repetition.start, repetition.stop]
    ]


def _best(
    stream: Stream, candidates: Sequence[Repetition], low: int, high: int
) -> RepeatedBlocks | None:
    """Copies between two positions that cover most; of equal ones those of the shortest period."""
    clipped = [
        Repetition(max(start, low), min(stop, high), period)
        for start, stop, period in candidates
        if min(stop, high) - max(start, low) >= 2 * period
    ]
    clipped.sort(key=lambda repetition: (-_covered(repetition), repetition.period))
    best: RepeatedBlocks | None = None
    for repetition in clipped:
        covered = 0 if best is None else best.period * best.times
        if covered >= _covered(repetition):
            break
        copies = _cut_best(stream, repetition)
        # A longer period has to be worth it: a block more, not the rest of one.
        if copies and (not covered or copies.period * copies.times >= covered + copies.period):
            best = copies
    return best


def _covered(repetition: Repetition) -> int:
    return (repetition.stop - repetition.start) // repetition.period * repetition.period


def _cut_best(stream: Stream, repetition: Repetition) -> RepeatedBlocks | None:
    """Best way to cut one repetition into blocks that are trained, if there is any."""
    if not any(stream.trains[repetition.start : repetition.start + repetition.period]):
        return None
    obstacles = _obstacles(stream, repetition)
    ways = [
        _longest(repetition, obstacles, repetition.start + shift)
        for shift in range(repetition.period)
    ]
    most = max(way.times for way in ways)
    crossing = _crossing(stream, repetition)

    def cost(way: RepeatedBlocks) -> tuple[int, int, int, int]:
        middle = way.start + way.times // 2 * way.period
        return *crossing[middle - repetition.start], -way.times, -way.start

    # One block less is a fair price for a better place to cut.
    worthy = [way for way in ways if way.times >= max(2, most - 1)]
    return next((way for way in sorted(worthy, key=cost) if _is_chain(stream, way)), None)


def _obstacles(stream: Stream, repetition: Repetition) -> list[tuple[int, int, int]]:
    """Triples (position, low, high): no block that holds the position may begin in (low, high].

    Otherwise this op, or its like a period further on, reads from its own block where the other
    does not, or is read outside its block where the other is not.
    """
    obstacles: list[tuple[int, int, int]] = []
    period = repetition.period
    for position in range(repetition.start, repetition.stop - period):
        here, there = stream.reads[position], stream.reads[position + period]
        for first, second in zip(here, there, strict=True):
            high = max(first, second - period)
            if second - first != period and position - high < period:
                obstacles.append((position, NEVER, high))
        here, there = stream.lasts[position], stream.lasts[position + period]
        for first, second in zip(here, there, strict=True):
            low, high = sorted((first - period, second - 2 * period))
            if low != high and high > position - period:
                obstacles.append((position, low, high))
    return obstacles


def _longest(
    repetition: Repetition, obstacles: Sequence[tuple[int, int, int]], begin: int
) -> RepeatedBlocks:
    """Longest row of equal blocks of which one would begin at `begin`."""
    period = repetition.period
    broken = [
        position
        for position, low, high in obstacles
        if low < position - (position - begin) % period <= high
    ]
    best = RepeatedBlocks(begin, period, 0)
    for after, before in zip(
        [repetition.start, *(position + 1 for position in broken)],
        [*(position + period for position in broken), repetition.stop],
        strict=True,
    ):
        start = after + (begin - after) % period
        if (times := (before - start) // period) > best.times:
            best = RepeatedBlocks(start, period, times)
    return best


def _crossing(stream: Stream, repetition: Repetition) -> list[tuple[int, int]]:
    """Bytes and number of tensors that a cut would cross, per position of a repetition.

    What lives for a period or more crosses some border wherever the cuts are, and is left out.
    """
    size = repetition.stop - repetition.start + 1
    count, total = [0] * size, [0] * size
    for first, last, size_bytes in stream.spans:
        if last - first >= repetition.period or first < repetition.start or last >= repetition.stop:
            continue
        for place, sign in ((first + 1, 1), (last + 1, -1)):
            total[place - repetition.start] += sign * size_bytes
            count[place - repetition.start] += sign
    return list(zip(accumulate(total), accumulate(count), strict=True))


def _is_chain(stream: Stream, way: RepeatedBlocks) -> bool:
    """True if every block reads the one before it."""
    return any(
        way.start <= producer < way.start + way.period
        for position in range(way.start + way.period, way.start + 2 * way.period)
        for producer in stream.producers[position]
    )
