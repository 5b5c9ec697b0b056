"""Shared cores: several jobs on one host, all running at the same rate.

With n runnable threads on C cores every thread runs at rate 1 if n is at most C, else at s C / n:
switches, caches that are filled anew and cores that an uneven share leaves idle make the *crowded
speed* s less than 1. All rates being equal, a job is done when the host's *progress* (what one
thread would have done since the start) has grown by the job's work, so only the earliest end need
be known. Progress is a whole number of parts of a nanosecond that every number of threads up to 64
divides, so that it is exact at full speed; a job ends at the first whole nanosecond at which its
work is done.

Notes
-----
Egalitarian processor sharing: Kleinrock, "Time-shared systems: a theoretical treatment", 1967.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from math import lcm

from simpy import Environment, Event

SCALE = lcm(*range(1, 65))
PARTS = 1000  # The crowded speed is a whole number of thousandths.

Done = Callable[[], object]


class SharedCores:
    """The cores of one host and the jobs on them.

    Parameters
    ----------
    env
        The simulated clock.
    cores
        Number of cores.
    crowded_speed
        Share of their speed that they have together where more threads run.
    """

    def __init__(self, env: Environment, cores: int, crowded_speed: float = 1.0) -> None:
        self.env = env
        self.cores = cores
        self._speed = round(PARTS * crowded_speed)
        self._threads = 0
        self._progress = 0
        self._advanced_at = 0
        self._jobs: list[tuple[int, int, int, Done]] = []  # end in progress, order, threads, done
        self._order = 0
        self._wake_at = -1
        self._planning = True

    def add(self, work_ns: int, threads: int, done: Done) -> None:
        """Start a job: `threads` threads with `work_ns` each; `done()` is called at its end."""
        self._advance()
        self._threads += threads
        heappush(self._jobs, (self._progress + work_ns * SCALE, self._order, threads, done))
        self._order += 1
        self._plan()

    def _advance(self) -> None:
        """Bring progress to the present."""
        now = int(self.env.now)
        if now == self._advanced_at:
            return
        elapsed = (now - self._advanced_at) * SCALE
        if self._threads > self.cores:
            elapsed = elapsed * self.cores * self._speed // (self._threads * PARTS)
        self._progress += elapsed
        self._advanced_at = now

    def _plan(self) -> None:
        """Wake at the earliest end, unless that or an earlier time is waited for already.

        A job that arrives later only delays the others: the wake-up that comes too early then
        plans anew.
        """
        if not self._jobs or not self._planning:
            return
        missing = max(self._jobs[0][0] - self._progress, 0)
        if self._threads > self.cores:
            delay = -(-missing * self._threads * PARTS // (SCALE * self.cores * self._speed))
        else:
            delay = -(-missing // SCALE)
        wake_at = self._advanced_at + delay
        if self._wake_at < 0 or wake_at < self._wake_at:
            self._wake_at = wake_at
            wake = self.env.timeout(delay)
            wake.callbacks.append(self._wake)

    def _wake(self, event: Event) -> None:
        if self.env.now != self._wake_at:
            return  # An earlier wake-up was planned after this one and has done its work.
        self._wake_at = -1
        self._advance()
        ended = []
        while self._jobs and self._jobs[0][0] <= self._progress:
            _, _, threads, done = heappop(self._jobs)
            self._threads -= threads
            ended.append(done)
        # What ends here mostly begins something else: when to wake next is known after that.
        self._planning = False
        for done in ended:
            done()
        self._planning = True
        self._plan()
