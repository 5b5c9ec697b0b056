"""Causes of the error: shares that add up to the measured less the predicted step time.

A step is replayed with the prediction's durations, and then one kind of thing after another is
replaced by what was measured. How much longer the step takes than in the replay before is the share
of that cause; the first replay is the prediction, the last reproduces the measured ends. Each cause
is split the same way by its items, those first that change most. In this order:

1. *op cost*: ops take what they were measured to compute while no meeting moves data beside them,
   on the reference rank (`millrace.comparison.measured_costs`); by kind of op.
2. *overlap*: ops beside which data moves take what they were measured to take then; by kind of op.
   A slowdown that was predicted ends here.
3. *stragglers*: each rank takes what it was measured to take itself; by rank.
4. *waiting for a core*: firings also take the time in which their thread had no core, and begin as
   much later as it had none when it woke; by rank. Ranks that share cores wait for each other in
   the prediction too, which ends here. Traces that do not say how long a firing had a core have no
   such cause.
5. *collective cost*: meetings take as long as measured, from the last member's arrival to the
   first member's end: what ranks wait for one another is no part of it; by kind and link.
6. *host overhead*: firings begin as much after they could as measured: until a thread has woken, or
   was launched; by rank. Launches that were predicted end here.
7. *variation*: every firing of every step takes its own time, instead of a typical one. Ranks that
   meet wait for whoever is late; by rank, and by kind and link of meetings. Variation that was
   predicted, from the profile's jitter, is taken off.
8. *left over*: what the last replay lacks to the measured step time, and the first to the
   predicted.

The order matters where things hide each other: an op that got slower beside a transfer adds nothing
to the step while the transfer takes longer. It goes from what a profile can be wrong in to what
only a run has, so that a share is that of the simplest explanation that is left: a step is not
called unlucky where its ops are slow, and nobody is late by himself whose ops are.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from millrace.comparison.comparison import (
    COLLECTIVE_COST,
    HOST_OVERHEAD,
    LEFT_OVER,
    OP_COST,
    OTHERS,
    OVERLAP,
    STRAGGLERS,
    VARIATION,
    WAITING,
    ErrorCause,
    ErrorItem,
)
from millrace.comparison.counterfactuals import STEADY_STEPS, Counterfactuals, Key, Scenario
from millrace.comparison.measured_costs import OpCosts, meeting_costs, meeting_waits, typical_mean
from millrace.comparison.measured_run import MeasuredRun, Table, Times

ITEMS_MAX = 6  # items of a cause with a replay of their own
ITEM_EVENTS = 250_000  # in the replays of a cause's items: two or three seconds
NEGLIGIBLE = 0.01  # of the step time: causes that change less than that are not split
SHARING = "waits that were predicted"
VARYING = "variation that was predicted"
CONTENTION = "slowdown that was predicted"
LAUNCHES = "launches that were predicted"

Name = Callable[[int, int], str]  # of the item that a rank's actor belongs to


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cause:
    """Scenario once the cause is replaced, and the items that its actors belong to.

    `ends`: the item for what slows firings beside their durations and lags in the prediction, where
    that ends here.
    """

    name: str
    scenario: Scenario
    item: Name
    ends: str = ""
    steps: int = STEADY_STEPS


def error_causes(
    replays: Counterfactuals, predicted_ns: int, measured_ns: int
) -> tuple[ErrorCause, ...]:
    """Causes of the error of a step time, largest first.

    Parameters
    ----------
    replays : Counterfactuals
        Replays of the measured run.
    predicted_ns, measured_ns : int
        Step times; the shares lead from the first to the second.
    """
    scenario = replays.predicted()
    before_ns = first_ns = replays.step_time_ns(scenario)
    causes = []
    for cause in _causes(replays.run, scenario):
        began_ns, items = before_ns, []
        affordable = min(ITEM_EVENTS // replays.events(cause.scenario, cause.steps), ITEMS_MAX)
        for name, changed in _scenarios(scenario, cause, affordable, measured_ns):
            scenario, after_ns = changed, replays.step_time_ns(changed)
            items.append(ErrorItem(name=name, seconds=(after_ns - before_ns) / 1e9))
            before_ns = after_ns
        items.sort(key=lambda item: (-abs(item.seconds), item.name))
        seconds = (before_ns - began_ns) / 1e9
        split = [item.name for item in items] not in ([], [OTHERS])
        causes.append(
            ErrorCause(name=cause.name, seconds=seconds, items=tuple(items) if split else ())
        )
        if cause.name == VARIATION and replays.cluster.device.jitter:
            causes[-1] = _less_predicted(causes[-1], (predicted_ns - first_ns) / 1e9)
            first_ns = predicted_ns
    left_ns = measured_ns - before_ns + first_ns - predicted_ns
    causes.append(ErrorCause(name=LEFT_OVER, seconds=left_ns / 1e9))
    return tuple(sorted(causes, key=lambda cause: -abs(cause.seconds)))


def _less_predicted(cause: ErrorCause, seconds: float) -> ErrorCause:
    """Variation less what the prediction had of it, by the profile's jitter."""
    items = cause.items or (ErrorItem(name=OTHERS, seconds=cause.seconds),)
    items = (*items, ErrorItem(name=VARYING, seconds=-seconds))
    return ErrorCause(name=cause.name, seconds=cause.seconds - seconds, items=items)


def _scenarios(
    scenario: Scenario, cause: _Cause, items_max: int, step_time_ns: int
) -> Iterator[tuple[str, Scenario]]:
    """Scenarios that lead through a cause item by item, those that change most first."""
    target = cause.scenario
    if (target.shares_cores, target.pacing) != (scenario.shares_cores, scenario.pacing):
        scenario = replace(scenario, shares_cores=target.shares_cores, pacing=target.pacing)
        yield cause.ends, scenario
    work: dict[str, dict[Key, Times]] = defaultdict(dict)
    lags: dict[str, dict[Key, Times]] = defaultdict(dict)
    weights: dict[str, float] = defaultdict(float)
    for entries, before, after in (
        (work, scenario.work, target.work),
        (lags, scenario.lags, target.lags),
    ):
        for rank, rows in enumerate(zip(before, after, strict=True)):
            for actor, (old, new) in enumerate(zip(*rows, strict=True)):
                if old is not new:
                    change_ns = float(np.abs(new - old).sum()) / len(new)
                    if change_ns:
                        name = cause.item(rank, actor)
                        entries[name][rank, actor] = new
                        weights[name] += change_ns
    names = sorted(weights, key=lambda name: (-weights[name], name))
    if sum(weights.values()) < NEGLIGIBLE * step_time_ns * len(scenario.work):
        items_max = 0
    apart = len(names) if len(names) == items_max + 1 and items_max else items_max
    for group in [*([name] for name in names[:apart]), names[apart:]]:
        for name in group:
            scenario = scenario.changed(work[name], lags[name])
        if group:
            yield group[0] if len(group) == 1 else OTHERS, scenario


def _causes(run: MeasuredRun, predicted: Scenario) -> Iterator[_Cause]:
    """Causes in their order, each with the scenario that it leads to."""
    programs = run.programs
    links = {key: group.name for group in run.groups for key in group.members}

    def kind(rank: int, actor: int) -> str:
        return programs[rank].actors[actor].kind

    def rank_or_link(rank: int, actor: int) -> str:
        return links.get((rank, actor), f"rank {rank}")

    costs = OpCosts(run, predicted.work)
    at_rest = replace(predicted, work=costs.without_overlap())
    if not run.times_cores:
        at_rest = replace(at_rest, shares_cores=False)
    yield _Cause(name=OP_COST, scenario=at_rest, item=kind, ends=SHARING)
    pacing = predicted.pacing and predicted.pacing._replace(overlap=1.0)
    beside = replace(at_rest, work=costs.with_overlap(at_rest.work), pacing=pacing)
    yield _Cause(name=OVERLAP, scenario=beside, item=kind, ends=CONTENTION)
    apart = replace(beside, work=costs.by_rank(beside.work))
    yield _Cause(name=STRAGGLERS, scenario=apart, item=rank_or_link)
    waits, waiting = meeting_waits(run), apart
    if run.times_cores:
        waiting = replace(
            apart,
            work=_with_waits(run, apart.work, waits),
            lags=_typical(run, run.core_lags),
            shares_cores=False,
        )
        late = _latest_members(run)
        yield _Cause(
            name=WAITING,
            scenario=waiting,
            item=lambda rank, actor: f"rank {late.get((rank, actor), rank)}",
            ends=SHARING,
        )
    met = [
        cost + typical_mean(run, waited)
        for cost, waited in zip(meeting_costs(run, waits), waits, strict=True)
    ]
    moving = replace(waiting, work=_with_meetings(run, waiting.work, met))
    yield _Cause(name=COLLECTIVE_COST, scenario=moving, item=rank_or_link)
    lagging = replace(moving, lags=_typical(run, run.lags), pacing=None)
    yield _Cause(
        name=HOST_OVERHEAD,
        scenario=lagging,
        item=lambda rank, actor: f"rank {rank}",
        ends=LAUNCHES,
    )
    durations: Table = [
        [until - since for since, until in zip(*rows, strict=True)]
        for rows in zip(run.starts, run.ends, strict=True)
    ]
    moved = [met - moves for moves, met in zip(run.moves, run.met, strict=True)]
    exact = replace(lagging, work=_with_meetings(run, durations, moved), lags=run.lags)
    yield _Cause(name=VARIATION, scenario=exact, item=rank_or_link, steps=run.steps)


def _with_meetings(run: MeasuredRun, work: Table, times: list[Times]) -> Table:
    """Table in which the members of every meeting have its time."""
    rows = [list(row) for row in work]
    for group, duration in zip(run.groups, times, strict=True):
        for rank, actor in group.members:
            rows[rank][actor] = duration
    return rows


def _with_waits(run: MeasuredRun, work: Table, meeting_waits_ns: list[Times]) -> Table:
    """Table in which firings also take the time in which their thread typically had no core."""
    waits = _typical(run, _with_meetings(run, run.waits, meeting_waits_ns))
    return [
        [cost + waited for cost, waited in zip(*rows, strict=True)]
        for rows in zip(work, waits, strict=True)
    ]


def _typical(run: MeasuredRun, table: Table) -> Table:
    return [[typical_mean(run, times) for times in row] for row in table]


def _latest_members(run: MeasuredRun) -> dict[Key, int]:
    """Rank of every meeting that had no core for longest, by the meeting's members."""
    ranks: dict[Key, int] = {}
    for group in run.groups:
        ranks |= dict.fromkeys(
            group.members,
            max((int(run.waits[rank][actor].sum()), -rank, rank) for rank, actor in group.members)[
                -1
            ],
        )
    return ranks
