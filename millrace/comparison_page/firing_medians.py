"""Median duration of a firing of every actor, over the steps of a trace that count."""

import numpy as np

from millrace.comparison import step_of, traced_steps
from millrace.planner.actors.trace import Trace


def firing_medians_ns(trace: Trace) -> dict[str, float]:
    """Median nanoseconds of a firing by the actor's name, over all ranks that have it."""
    counted = traced_steps(trace)
    lanes = {lane.rank: lane for lane in trace.lanes}
    durations: dict[str, list[int]] = {}
    for span in trace.spans:
        lane = lanes[span.rank]
        if step_of(span, lane) in counted:
            durations.setdefault(lane.actors[span.actor], []).append(span.end_ns - span.start_ns)
    return {name: float(np.median(row)) for name, row in durations.items()}
