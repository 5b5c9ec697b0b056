"""Timeline: one step of a trace as bars, from which pictures of runs and predictions are drawn."""

from typing import NamedTuple

from millrace.comparison import step_of, step_time_ns, traced_steps
from millrace.planner.actors.trace import Trace
from millrace.planner.collectives import COLLECTIVES


class TimelineRow(NamedTuple):
    """A queue of one rank: the line that bars are drawn on."""

    rank: int
    stage: int
    queue: str


class Bar(NamedTuple):
    """One firing; times count from the start of the step."""

    row: int
    start_ns: int
    end_ns: int
    what: str  # a key of `PHASES` in `palette.py`
    name: str
    firing: int = 0  # of the step


class Timeline(NamedTuple):
    """One step of a trace."""

    source: str
    step: int
    duration_ns: int
    rows: tuple[TimelineRow, ...]
    bars: tuple[Bar, ...]


def timeline(trace: Trace) -> Timeline:
    """Bars of the typical step: the one whose time lies nearest to the trace's median step.

    Of a run on GPUs it is one of those that have spans. A rank's compute queue comes first, its
    communication queues follow; queues without a bar in the step are left out.
    """
    step = typical_step(trace)
    origin = step_begin_ns(trace, step)
    lanes = {lane.rank: lane for lane in trace.lanes}
    bars_by_row: dict[TimelineRow, list[tuple[int, int, str, str, int]]] = {}
    for span in trace.spans:
        lane = lanes[span.rank]
        if step_of(span, lane) != step:
            continue
        kind = lane.kinds[span.actor]
        what = "communication" if kind in COLLECTIVES else lane.phases[span.actor]
        row = TimelineRow(lane.rank, lane.stage, lane.queues[span.actor])
        firing = span.firing % lane.firings[span.actor]
        times_ns = (span.start_ns - origin, span.end_ns - origin)
        bar = (*times_ns, what, lane.actors[span.actor], firing)
        bars_by_row.setdefault(row, []).append(bar)
    rows = tuple(sorted(bars_by_row, key=lambda row: (row.rank, row.queue != "compute", row.queue)))
    bars = tuple(
        Bar(position, *bar) for position, row in enumerate(rows) for bar in sorted(bars_by_row[row])
    )
    return Timeline(trace.source, step, trace.step_times_ns()[step], rows, bars)


def typical_step(trace: Trace) -> int:
    """Step whose time lies nearest to the trace's median step, of those that have spans."""
    times = trace.step_times_ns()
    median_ns = step_time_ns(trace)
    return min(traced_steps(trace), key=lambda step: (abs(times[step] - median_ns), step))


def step_begin_ns(trace: Trace, step: int) -> int:
    """Time at which a step begins: when the slowest rank has finished the step before.

    Parameters
    ----------
    trace : Trace
        The trace that has the step.
    step : int
        Its number, from 0.
    """
    return max(ends[step - 1] for ends in trace.step_end_ns) if step else 0
