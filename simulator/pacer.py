"""Pacer: one rank's host, and how fast the rank computes while its meetings move data.

What is moving is known until its end, so a firing's end is known unless more begins to move, and
then it only comes later. Work is counted in whole parts of a nanosecond, so that nothing depends on
how often it is counted; a firing ends at the first whole nanosecond at which its work is done.
"""

from millrace.planner.actors.graph import Leave, Program
from millrace.planner.costs.launch_overhead import Pacing, launch_offsets
from millrace.simulator.simulated_rank import Completion

SCALE = 10_000  # parts of a nanosecond; speeds are multiples of one ten-thousandth


def overlapped_speed(alone: float, overlap: float) -> int:
    """Speed, in parts, that an actor keeps while something moves.

    Of a part of a chunk only what computes alone is slowed: `alone / overlap + (1 - alone)` times
    as long.

    Parameters
    ----------
    alone : float
        Share of the actor's time, 0 to 1, in which no meeting inside it moves data (`Pace.alone`).
    overlap : float
        Share of its speed that what is computed keeps beside moving data (`Pacing.overlap`).

    Returns
    -------
    int
        Parts of a nanosecond's work per nanosecond; `SCALE` (10,000) is full speed.

    Examples
    --------
    >>> overlapped_speed(1.0, 0.8), overlapped_speed(0.5, 0.8), overlapped_speed(0.0, 0.8)
    (8000, 8889, 10000)
    """
    slowed = alone + (1 - alone) * overlap
    return round(SCALE * overlap / slowed) if slowed else SCALE


class Pacer:
    """The host and the speed of one rank.

    Parameters
    ----------
    program, pacing, index
        The rank's program, and what holds it back; the program's index there.
    """

    def __init__(self, program: Program, pacing: Pacing, index: int) -> None:
        row = pacing.rows[index]
        self._offsets = launch_offsets(program, row, pacing.host_ns)
        self._firings = [actor.firings for actor in program.actors]
        self._queue = [actor.queues[0] for actor in program.actors]
        self._step_begin_ns = [0] * len(program.queues)  # per compute queue, the begin of its step
        self._last = {q.order[-1] for q in program.queues if q.order and q.leave is Leave.COMPLETED}
        self._overlapped_speeds = [overlapped_speed(pace.alone, pacing.overlap) for pace in row]
        self._moving_until = 0
        self._under_way: list[Completion] = []

    def start(self, event: Completion, now: int, work_ns: int) -> tuple[int, int]:
        """Start a firing; return when it begins, and when it ends if no more begins to move."""
        actor, firing = event.actor, event.firing
        offset = self._offsets[actor][firing % self._firings[actor]]
        event.since = max(now, self._step_begin_ns[self._queue[actor]] + offset)
        event.left = work_ns * SCALE
        self._under_way.append(event)
        return event.since, self.end_ns(event)

    def moved_since(self, event: Completion) -> bool:
        """True if more moves than when the end of a firing was last asked for."""
        return event.moving_until != self._moving_until

    def end_ns(self, event: Completion) -> int:
        """End of a firing if no more begins to move."""
        event.moving_until = self._moving_until
        since, left, speed = event.since, event.left, self._overlapped_speeds[event.actor]
        slow = max(self._moving_until - since, 0)
        if left > slow * speed:
            return since + slow - (slow * speed - left) // SCALE
        return since - (-left // speed) if left else since

    def move(self, now: int, duration_ns: int) -> None:
        """Take note that a meeting moves data from now on."""
        for event in self._under_way:
            elapsed = now - event.since
            if elapsed > 0:
                slow = min(max(self._moving_until - event.since, 0), elapsed)
                done = slow * self._overlapped_speeds[event.actor] + (elapsed - slow) * SCALE
                event.left = max(event.left - done, 0)
                event.since = now
        self._moving_until = max(self._moving_until, now + duration_ns)

    def finish(self, event: Completion, now: int) -> None:
        """Take note that a firing is over."""
        self._under_way.remove(event)
        actor, firing = event.actor, event.firing
        if actor in self._last and (firing + 1) % self._firings[actor] == 0:
            self._step_begin_ns[self._queue[actor]] = now
