"""Drift watch: steps of a run that is under way, held against a band around its first ones.

The band is that of the steps after the warm-up, and reaches up to the prediction where that is not
far. Several steps in a row outside are a drift, or two that are three times as long as before, or a
single one ten times as long; several inside end it.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from millrace.executor.drift.moved_actor import Times, moved_actor
from millrace.executor.drift.step_log import StepLogReader, log_path
from millrace.planner.actors.graph import ActorGraph

WARM_UP = 5  # steps, as in `millrace.planner.actors.trace.Trace.step_time_ns`
FIRST_STEPS = 10  # after the warm-up, which the band is made of
IN_A_ROW = 5
AT_ONCE = 10.0  # a step so many times as long as before is told of by itself,
FAR, FAR_IN_A_ROW = 3.0, 2  # and as many in a row that are so many times as long
BAND_MIN, DEVIATIONS = 0.25, 6.0  # the band is as wide as this share, or so many deviations
# The prediction widens the band where it is no further than this from the first steps. Beyond it
# they have left the prediction's own band: plans were predicted within 28 % (two cores, 2026-11).
PREDICTED = 0.3

FIRST, PREDICTION = "first steps", "prediction"


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """Steps that take another time than before, and the actor that moved most.

    Attributes
    ----------
    step
        The first of them, counted from 1 over all runs.
    ended
        The first step that was as before again; None while none is.
    against
        What they were held against: the run's first steps, or its prediction.
    step_time_s, step_time_before_s
        Median of the first few of these steps, and what it was held against.
    rank, actor, before_s, now_s
        The actor, and what it takes in a step; None where none moved so, or captured steps of a GPU
        do not tell.
    others
        Number of other actors of this rank that moved the same way, by more than a fifth.
    """

    step: int
    ended: int | None = None
    against: str = FIRST
    step_time_s: float
    step_time_before_s: float
    rank: int | None = None
    actor: str | None = None
    before_s: float | None = None
    now_s: float | None = None
    others: int = 0


class ExpectedStep(NamedTuple):
    """Prediction of a step: its time, and that of every actor, in nanoseconds."""

    step_ns: float
    times: Times


class _StepTimes(NamedTuple):
    """Nanoseconds of a step, and of every actor in it."""

    step: int
    step_ns: float
    times: Times


Drifted = Callable[[Drift], None]


class DriftWatch:
    """Watch over the steps of a run.

    Parameters
    ----------
    graph
        The actors of every rank.
    first_step
        Steps that earlier runs made.
    expected
        The prediction, where there is one for this machine.
    tell
        Called with a drift when it begins and when it ends.
    """

    def __init__(
        self,
        graph: ActorGraph,
        *,
        first_step: int = 0,
        expected: ExpectedStep | None = None,
        tell: Drifted | None = None,
    ) -> None:
        self._graph, self._first_step = graph, first_step
        self._expected, self._tell = expected, tell
        self._base: _StepTimes | None = None
        self._high_ns = 0.0
        self._recent: list[_StepTimes] = []
        self._before: tuple[int, int, Sequence[NDArray[np.int64]]] | None = None
        self._drifting = False
        self.drifts: list[Drift] = []

    def end_step(self, step: int, end_ns: int, spent_ns: Sequence[NDArray[np.int64]]) -> None:
        """Take note of a step that has ended on every rank; steps in between may be left out.

        Parameters
        ----------
        step
            Counted from 0.
        end_ns
            When it ended on the last rank.
        spent_ns
            What every actor has taken since the run began, by rank.
        """
        before, self._before = self._before, (step, end_ns, spent_ns)
        if before is None or step < WARM_UP:
            return
        earlier, started_ns, spent_before_ns = before
        steps = step - earlier
        times = [
            (now_ns - then_ns) / steps
            for now_ns, then_ns in zip(spent_ns, spent_before_ns, strict=True)
        ]
        self._hold(_StepTimes(step, (end_ns - started_ns) / steps, times))

    def _hold(self, times: _StepTimes) -> None:
        """Hold a step against the band, or make the band of it."""
        if self._base is None:
            expected = self._expected
            if expected is not None and times.step_ns > AT_ONCE * expected.step_ns:
                self._say(times, PREDICTION, *expected)
                self._expected = None  # told of once
            self._recent.append(times)
            if len(self._recent) == FIRST_STEPS:
                self._begin()
            return
        is_beyond = times.step_ns > self._high_ns
        self._recent = [] if is_beyond == self._drifting else [*self._recent, times]
        at_once = is_beyond and self._is_far(self._base.step_ns)
        if not self._recent or (len(self._recent) < IN_A_ROW and not at_once):
            return
        changed, self._recent = _median(self._recent), []
        self._drifting = is_beyond
        if is_beyond:
            self._say(changed, FIRST, self._base.step_ns, self._base.times)
        else:
            ended = self._first_step + changed.step + 1
            self.drifts[-1] = msgspec.structs.replace(self.drifts[-1], ended=ended)
            self._told(self.drifts[-1])

    def _is_far(self, base_ns: float) -> bool:
        """True if the last steps are so long that nobody need wait for more of them."""
        far = [step for step in self._recent if step.step_ns > FAR * base_ns]
        longest_ns = max((step.step_ns for step in self._recent), default=0.0)
        return longest_ns > AT_ONCE * base_ns or len(far) >= FAR_IN_A_ROW

    def _begin(self) -> None:
        """Make the band of the first steps, and hold these against the prediction."""
        base = self._base = _median(self._recent)
        deviation_ns = float(np.median([abs(t.step_ns - base.step_ns) for t in self._recent]))
        self._high_ns = base.step_ns + max(BAND_MIN * base.step_ns, DEVIATIONS * deviation_ns)
        self._recent = []
        if self._expected is None:
            return
        ratio = base.step_ns / self._expected.step_ns
        if max(ratio, 1 / ratio) > 1 + PREDICTED:
            self._say(base, PREDICTION, *self._expected)
        else:
            self._high_ns = max(self._high_ns, self._expected.step_ns)

    def _say(self, now: _StepTimes, against: str, before_ns: float, before: Times) -> None:
        """Say of steps that they take another time than before."""
        slower = now.step_ns > before_ns
        moved = moved_actor(self._graph, before, now.times, slower=slower)
        drift = Drift(
            step=self._first_step + now.step + 1,
            against=against,
            step_time_s=now.step_ns / 1e9,
            step_time_before_s=before_ns / 1e9,
        )
        if moved is not None:
            drift = msgspec.structs.replace(
                drift,
                rank=moved.rank,
                actor=moved.actor,
                before_s=moved.before_ns / 1e9,
                now_s=moved.now_ns / 1e9,
                others=moved.others,
            )
        self.drifts.append(drift)
        self._told(drift)

    def _told(self, drift: Drift) -> None:
        if self._tell is not None:
            try:
                self._tell(drift)
            except OSError:  # who listened has gone, or its disk is full: training goes on
                self._tell = None


class DriftReader:
    """Reader of the logs of all ranks, which tells a watch of the steps that have ended."""

    def __init__(self, graph: ActorGraph, folder: Path, watch: DriftWatch) -> None:
        self._watch, self._step = watch, 0
        self._logs = [
            StepLogReader(
                log_path(folder, rank), len(graph.programs[graph.program_of(rank)].actors)
            )
            for rank in range(graph.ranks)
        ]

    def read(self) -> None:
        """Pass on the steps that have ended on every rank since the last call."""
        while True:
            rows = [log.read(self._step) for log in self._logs]
            ended = [row for row in rows if row is not None]
            if len(ended) < len(rows):
                return
            last = max(row.step for row in ended)
            if last == min(row.step for row in ended):
                end_ns = max(row.end_ns for row in ended)
                self._watch.end_step(last, end_ns, [row.spent_ns for row in ended])
                last += 1
            self._step = last

    def close(self) -> None:
        """Close the logs."""
        for log in self._logs:
            log.close()


def _median(steps: Sequence[_StepTimes]) -> _StepTimes:
    """Median of several steps, with the number of the first."""
    ranks = range(len(steps[0].times))
    return _StepTimes(
        steps[0].step,
        float(np.median([each.step_ns for each in steps])),
        [np.median([each.times[rank] for each in steps], axis=0) for rank in ranks],
    )
