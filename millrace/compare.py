"""Compare: predicted against measured, as a join of two traces actor by actor.

Every figure is seconds per step on the average rank, over the steps after the warm-up that have
spans (of a simulation: over its middle one). An actor's time is that of its spans; a meeting's span
begins when the rank arrives, so waiting for the others is part of it. Causes split a step without
overlap: compute by op kind, communication by kind where no compute hides it, and idle time (the
bubble).
"""

from collections import defaultdict
from statistics import median
from typing import NamedTuple

import msgspec

from millrace.planner.actors.interval_ownership import OwnedInterval, covering_ns
from millrace.planner.actors.trace import Lane, Span, Trace
from millrace.planner.collectives import COLLECTIVES
from millrace.planner.errors import PlanError

WARM_UP_STEPS = 5
COMPUTED = "computed"  # what covers a meeting


class ActorRow(msgspec.Struct, frozen=True, kw_only=True):
    """One actor in both traces; None where a trace does not have it."""

    name: str
    kind: str
    phase: str
    predicted_s: float | None
    measured_s: float | None


class CauseRow(msgspec.Struct, frozen=True, kw_only=True):
    """Time per step and average rank that goes to one cause."""

    name: str
    predicted_s: float
    measured_s: float

    @property
    def difference_s(self) -> float:
        """Predicted minus measured time, in seconds."""
        return self.predicted_s - self.measured_s


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The join of two traces; `step_time_error` is predicted / measured - 1."""

    plan_digest: str
    predicted_step_time_s: float
    measured_step_time_s: float
    step_time_error: float
    actors: tuple[ActorRow, ...]
    causes: tuple[CauseRow, ...]
    phases: tuple[CauseRow, ...]


class _TraceTotals(NamedTuple):
    """Nanoseconds per step of one trace, each averaged over ranks."""

    actors: dict[str, tuple[str, str, float]]  # name -> kind, phase, time on a rank that has it
    causes: dict[str, float]
    phases: dict[str, float]


def join(predicted: Trace, measured: Trace) -> Comparison:
    """Join two traces of one plan.

    Parameters
    ----------
    predicted : Trace
        As the simulator writes it.
    measured : Trace
        As the executor writes it, with the times of firings.

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
    return Comparison(
        plan_digest=measured.plan_digest,
        predicted_step_time_s=predicted_s,
        measured_step_time_s=measured_s,
        step_time_error=predicted_s / measured_s - 1,
        actors=_actor_rows(before, after),
        causes=_cause_rows(before.causes, after.causes),
        phases=_cause_rows(before.phases, after.phases),
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
            )
        )
    rows.sort(key=lambda row: (-abs((row.predicted_s or 0) - (row.measured_s or 0)), row.name))
    return tuple(rows)


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
    kinds: dict[str, tuple[str, str]] = {}
    causes: dict[str, float] = defaultdict(float)
    phases: dict[str, float] = defaultdict(float)
    for lane, ends in zip(trace.lanes, trace.step_end_ns, strict=True):
        per_actor: dict[int, int] = defaultdict(int)
        for span in spans[lane.rank]:
            per_actor[span.actor] += span.end_ns - span.start_ns
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
    return _TraceTotals(means, causes, phases)


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


def counted_steps(trace: Trace) -> range:
    """Steps that count: those after the warm-up, the middle one of a simulation.

    A simulated step that has one before and one behind it shows the steady state, so one of them
    says it all.
    """
    if trace.source == "simulated":
        middle = max(trace.steps - 2, 0) if trace.steps > 2 else trace.steps - 1
        return range(middle, middle + 1)
    return range(WARM_UP_STEPS if trace.steps > WARM_UP_STEPS else 0, trace.steps)


def traced_steps(trace: Trace) -> range:
    """Steps that count and have spans (a GPU's run keeps them of its last steps)."""
    counted = counted_steps(trace)
    lanes = {lane.rank: lane for lane in trace.lanes}
    first = min((step_of(span, lanes[span.rank]) for span in trace.spans), default=0)
    return range(min(max(counted.start, first), counted.stop), counted.stop)


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
