"""Update: a device profile with the costs that a run has shown, for the plans that come next.

Of every op counts the mean over ranks of its time on a core, in the half of the steps whose times
are in the middle: times lean to one side, and a step is a sum of them. Of every meeting it is the
median from its last member's arrival to the begin of what waited for it, where computing beside it
was no part of that.
"""

from bisect import bisect_left
from collections import defaultdict
from math import sqrt
from statistics import fmean

import msgspec
import numpy as np

from millrace.compare import step_of, step_time_ns, traced_steps
from millrace.planner.actors.graph import Actor, ActorGraph
from millrace.planner.actors.trace import Span, Trace
from millrace.planner.cluster import Cluster, Device
from millrace.planner.collectives import COLLECTIVES
from millrace.planner.compile import compile_plan
from millrace.planner.costs.actors import durations, firing_of_actor
from millrace.planner.costs.measured_tables import MeasuredOp, with_measured
from millrace.planner.plan import Plan
from millrace.simulator import predict

SHOWN_CHANGES = 5
CHANGED = 0.05  # A cost that moves by less is not worth a word.
LAUNCH_NS_MAX = 200_000  # What begins later had something else to wait for.
VARIED_NS = 100_000  # What shorter ops vary by adds up to nothing.
JITTER_MIN = 0.01
ALONE_SHARE = 0.2  # A meeting counts if no more of it than this lies beside computing.
HAND_OFF_NS = 1_000_000  # What begins later after a meeting waited for something else.


def updated_profile(cluster: Cluster, *runs: tuple[ActorGraph, Trace]) -> Device:
    """Device profile that measured traces of compiled plans were folded into.

    Parameters
    ----------
    cluster : Cluster
        That of the plans, with the profile that they were made with. Where its ranks share cores,
        meetings wait for these, so that collectives stay as they are.
    *runs : tuple of (ActorGraph, Trace)
        The compiled plans, and the trace of a run of each, with the times of firings. What several
        have counts by its mean over them.
    """
    device, cores = cluster.device, cluster.cores_per_node
    is_crowded = cores is not None and cluster.devices_per_node > cores
    launches = [launch_ns for run in runs if (launch_ns := _launch_ns(*run))]
    launch_ns = round(fmean(launches)) if launches else device.launch_ns
    ops: list[MeasuredOp] = []
    jitters = [device.jitter] if device.jitter else []
    messages: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for run in runs:
        run_ops, jitter = _ops(*run, launch_ns)
        ops += run_ops
        jitters.append(jitter)
        for table, points in ({} if is_crowded else _meetings(*run)).items():
            messages[table] += points
    collectives = {table: tuple(points) for table, points in messages.items()}
    learned = with_measured(device, ops, collectives)
    return msgspec.structs.replace(learned, jitter=fmean(jitters), launch_ns=launch_ns)


def rehearsed_profile(device: Device, graph: ActorGraph, trace: Trace) -> Device:
    """Device profile with a rehearsal folded in: how long ranks compute that meet nobody.

    Parameters
    ----------
    device : Device
        The profile that the plan was made with.
    graph : ActorGraph
        The compiled plan.
    trace : Trace
        Of a rehearsal of it (`millrace.executor.launch.rehearse`).
    """
    launch_ns = _launch_ns(graph, trace) or device.launch_ns
    ops, _ = _ops(graph, trace, launch_ns)
    return msgspec.structs.replace(with_measured(device, ops, {}), launch_ns=launch_ns)


class CostChange(msgspec.Struct, frozen=True, kw_only=True):
    """Kind of op or collective, and seconds of a step on the average rank that it is priced at."""

    kind: str
    before_s: float
    after_s: float


class ProfileUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of folding a run into a profile.

    `step_time_s` is what the plan is predicted to take with it, `error` that over the measured step
    time, less 1. `changes` are the costs that moved most; `left_out` are steps (counted from 1)
    whose times are outliers, beyond one and a half of the middle half's width.
    """

    device: Device
    step_time_s: float
    error: float
    changes: tuple[CostChange, ...]
    left_out: tuple[int, ...]


def profile_update(plan: Plan, trace: Trace, device: Device | None = None) -> ProfileUpdate:
    """Profile with a run of a plan folded in, and what it changes.

    Parameters
    ----------
    plan : Plan
        The plan that was run.
    trace : Trace
        Of a run of it, with the times of firings.
    device : Device, optional
        The profile as it stands today; that of the plan by default.
    """
    graph, before = compile_plan(plan), device or plan.cluster.device
    cluster = msgspec.structs.replace(plan.cluster, device=before)
    after = updated_profile(cluster, (graph, trace))
    learned = msgspec.structs.replace(plan.cluster, device=after)
    predicted_ns = predict(msgspec.structs.replace(plan, cluster=learned), spans=False).step_time_ns
    return ProfileUpdate(
        device=after,
        step_time_s=predicted_ns / 1e9,
        error=predicted_ns / step_time_ns(trace) - 1,
        changes=_changes(graph, cluster, learned),
        left_out=_outliers(trace),
    )


def _changes(graph: ActorGraph, before: Cluster, after: Cluster) -> tuple[CostChange, ...]:
    """Kinds whose costs in a step moved most, those that moved more than a little."""
    seconds: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for column, cluster in enumerate((before, after)):
        for program, row in zip(graph.programs, durations(graph, cluster), strict=True):
            share = len(program.ranks) / graph.ranks / 1e9
            for actor, duration_ns in zip(program.actors, row, strict=True):
                seconds[actor.kind][column] += share * duration_ns * actor.firings
    changes = [
        CostChange(kind=kind, before_s=old, after_s=new)
        for kind, (old, new) in seconds.items()
        if abs(new - old) > CHANGED * old
    ]
    changes.sort(key=lambda change: (-abs(change.after_s - change.before_s), change.kind))
    return tuple(changes[:SHOWN_CHANGES])


def _outliers(trace: Trace) -> tuple[int, ...]:
    """Steps, counted from 1, whose times are far from those of the middle half."""
    times, counted = trace.step_times_ns(), traced_steps(trace)
    low, high = np.quantile([times[step] for step in counted], (0.25, 0.75))
    reach = 1.5 * (high - low)
    return tuple(step + 1 for step in counted if not low - reach <= times[step] <= high + reach)


def _counted(trace: Trace) -> list[Span]:
    """Spans of the steps that count and whose times are in the middle half, by their begins."""
    lanes = {lane.rank: lane for lane in trace.lanes}
    times = trace.step_times_ns()
    ordered = sorted(traced_steps(trace), key=lambda step: times[step])
    quarter = len(ordered) // 4
    usual = set(ordered[quarter : len(ordered) - quarter])
    spans = (span for span in trace.spans if step_of(span, lanes[span.rank]) in usual)
    return sorted(spans, key=lambda span: (span.start_ns, span.end_ns))


def _ops(graph: ActorGraph, trace: Trace, launch_ns: int) -> tuple[list[MeasuredOp], float]:
    """Mean times on a core of every actor of one op, and how much its firings vary."""
    cores: dict[tuple[int, int], list[int]] = defaultdict(list)
    walls: dict[tuple[int, int], list[int]] = defaultdict(list)
    for span in _counted(trace):
        key = graph.program_of(span.rank), span.actor
        cores[key].append(span.cpu_ns or span.end_ns - span.start_ns)
        walls[key].append(span.end_ns - span.start_ns)
    ops, variance, weight = [], 0.0, 0.0
    for (index, number), times in sorted(cores.items()):
        program = graph.programs[index]
        actor = program.actors[number]
        if actor.meeting is None and not actor.parts:
            firing = firing_of_actor(actor, program)
            mean_ns = fmean(times)
            ops.append(MeasuredOp(firing, round(mean_ns) + launch_ns, len(times)))
            if mean_ns >= VARIED_NS:
                varied = np.array(walls[index, number])
                variance += len(times) * mean_ns * float(np.var(varied / varied.mean()))
                weight += len(times) * mean_ns
    jitter = sqrt(variance / weight) if weight else 0.0
    return ops, jitter if jitter >= JITTER_MIN else 0.0


def _launch_ns(graph: ActorGraph, trace: Trace) -> int:
    """Mean time between two firings of a rank that nothing but its driver holds apart; 0: none."""
    computed: dict[int, int] = {}
    met: dict[int, int] = {}
    gaps: list[int] = []
    for span in _counted(trace):
        if _actor_of(graph, span).meeting is not None:
            met[span.rank] = max(met.get(span.rank, 0), span.end_ns)
            continue
        end_ns = computed.get(span.rank, span.start_ns)
        gap_ns = span.start_ns - span.queued_ns - end_ns
        if 0 <= gap_ns < LAUNCH_NS_MAX and met.get(span.rank, 0) <= end_ns < span.start_ns:
            gaps.append(gap_ns)
        computed[span.rank] = span.end_ns
    return round(fmean(gaps)) if gaps else 0


def _meetings(graph: ActorGraph, trace: Trace) -> dict[str, tuple[tuple[int, int], ...]]:
    """Messages and durations of all meetings that nothing was computed beside, by table."""
    computing: dict[int, list[tuple[int, int]]] = defaultdict(list)
    meetings: dict[tuple[str, int, int], list[Span]] = defaultdict(list)
    for span in _counted(trace):
        meeting = _actor_of(graph, span).meeting
        if meeting is None:
            computing[span.rank].append((span.start_ns, span.end_ns))
        else:
            first = min(graph.members(span.rank, meeting))
            meetings[meeting.key, first, span.firing].append(span)
    tables: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for spans in meetings.values():
        meeting = _actor_of(graph, spans[0]).meeting
        assert meeting is not None
        members = len(graph.members(spans[0].rank, meeting))
        begin_ns = max(span.start_ns for span in spans)
        ends = [_resumed(computing[span.rank], begin_ns, span.end_ns) for span in spans]
        if len(spans) == members and None not in ends:
            kind = "send" if COLLECTIVES[meeting.kind].point_to_point else meeting.kind
            last_ns = max(end_ns for end_ns in ends if end_ns is not None)
            message = (max(meeting.message_bytes, 1), max(last_ns - begin_ns, 1))
            tables[f"{kind}/{members}"].append(message)
    return {table: tuple(points) for table, points in tables.items()}


def _actor_of(graph: ActorGraph, span: Span) -> Actor:
    return graph.programs[graph.program_of(span.rank)].actors[span.actor]


def _resumed(computing: list[tuple[int, int]], begin_ns: int, end_ns: int) -> int | None:
    """Time at which a rank that waited for a meeting computes again; None where it never waited.

    Where it computes nothing for long after the meeting, something else is waited for, and what
    counts is the meeting's end.
    """
    behind = bisect_left(computing, (end_ns, end_ns))
    beside_ns = 0
    for start_ns, stop_ns in reversed(computing[:behind]):
        if stop_ns <= begin_ns:
            break
        beside_ns += min(stop_ns, end_ns) - max(start_ns, begin_ns)
    if beside_ns > ALONE_SHARE * (end_ns - begin_ns):
        return None
    resumed_ns = computing[behind][0] if behind < len(computing) else end_ns
    return resumed_ns if resumed_ns - end_ns < HAND_OFF_NS else end_ns
