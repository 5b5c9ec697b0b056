"""Run queue: how long the thread that carries out meetings had no core.

Linux counts for every thread the nanoseconds in which it could have run and no core was free
(`/proc/thread-self/schedstat`, the second number; Documentation/scheduler/sched-stats.rst of Linux
6.18, read 2026-11).
"""

import os
from contextlib import suppress

_COUNTERS = "/proc/thread-self/schedstat"


class RunQueueWaits:
    """Waits for a core of the thread that asks, one after the other."""

    def __init__(self) -> None:
        self._file: int | None = None
        self._waited_ns = 0

    def lap_ns(self) -> int | None:
        """Nanoseconds without a core since the last call; None where the system does not count."""
        with suppress(OSError, IndexError, ValueError):
            counters = self._file
            if counters is None:
                counters = self._file = os.open(_COUNTERS, os.O_RDONLY)
            before_ns = self._waited_ns
            self._waited_ns = int(os.pread(counters, 80, 0).split()[1])
            return self._waited_ns - before_ns
        return None

    def close(self) -> None:
        """Close the counters."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
