"""Trace join: predicted against measured, actor by actor.

Every figure is seconds per step on the average rank, over the steps after the warm-up that have
spans (of a simulation: over its steady one). An actor's time is that of its spans; a meeting's span
begins when the rank arrives, so waiting for the others is part of it. Causes split a step without
overlap: compute by op kind, communication by kind where no compute hides it, and idle time (the
bubble).
"""

from collections import defaultdict
from typing import NamedTuple

from msgspec.structs import replace

from millrace.comparison.comparison import ActorRow, CauseRow, Comparison, FiringTimes
from millrace.comparison.trace_steps import step_of, step_time_ns, traced_steps
from millrace.planner.actors.interval_ownership import OwnedInterval, covering_ns
from millrace.planner.actors.trace import Lane, Span, Trace
from millrace.planner.collectives import COLLECTIVES
from millrace.planner.errors import PlanError
from millrace.planner.plan import Plan

COMPUTED = "computed"  # what covers a meeting


class _TraceTotals(NamedTuple):
    """Nanoseconds per step of one trace, each averaged over ranks."""

    actors: dict[str, tuple[str, str, float]]  # name -> kind, phase, time on a rank that has it
    firings: dict[str, dict[int, float]]  # of an actor, by firing within the step
    causes: dict[str, float]
    phases: dict[str, float]


def join(predicted: Trace, measured: Trace, plan: Plan | None = None) -> Comparison:
    """Join two traces of one plan.

    Parameters
    ----------
    predicted : Trace
        As the simulator writes it.
    measured : Trace
        As the executor writes it, with the times of firings.
    plan : Plan, optional
        The plan of both, for the causes of the error and the critical paths. None: without them.

    Returns
    -------
    Comparison
        Seconds per step by actor, cause and phase, each largest difference first.

    Raises
    ------
    PlanError
        The traces are of different plans, or one of them holds no finished step, or a rank that
        the plan has not.
    """
    if predicted.plan_digest != measured.plan_digest:
        raise PlanError(
            f"the trace is of plan {measured.plan_digest}, not of plan {predicted.plan_digest}: "
            f"give the plan that was run"
        )
    for trace in (predicted, measured):
        if not trace.lanes or trace.steps < 1 or not any(trace.step_end_ns):
            raise PlanError(f"the {trace.source} trace holds no finished step")
        if not trace.spans:
            raise PlanError(f"the {trace.source} trace holds no spans: write it with --trace")
    ranks = sum(lane.represents for lane in predicted.lanes)
    if strange := [lane.rank for lane in measured.lanes if not 0 <= lane.rank < ranks]:
        raise PlanError(f"the trace has rank {strange[0]}, the plan has ranks 0 to {ranks - 1}")
    before, after = _sums(predicted), _sums(measured)
    predicted_s, measured_s = step_time_ns(predicted) / 1e9, step_time_ns(measured) / 1e9
    comparison = Comparison(
        plan_digest=measured.plan_digest,
        predicted_step_time_s=predicted_s,
        measured_step_time_s=measured_s,
        step_time_error=predicted_s / measured_s - 1,
        actors=_actor_rows(before, after),
        causes=_cause_rows(before.causes, after.causes),
        phases=_cause_rows(before.phases, after.phases),
    )
    return comparison if plan is None else _explained(comparison, plan, predicted, measured)


def _explained(comparison: Comparison, plan: Plan, predicted: Trace, measured: Trace) -> Comparison:
    """Comparison with the causes of the error, where the trace has what they follow from."""
    from millrace.comparison.counterfactuals import Counterfactuals
    from millrace.comparison.error_causes import error_causes
    from millrace.comparison.measured_run import measured_run
    from millrace.comparison.path_walk import critical_paths
    from millrace.planner.compile import compile_plan

    run = measured_run(compile_plan(plan), measured)
    if run is None:
        return comparison
    replays = Counterfactuals(plan.cluster, run)
    return replace(
        comparison,
        error_causes=error_causes(replays, step_time_ns(predicted), step_time_ns(measured)),
        critical_paths=critical_paths(run, replays, predicted),
    )


def _actor_rows(before: _TraceTotals, after: _TraceTotals) -> tuple[ActorRow, ...]:
    """Rows of every actor in either trace, largest difference first."""
    rows = []
    for name in before.actors.keys() | after.actors.keys():
        left, right = before.actors.get(name), after.actors.get(name)
        kind, phase, _ = left or right or ("", "", 0.0)
        rows.append(
            ActorRow(
                name=name,
                kind=kind,
                phase=phase,
                predicted_s=None if left is None else left[2] / 1e9,
                measured_s=None if right is None else right[2] / 1e9,
                firings=_firing_times(before.firings.get(name, {}), after.firings.get(name, {})),
            )
        )
    rows.sort(key=lambda row: (-abs((row.predicted_s or 0) - (row.measured_s or 0)), row.name))
    return tuple(rows)


def _firing_times(before: dict[int, float], after: dict[int, float]) -> tuple[FiringTimes, ...]:
    """Times of an actor's firings in a step, none of one that fires once."""
    if before.keys() | after.keys() <= {0}:
        return ()
    return tuple(
        FiringTimes(*(None if ns is None else ns / 1e9 for ns in (before.get(f), after.get(f))))
        for f in range(max(before.keys() | after.keys()) + 1)
    )


def _cause_rows(before: dict[str, float], after: dict[str, float]) -> tuple[CauseRow, ...]:
    """Rows of every cause in either trace, largest difference first."""
    rows = [
        CauseRow(
            name=name,
            predicted_s=before.get(name, 0.0) / 1e9,
            measured_s=after.get(name, 0.0) / 1e9,
        )
        for name in before.keys() | after.keys()
    ]
    return tuple(sorted(rows, key=lambda row: (-abs(row.difference_s), -row.measured_s, row.name)))


def _sums(trace: Trace) -> _TraceTotals:
    """Sums of a trace's spans over the steps that count, in ns per step and rank."""
    counted = traced_steps(trace)
    steps = len(counted)
    ranks = sum(lane.represents for lane in trace.lanes)
    spans: dict[int, list[Span]] = {lane.rank: [] for lane in trace.lanes}
    lanes = {lane.rank: lane for lane in trace.lanes}
    for span in trace.spans:
        if step_of(span, lanes[span.rank]) in counted:
            spans[span.rank].append(span)
    actors: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    firings: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    kinds: dict[str, tuple[str, str]] = {}
    causes: dict[str, float] = defaultdict(float)
    phases: dict[str, float] = defaultdict(float)
    for lane, ends in zip(trace.lanes, trace.step_end_ns, strict=True):
        per_actor: dict[int, int] = defaultdict(int)
        for span in spans[lane.rank]:
            duration_ns = span.end_ns - span.start_ns
            per_actor[span.actor] += duration_ns
            firing = span.firing % max(lane.firings[span.actor], 1)
            firings[lane.actors[span.actor]][firing] += duration_ns / steps * lane.represents
        share = lane.represents / steps / ranks
        for actor, total_ns in sorted(per_actor.items()):
            name, kind, phase = lane.actors[actor], lane.kinds[actor], lane.phases[actor]
            actors[name][0] += total_ns / steps * lane.represents
            actors[name][1] += lane.represents
            kinds[name] = (kind, phase)
            if kind not in COLLECTIVES:
                causes[f"compute: {kind}"] += total_ns * share
                phases[phase] += total_ns * share
        window = (ends[counted.start - 1] if counted.start else 0, ends[counted.stop - 1])
        for kind, total_ns in _uncovered(lane, spans[lane.rank], window).items():
            causes[f"communication: {kind}" if kind else "idle"] += total_ns * share
            phases["communication" if kind else "idle"] += total_ns * share
    means = {name: (*kinds[name], total / holders) for name, (total, holders) in actors.items()}
    firing_means = {
        name: {firing: total / actors[name][1] for firing, total in sorted(totals.items())}
        for name, totals in firings.items()
    }
    return _TraceTotals(means, firing_means, causes, phases)


def _uncovered(lane: Lane, spans: list[Span], window: tuple[int, int]) -> dict[str, int]:
    """Nanoseconds in which a rank computes nothing, by the kind of its meeting ("": none)."""
    compute = [
        (span.start_ns, span.end_ns) for span in spans if lane.kinds[span.actor] not in COLLECTIVES
    ]
    meetings = [
        (span.start_ns, span.end_ns, lane.kinds[span.actor])
        for span in spans
        if lane.kinds[span.actor] in COLLECTIVES
    ]
    return exposed_ns_by_kind(compute, meetings, window)


def exposed_ns_by_kind(
    compute: list[tuple[int, int]],
    meetings: list[tuple[int, int, str]],
    window: tuple[int, int],
) -> dict[str, int]:
    """Split the part of a window that no compute covers among meetings; the rest is under "".

    Of several meetings under way at once the time goes to the one that ends first.

    Parameters
    ----------
    compute : list of (start, end)
        Intervals in which something is computed, in ns.
    meetings : list of (start, end, kind)
        Intervals in which a meeting is under way, in ns.
    window : (start, end)
        The interval that is split, in ns.

    Examples
    --------
    >>> exposed_ns_by_kind([(0, 4), (9, 10)], [(2, 7, "recv"), (3, 12, "all_reduce")], (0, 14))
    {'recv': 3, 'all_reduce': 4, '': 2}
    """
    intervals = [OwnedInterval(start, end, 0, COMPUTED) for start, end in compute]
    intervals += [OwnedInterval(start, end, 1, kind) for start, end, kind in meetings]
    ns_by_kind = covering_ns(intervals, *window)
    return {str(kind or ""): ns for kind, ns in ns_by_kind.items() if kind is not COMPUTED}
