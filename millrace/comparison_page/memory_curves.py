"""Memory curves by either trace: one rule, the simulator's, on the firing times of both."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from millrace.comparison import step_of
from millrace.planner.actors.graph import ActorGraph, Program
from millrace.planner.actors.trace import Lane, Span, Trace
from millrace.planner.cluster import Cluster
from millrace.simulator.account.memory import course_of_firings, window_of
from millrace.traces.timeline import step_begin_ns, typical_step

POINTS = 30_000  # of all curves of a trace together
LEAST_POINTS = 200  # of a curve


class MemoryCurve(NamedTuple):
    """Bytes of register versions alive on one rank; each value lasts up to the next time."""

    rank: int
    stage: int
    times_ns: tuple[int, ...]  # from the start of the step
    register_bytes: tuple[int, ...]

    @property
    def peak_bytes(self) -> int:
        """Most bytes at any time."""
        return max(self.register_bytes)


def memory_curves(graph: ActorGraph, cluster: Cluster, trace: Trace) -> tuple[MemoryCurve, ...]:
    """Curves of the typical step of a trace, one a traced rank.

    A rank is left out whose lane is not of the program's actors (whole parts of chunks were
    simulated), or that lacks a firing in this step.

    Parameters
    ----------
    graph : ActorGraph
        The registers, and which actors write and read them.
    cluster : Cluster
        The cluster of the plan.
    trace : Trace
        Spans, simulated or measured.
    """
    step = typical_step(trace)
    begin_ns = step_begin_ns(trace, step)
    end_ns = begin_ns + trace.step_times_ns()[step]
    lanes = {lane.rank: lane for lane in trace.lanes}
    spans: dict[int, list[Span]] = {rank: [] for rank in lanes}
    for span in trace.spans:
        if abs(step_of(span, lanes[span.rank]) - step) <= 1:
            spans[span.rank].append(span)
    points = max(POINTS // max(len(lanes), 1), LEAST_POINTS)
    curves = []
    for rank, lane in lanes.items():
        program = graph.programs[graph.program_of(rank)]
        firings_ns = _firings_ns(program, lane, spans[rank], step)
        if firings_ns is None:
            continue
        course = course_of_firings(program, rank, cluster, firings_ns, {}, 3 * points)
        course = window_of(course, begin_ns, end_ns)
        totals = tuple(map(sum, zip(*course.bytes_by_kind.values(), strict=True)))
        if totals:
            curves.append(MemoryCurve(rank, lane.stage, course.times_ns, totals))
    return tuple(curves)


def _firings_ns(
    program: Program, lane: Lane, spans: Iterable[Span], step: int
) -> tuple[Sequence[Sequence[int]], Sequence[Sequence[int]]] | None:
    """Starts and ends by actor of a step and, where they are complete, of the steps beside it."""
    if lane.actors != tuple(actor.name for actor in program.actors):
        return None
    by_step: dict[int, list[Span]] = {}
    for span in spans:
        by_step.setdefault(step_of(span, lane), []).append(span)
    firings = sum(lane.firings)
    complete = {number for number, row in by_step.items() if len(row) == firings}
    if step not in complete:
        return None
    starts: list[list[int]] = [[] for _ in lane.actors]
    ends: list[list[int]] = [[] for _ in lane.actors]
    for number in sorted(complete):
        for span in sorted(by_step[number], key=lambda span: span.firing):
            starts[span.actor].append(span.start_ns)
            ends[span.actor].append(span.end_ns)
    return starts, ends


def curve_columns(curve: MemoryCurve, unit_ns: int) -> dict[str, Any]:
    """Columns of a curve: gaps between its times, in units, and its values in KiB.

    Parameters
    ----------
    curve : MemoryCurve
        The curve of one rank.
    unit_ns : int
        Nanoseconds that a unit of time stands for.
    """
    units = [round(time / unit_ns) for time in curve.times_ns]
    return {
        "rank": curve.rank,
        "stage": curve.stage,
        "gap": [now - before for before, now in zip([0, *units[:-1]], units, strict=True)],
        "kib": [round(size / 1024) for size in curve.register_bytes],
    }
