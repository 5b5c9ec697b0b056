"""Steps of a trace that count, and how long a step takes."""

from statistics import median

from millrace.planner.actors.trace import Lane, Span, Trace

WARM_UP_STEPS = 5


def counted_steps(trace: Trace) -> range:
    """Steps that count: those after the warm-up, the steady one of a simulation."""
    if trace.source == "simulated":
        steady = trace.steady_step()
        return range(steady, steady + 1)
    return range(WARM_UP_STEPS if trace.steps > WARM_UP_STEPS else 0, trace.steps)


def traced_steps(trace: Trace) -> range:
    """Steps that count and have spans (a GPU's run keeps them of its last steps)."""
    counted = counted_steps(trace)
    lanes = {lane.rank: lane for lane in trace.lanes}
    first = min((step_of(span, lanes[span.rank]) for span in trace.spans), default=0)
    return range(min(max(counted.start, first), counted.stop), counted.stop)


def unmarked_share(trace: Trace) -> float:
    """Time of a step without spans over that of one with them, at most 1.

    A GPU's actors are timed one by one, in steps that are slower by it; where all steps have spans,
    as on CPUs, it is 1.
    """
    times, marked = trace.step_times_ns(), traced_steps(trace)
    unmarked = [times[step] for step in counted_steps(trace) if step not in marked]
    if not unmarked or not marked:
        return 1.0
    return min(1.0, median(unmarked) / median(times[step] for step in marked))


def step_time_ns(trace: Trace) -> int:
    """Median time of the steps that count, of the slowest rank, in ns."""
    times = trace.step_times_ns()
    return round(median(times[step] for step in counted_steps(trace)))


def step_of(span: Span, lane: Lane) -> int:
    """Step that a span belongs to.

    Parameters
    ----------
    span : Span
        One firing of an actor.
    lane : Lane
        The lane of the span's rank, which says how often an actor fires per step.
    """
    return span.firing // max(lane.firings[span.actor], 1)
