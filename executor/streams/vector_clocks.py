"""Clocks: what is known to be complete when a command of an in-order stream begins.

A clock counts, for every stream of a rank, how many of its commands are complete: a vector clock
(Mattern, "Virtual time and global states of distributed systems", 1989) with a stream for each
process and an event that is waited for as the message.
"""

from collections.abc import Iterable

Clock = tuple[int, ...]


class Clocks:
    """The clocks of one rank's commands, which are issued one after the other.

    Only streams and waits order anything. What ranks tell each other when they meet is left out:
    what is ordered without it is ordered by every transport.

    Parameters
    ----------
    streams
        Number of the rank's streams.
    """

    def __init__(self, streams: int) -> None:
        self._ends: list[Clock] = [(0,) * streams for _ in range(streams)]
        self._positions: dict[int, tuple[int, int]] = {}  # command → stream, place on it
        self._begin: dict[int, Clock] = {}
        self._end: dict[int, Clock] = {}

    def pruned(self, stream: int, needs: Iterable[int]) -> tuple[int, ...]:
        """Fewest of `needs` to wait for, so that the stream's next command is after all of them."""
        stream_clock = self._ends[stream]
        latest: dict[int, int] = {}
        for need in needs:
            other, place = self._positions[need]
            if place >= stream_clock[other] and (
                other not in latest or place > self._positions[latest[other]][1]
            ):
                latest[other] = need
        return tuple(
            sorted(
                need
                for need in latest.values()
                if not any(self.ends_after(other, need) for other in latest.values())
            )
        )

    def issue(self, command: int, stream: int, waits: Iterable[int]) -> None:
        """Add the next command of a stream."""
        begin = self._ends[stream]
        for other in waits:
            begin = tuple(map(max, begin, self._end[other]))
        place = self._ends[stream][stream]
        self._positions[command] = stream, place
        self._begin[command] = begin
        end = (*begin[:stream], place + 1, *begin[stream + 1 :])
        self._end[command] = self._ends[stream] = end

    def before(self, first: int, second: int) -> bool:
        """True if one command is complete before another begins."""
        stream, place = self._positions[first]
        return self._begin[second][stream] > place

    def ends_after(self, last: int, other: int) -> bool:
        """True if one command, another than `other`, ends only after that has."""
        stream, place = self._positions[other]
        return last != other and self._end[last][stream] > place
