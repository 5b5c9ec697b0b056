"""Path walk: the firings that one step waited for, walked back from the step's end.

From a firing the path goes to what it waited for the longest; from a meeting to the member that
came last. What lies between the end of the one and the begin of the other is idle. The same walk
leads over predicted and measured times, so that both paths have their step times for lengths.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from millrace.comparison.comparison import CriticalPaths, PathRow, PathSegment
from millrace.comparison.counterfactuals import STEADY_STEPS, Counterfactuals
from millrace.comparison.measured_run import MeasuredRun, Times, measured_run
from millrace.planner.actors.firing_waits import FiringWaits
from millrace.planner.actors.trace import Trace

IDLE = "idle"  # in rows: between the end of one firing and the begin of the next

Rows = Sequence[Sequence[Times]]  # by rank and actor: nanoseconds of every firing


class _TracedRun(NamedTuple):
    """Times of every firing of some steps, from which a path is walked."""

    run: MeasuredRun
    steps: int
    starts: Rows
    ends: Rows

    def end_ns(self, step: int) -> int:
        """End of a step on the slowest rank; of the step before the first: that of the run."""
        if step < 0:
            return self.run.until_ns
        return max(
            int(ends[(step + 1) * node.firings - 1])
            for program, row in zip(self.run.programs, self.ends, strict=True)
            for node, ends in zip(program.actors, row, strict=True)
        )


def critical_paths(run: MeasuredRun, replays: Counterfactuals, predicted: Trace) -> CriticalPaths:
    """Critical paths of the predicted and of a typical measured step.

    Parameters
    ----------
    run : MeasuredRun
        The measured run.
    replays : Counterfactuals
        Replays of it; where few ranks stand for all in the prediction, one has every rank of it.
    predicted : Trace
        The prediction.
    """
    simulated = measured_run(run.graph, predicted)
    if simulated is not None:
        before = _path(_traced(simulated), simulated.median_step)
    else:
        instances = replays.replayed(replays.predicted(), STEADY_STEPS)
        traced = _TracedRun(
            run,
            STEADY_STEPS,
            [[np.asarray(times, np.int64) for times in row.starts] for row in instances],
            [[np.asarray(times, np.int64) for times in row.ends] for row in instances],
        )
        before = _path(traced, STEADY_STEPS - 2)
    after = _path(_traced(run), run.median_step)
    return CriticalPaths(predicted=before, measured=after, rows=_rows(before, after))


def _traced(run: MeasuredRun) -> _TracedRun:
    return _TracedRun(
        run,
        run.steps,
        [[times.ravel() for times in row] for row in run.starts],
        [[times.ravel() for times in row] for row in run.ends],
    )


def _path(traced: _TracedRun, step: int) -> tuple[PathSegment, ...]:
    """Path of one step, in order of time."""
    programs = traced.run.programs
    begin_ns, now_ns = traced.end_ns(step - 1), traced.end_ns(step)
    meetings = {key: group.members for group in traced.run.groups for key in group.members}
    waits: dict[int, FiringWaits] = {}
    rank, actor, firing = _last_firing(traced, step, now_ns)
    segments = []
    while now_ns > begin_ns:
        members = meetings.get((rank, actor), ((rank, actor),))
        _, last_rank, last_actor = max(
            (int(traced.starts[r][a][firing]), -r, a) for r, a in members
        )
        rank, actor = -last_rank, last_actor
        program = programs[rank]
        since_ns = min(max(int(traced.starts[rank][actor][firing]), begin_ns), now_ns)
        index = traced.run.graph.program_of(rank)
        if index not in waits:
            waits[index] = FiringWaits(program, traced.steps)
        blocker = waits[index].last(actor, firing, traced.starts[rank], traced.ends[rank])
        before_ns = begin_ns if blocker is None else min(max(blocker.time_ns, begin_ns), since_ns)
        segments.append(
            PathSegment(
                actor=program.actors[actor].name,
                rank=rank,
                firing=firing % program.actors[actor].firings,
                start_s=(since_ns - begin_ns) / 1e9,
                seconds=(now_ns - since_ns) / 1e9,
                idle_s=(since_ns - before_ns) / 1e9,
            )
        )
        now_ns = before_ns
        if blocker is not None:
            actor, firing = blocker.actor, blocker.firing
    return tuple(reversed(segments))


def _last_firing(traced: _TracedRun, step: int, end_ns: int) -> tuple[int, int, int]:
    """Rank, actor and firing that ended last in a step."""
    for rank, (program, row) in enumerate(zip(traced.run.programs, traced.ends, strict=True)):
        for actor, (node, ends) in enumerate(zip(program.actors, row, strict=True)):
            firing = (step + 1) * node.firings - 1
            if int(ends[firing]) == end_ns:
                return rank, actor, firing
    raise AssertionError("a step ends with a firing")


def _rows(predicted: Sequence[PathSegment], measured: Sequence[PathSegment]) -> tuple[PathRow, ...]:
    """Seconds of both paths by actor, largest difference first; the rank that has most of them."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    ranks: dict[str, Counter[int]] = defaultdict(Counter)
    for column, path in enumerate((predicted, measured)):
        for segment in path:
            for name, seconds in ((segment.actor, segment.seconds), (IDLE, segment.idle_s)):
                if seconds:
                    sums[name][column] += seconds
                    ranks[name][segment.rank] += round(seconds * 1e9) * (1 + column)
    rows = [
        PathRow(
            actor=name,
            rank=ranks[name].most_common(1)[0][0],
            predicted_s=before,
            measured_s=after,
        )
        for name, (before, after) in sums.items()
    ]
    rows.sort(key=lambda row: (-abs(row.predicted_s - row.measured_s), row.actor))
    return tuple(rows)
