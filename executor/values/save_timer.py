"""Save timer: asks the ranks for a checkpoint when some minutes have passed since the last one."""

from collections import deque
from collections.abc import Callable
from math import ceil
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from millrace.executor.drift.step_log import StepLogReader, log_path
from millrace.executor.values.save_request import SaveRequest
from millrace.planner.actors.graph import ActorGraph

# A rank decides on a step up to two steps before the one whose end it has logged last
# (`millrace.executor.gpu.device_run.AHEAD_STEPS`).
STEPS_AHEAD = 3
SECONDS_AHEAD = 5.0  # in which every rank sees a request, on other hosts too
TIMED_STEPS = 16


class _StepEnd(NamedTuple):
    steps: int  # of this run that have ended
    end_ns: int


class SaveTimer:
    """Timer of a run's checkpoints.

    Parameters
    ----------
    graph, folder
        The ranks, and the job's folder, where they log their steps.
    minutes
        Minutes from a checkpoint to the next.
    first_step, last_step
        Steps of earlier runs, and the last step of this one, which is saved without being asked.
    clock
        Seconds, as `time.monotonic`.
    """

    def __init__(
        self,
        graph: ActorGraph,
        folder: Path,
        *,
        minutes: float,
        first_step: int,
        last_step: int,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._between_s, self._clock = minutes * 60.0, clock
        self._first_step, self._last_step = first_step, last_step
        self._request = SaveRequest(folder)
        self._request.write(0)
        self._asked_step = 0
        self._since_s = clock()
        self._logs = [_RankSteps(graph, folder, rank) for rank in range(graph.ranks)]

    def saved(self) -> None:
        """Count from now on: a checkpoint is complete."""
        self._since_s = self._clock()

    def look(self) -> None:
        """Ask for a checkpoint if it is time and the steps of all ranks are known."""
        if self._clock() - self._since_s < self._between_s:
            return
        for log in self._logs:
            log.read()
        if any(len(log.ends) < 2 for log in self._logs):
            return
        slowest = min(log.ends[-1].steps for log in self._logs)
        if self._first_step + slowest < self._asked_step:
            return
        furthest = max(self._logs, key=lambda log: log.ends[-1].steps).ends
        step_s = (
            (furthest[-1].end_ns - furthest[0].end_ns)
            / 1e9
            / (furthest[-1].steps - furthest[0].steps)
        )
        ahead = max(STEPS_AHEAD, ceil(SECONDS_AHEAD / max(step_s, 1e-9)))
        step = self._first_step + furthest[-1].steps + ahead
        if step < self._last_step:
            self._asked_step = step
            self._request.write(step)
        self._since_s = self._clock()


class _RankSteps:
    """Ends of the last steps of a rank."""

    def __init__(self, graph: ActorGraph, folder: Path, rank: int) -> None:
        self._path = log_path(folder, rank)
        self._actors = len(graph.programs[graph.program_of(rank)].actors)
        self.ends: deque[_StepEnd] = deque(maxlen=TIMED_STEPS)

    def read(self) -> None:
        """Take note of the steps that have ended since the last call."""
        step = self.ends[-1].steps if self.ends else 0
        log = StepLogReader(self._path, self._actors)
        while (row := log.read(step)) is not None:
            step = row.step + 1
            self.ends.append(_StepEnd(step, row.end_ns))
        log.close()
