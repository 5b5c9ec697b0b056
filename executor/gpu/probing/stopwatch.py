"""Stopwatch of a device: calls captured as one graph, as a step is, replayed between two events."""

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np

from millrace.executor.cuda.calls import Call, Launch, Operand, elementwise
from millrace.executor.gpu.device import ADDRESS, DeviceDriver

CALLS_MAX = 512  # calls of a graph: enough for the shortest, whose capture still takes milliseconds
ROUNDS = 5  # replays that are timed; their median counts
IDLE_FUNCTION = ("movement", "fill<float>")


def idle_launch(address: int) -> Launch:
    """Launch that does nothing: it fills no elements."""
    return elementwise(*IDLE_FUNCTION, 0, Operand(ADDRESS, 0, address), np.float64(0))


class Stopwatch:
    """Times work on one stream of a device.

    Parameters
    ----------
    device
        The device; `IDLE_FUNCTION` is loaded.
    scratch
        An address that an idle kernel is given.

    Attributes
    ----------
    launch_ns
        Time that a kernel that does nothing adds to a captured graph.
    """

    def __init__(self, device: DeviceDriver, scratch: int) -> None:
        self._device = device
        self.stream = device.stream()
        self._start, self._end = device.event(timed=True), device.event(timed=True)
        self._graph_ns = 0  # time of a replay beside its calls
        idle = ((idle_launch(scratch),),)
        self._issue(idle[0])  # code is sent to the device at its first launch
        # The device is busy with this while the host issues what is timed.
        self._cover = self._captured(idle, CALLS_MAX)
        single_ns, many_ns = (
            self._replayed_ns(each) for each in (self._captured(idle, 1), self._cover)
        )
        self.launch_ns = max(1, round((many_ns - single_ns) / (CALLS_MAX - 1)))
        self._graph_ns = max(0, single_ns - self.launch_ns)

    def calls_ns(self, copies: Sequence[tuple[Call, ...]], patience_ns: int) -> int:
        """Nanoseconds of one firing of calls that take copies of their operands in turn.

        Parameters
        ----------
        copies
            The bound calls of a firing, for each copy.
        patience_ns
            Time, about, for which they are repeated; they are timed at least once.
        """
        for calls in copies:
            for call in calls:
                self._device.prepare(call, self.stream)
            self._issue(calls)
        once_ns = self._between_ns(lambda: self._issue(copies[0]))
        # What is issued call by call takes no less than in a graph.
        count = max(1, min(CALLS_MAX, patience_ns // (ROUNDS + 1) // max(once_ns, 1)))
        return max(1, round(self._replayed_ns(self._captured(copies, count), patience_ns) / count))

    def issued_ns(self, issue: Callable[[], None], count: int) -> int:
        """Nanoseconds of one of `count` times what is issued, captured and replayed.

        The number of replays is fixed too: ranks that meet in it make as many.
        """
        issue()
        graph = self._graph(issue, count)
        return max(1, round(self._replayed_ns(graph) / count))

    def _captured(self, copies: Sequence[tuple[Call, ...]], count: int) -> Any:
        """Graph of `count` firings."""
        turns = iter(range(count))
        return self._graph(lambda: self._issue(copies[next(turns) % len(copies)]), count)

    def _graph(self, issue: Callable[[], None], count: int) -> Any:
        self._device.begin_capture(self.stream)
        try:
            for _ in range(count):
                issue()
        finally:
            graph = self._device.end_capture(self.stream)
        return graph

    def _replayed_ns(self, graph: Any, patience_ns: int | None = None) -> int:
        """Median nanoseconds of a replay, of at most `ROUNDS`; the first is not counted."""
        durations: list[int] = []
        spent_ns = self._between_ns(lambda: self._device.replay(graph, self.stream))
        while len(durations) < ROUNDS:
            durations.append(self._between_ns(lambda: self._device.replay(graph, self.stream)))
            spent_ns += durations[-1]
            if patience_ns is not None and spent_ns > patience_ns:
                break
        return max(1, round(median(durations)) - self._graph_ns)

    def _between_ns(self, work: Callable[[], None]) -> int:
        """Nanoseconds between an event before and one after some work."""
        self._device.replay(self._cover, self.stream)
        self._device.record(self._start, self.stream)
        work()
        self._device.record(self._end, self.stream)
        self._device.synchronize(self._end)
        return self._device.elapsed_ns(self._start, self._end)

    def _issue(self, calls: Sequence[Call]) -> None:
        for call in calls:
            self._device.issue(call, self.stream)
