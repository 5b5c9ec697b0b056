"""Update: a device profile with the costs that a run has shown, for the plans that come next.

Of every op counts the mean over ranks of its time on a core, in the half of the steps whose times
are in the middle: times lean to one side, and a step is a sum of them. A meeting that holds its
ranks back costs what passes from its last member's arrival until they go on, over what the
simulator stretches it by where its ranks share cores; one that is over while they compute costs its
time on a core. All of it is read off a run by `millrace.comparison.measured_costs`.
"""

from collections import defaultdict
from collections.abc import Iterator
from math import isnan, sqrt
from statistics import fmean

import msgspec
import numpy as np

from millrace.comparison import step_time_ns, traced_steps, unmarked_share
from millrace.comparison.measured_costs import (
    launch_ns,
    meeting_means,
    meeting_resumptions,
    meeting_waits,
)
from millrace.comparison.measured_run import MeasuredRun, MeetingGroup, Times, measured_run
from millrace.planner.actors.graph import Actor, ActorGraph, Program
from millrace.planner.actors.trace import Trace
from millrace.planner.cluster import Cluster, Device
from millrace.planner.collectives import COLLECTIVES
from millrace.planner.compile import compile_plan
from millrace.planner.costs.actors import durations
from millrace.planner.costs.measured_tables import (
    MeasuredOp,
    measured_ops,
    with_collectives,
    with_measured,
)
from millrace.planner.costs.tables.profile_tables import interpolated_ns
from millrace.planner.errors import PlanError
from millrace.planner.plan import Plan
from millrace.profiling.crowding import crowded_speed
from millrace.simulator import predict, simulate

SHOWN_CHANGES = 5
CHANGED = 0.05  # A cost that moves by less is not worth a word.
VARIED_NS = 100_000  # What shorter ops vary by adds up to nothing.
JITTER_MIN = 0.01


def updated_profile(cluster: Cluster, *runs: tuple[ActorGraph, Trace]) -> Device:
    """Device profile that measured traces of compiled plans were folded into.

    Parameters
    ----------
    cluster : Cluster
        That of the plans, with the profile that they were made with. Where its ranks share cores,
        what steps take beyond ops and meetings is the speed of the crowded cores.
    *runs : tuple of (ActorGraph, Trace)
        The compiled plans, and the trace of a run of each, with the times of firings. What several
        have counts by its mean over them.

    Raises
    ------
    PlanError
        A trace does not have every firing of a step.
    """
    device = cluster.device
    measured = [_measured(*run) for run in runs]
    launches = [mean_ns for run in measured if (mean_ns := launch_ns(run))]
    is_gpu = device.multiprocessors > 0
    unseen_ns = 0 if is_gpu else device.launch_ns  # a launch is in all that a GPU's profile timed
    driver_ns = round(fmean(launches)) if launches else unseen_ns
    jitters = [device.jitter] if device.jitter else []
    jitters += [_jitter(run) for run in measured]
    ops = [
        op
        for run, (_, trace) in zip(measured, runs, strict=True)
        for op in _ops(run, driver_ns, device, unmarked_share(trace))
    ]
    device = msgspec.structs.replace(
        with_measured(device, ops),
        jitter=fmean(jitters),
        launch_ns=device.launch_ns if is_gpu else driver_ns,
    )
    if not device.collectives:
        return device
    collectives: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for run in measured:
        for table, message in _meetings(run, msgspec.structs.replace(cluster, device=device)):
            collectives[table].append(message)
    messages = {table: tuple(points) for table, points in collectives.items()}
    device = with_collectives(device, messages)
    if cluster.cores_per_node is None or cluster.devices_per_node <= cluster.cores_per_node:
        return device
    speed = crowded_speed(msgspec.structs.replace(cluster, device=device), runs)
    return msgspec.structs.replace(device, crowded_speed=speed)


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
    run = _measured(graph, trace)
    driver_ns = round(launch_ns(run)) or device.launch_ns
    learned = with_measured(device, _ops(run, driver_ns, device, unmarked_share(trace)))
    return msgspec.structs.replace(learned, launch_ns=driver_ns)


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


def _measured(graph: ActorGraph, trace: Trace) -> MeasuredRun:
    run = measured_run(graph, trace)
    if run is None:
        raise PlanError(
            "the trace does not have every firing of a step: give one of `millrace run --trace`"
        )
    return run


def _ops(run: MeasuredRun, driver_ns: int, device: Device, share: float) -> Iterator[MeasuredOp]:
    """Mean times on a core of the ops of every actor, times the share of them that counts."""
    for actor, program, times in _core_times(run):
        took_ns = round(share * (float(times.mean()) + driver_ns))
        yield from measured_ops(actor, program, device, took_ns, times.size)


def _core_times(run: MeasuredRun) -> Iterator[tuple[Actor, Program, Times]]:
    """Nanoseconds on a core of every local actor's firings: [ranks, typical steps, firings]."""
    typical = list(run.typical)
    for program in run.graph.programs:
        for number, actor in enumerate(program.actors):
            if actor.meeting is None:
                ranks = [run.work[rank][number][typical] for rank in program.ranks]
                yield actor, program, np.stack(ranks)


def _jitter(run: MeasuredRun) -> float:
    """Standard deviation of an op's times on a core over their mean, by how long ops take."""
    variance = weight = 0.0
    for _, _, times in _core_times(run):
        mean_ns = float(times.mean())
        if mean_ns >= VARIED_NS:
            variance += times.size * mean_ns * float(np.var(times / mean_ns))
            weight += times.size * mean_ns
    jitter = sqrt(variance / weight) if weight else 0.0
    return jitter if jitter >= JITTER_MIN else 0.0


def _meetings(run: MeasuredRun, cluster: Cluster) -> Iterator[tuple[str, tuple[int, int]]]:
    """Tables, messages and costs of a step's meetings.

    A table has those of meetings that hold their ranks back, if there are any of it.
    """
    simulated = measured_run(run.graph, simulate(run.graph, cluster, folded=False).trace)
    assert simulated is not None
    held_back: dict[str, list[tuple[int, int]]] = defaultdict(list)
    hidden: dict[str, list[tuple[int, int]]] = defaultdict(list)
    alone = meeting_means(run, meeting_waits(run))
    for index, (group, resumed_ns) in enumerate(
        zip(run.groups, meeting_resumptions(run), strict=True)
    ):
        table, message_bytes = _message(run, group)
        if table not in cluster.device.collectives:
            continue
        if isnan(resumed_ns):
            hidden[table].append((message_bytes, max(1, round(float(alone[index].mean())))))
            continue
        points = cluster.device.collectives[table]
        priced_ns = float(interpolated_ns(points, np.array([float(message_bytes)]))[0])
        moved_ns = simulated.met[index] - simulated.moves[index]
        stretch = float(moved_ns[list(simulated.counted)].mean()) / max(priced_ns, 1.0)
        cost_ns = max(1, round(resumed_ns / max(stretch, 1.0)))
        held_back[table].append((message_bytes, cost_ns))
    for table, messages in (hidden | held_back).items():
        for message in messages:
            yield table, message


def _message(run: MeasuredRun, group: MeetingGroup) -> tuple[str, int]:
    """Table that a meeting is priced by, and its bytes."""
    rank, actor = group.members[0]
    meeting = run.programs[rank].actors[actor].meeting
    assert meeting is not None
    kind = "send" if COLLECTIVES[meeting.kind].point_to_point else meeting.kind
    return f"{kind}/{len(group.members)}", max(meeting.message_bytes, 1)
