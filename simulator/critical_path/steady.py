"""The steady step: what a run of several steps comes to, without events.

Ops are followed through the steps (`millrace.simulator.replay`). For stages one step is enough: all
ranks meet in the step's totals, and by then everything but the updates is over. So how a step goes
on follows from the updates alone, which take the same time in every step: steps are alike from the
second on, and the third adds nothing. Of one step, from meeting to meeting, all times are computed
as longest paths (`millrace.simulator.critical_path.firings`); how long computation takes beside
moving data is guessed until the times confirm it (`millrace.simulator.critical_path.contention`).

Lanes take transfers in the order in which they are ready in a first step that begins at once, as
`millrace.planner.compile.queue_orders` has it. That order is guessed, the times follow, and where
they contradict it they give the next guess: an order that its own times confirm is the one that a
run finds. What the order of launching, the same run's, holds back is found likewise. Where no guess
is confirmed there is no answer, and events find one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from millrace.planner.actors.graph import Program
from millrace.planner.compile.passes import Ordered
from millrace.planner.compile.slots import Timetable
from millrace.planner.costs.launch_overhead import Pacing
from millrace.simulator.chunks.chunk_graph import CoarseGraph
from millrace.simulator.critical_path.contention import moves_early, slowed
from millrace.simulator.critical_path.firings import Nodes, StepNodes
from millrace.simulator.replay import Replay, Times, followed
from millrace.simulator.step_split import WindowSplit, covered_ns, split, stage_means, step_ends_ns

GUESSES = 8  # orders of lanes that are tried
SLOWED = 8  # guesses of how long parts take beside moving data
CLOSE = 0.002  # two guesses that give steps so alike are as good as confirmed


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyStep:
    """Figures of a steady step, as `millrace.simulator.simulate.Simulated` has them."""

    step_time_ns: int
    bubble_fraction: float
    exposed_communication_ns: int
    busy_by_stage: tuple[float, ...]


def steady_ops(ordered: Ordered) -> SteadyStep:
    """Figures that the third of three simulated steps of a compiled plan would show.

    The steps are followed one by one (`millrace.simulator.replay`): the second, and as much of
    the third as begins before the second is over on every rank. Events run where data that moves
    slows what is computed.
    """
    programs, pacing = ordered.graph.programs, ordered.pacing
    if pacing is not None and pacing.overlap < 1:
        return _seen(programs, *followed(ordered.graph, ordered.durations_ns, pacing, 3, wanted=2))
    steps = Replay(ordered.graph, ordered.durations_ns, ordered.first, pacing)
    steps.follow()
    steps.follow(until_ns=_second_step(programs, steps.ends)[1])
    return _seen(programs, steps.starts, steps.ends)


def steady_chunks(coarse: CoarseGraph) -> SteadyStep:
    """Figures that the third of three simulated steps of a coarse graph would show, by events."""
    graph = coarse.ordered()
    asked = graph, coarse.durations_ns, coarse.pacing, 3
    return _seen(graph.programs, *followed(*asked, wanted=2, firings_ns=coarse.firings_ns))


def _seen(
    programs: Sequence[Program], starts: Sequence[Sequence[Times]], ends: Sequence[Sequence[Times]]
) -> SteadyStep:
    """Figures of the second step of a run, from the times of its firings."""
    begin_ns, end_ns = _second_step(programs, ends)
    rows = zip(programs, starts, ends, strict=True)
    parts = [split(*row, begin_ns, end_ns) for row in rows]
    return _mean(end_ns - begin_ns, programs, parts)


def _second_step(programs: Sequence[Program], rows: Sequence[Sequence[Times]]) -> tuple[int, int]:
    """Begin and end of the second step on the slowest rank."""
    ends = [step_ends_ns(*program_ends, 2) for program_ends in zip(programs, rows, strict=True)]
    begin_ns, end_ns = (max(column) for column in zip(*ends, strict=True))
    return begin_ns, end_ns


def steady_step(coarse: CoarseGraph, table: Timetable) -> SteadyStep | None:
    """Figures that the third of three simulated steps of a coarse graph would show.

    Parameters
    ----------
    coarse
        The plan's chunks, as `millrace.simulator.chunks.chunk_graph.coarse_graph` gives them.
    table
        Their timetable.

    Returns
    -------
    SteadyStep or None
        None where only events can tell.
    """
    firings = StepNodes(coarse, table)
    first = _first_step(firings)
    if first is None:
        return None
    updates, world = _last(firings)
    last = np.asarray([firings.group_of[i][actor].base for i, actor in enumerate(updates)])
    updated = firings.durations[last].tolist()
    if coarse.pacing is not None:
        # The host may still launch updates when the totals are known, and data slow what it met.
        early = _paced_step(firings, first, [0] * len(updates), coarse.pacing)
        if early is None:
            return None
        updated = (early[last] - early[world]).tolist()
    ends = _paced_step(firings, first, updated, coarse.pacing)
    if ends is None:
        return None
    over = np.ones(firings.count, bool)
    over[[world, *last]] = False
    meeting_ns = int(firings.durations[world])
    if (ends[: firings.count][over] > ends[world] - meeting_ns).any():
        return None
    step_ns = int(ends[last].max()) - max(updated)
    return _figures(firings, ends, step_ns, max(updated))


def _first_step(firings: StepNodes) -> Nodes | None:
    """Ends of a step that begins at once, its lanes in the order that they themselves give."""
    for _ in range(GUESSES):
        begun = [0] * len(firings.programs)
        ends = firings.ends(begun, firings.floors(begun))
        if ends is None:
            return None
        settled = True
        times = firings.ready(ends)
        for lane, nodes in enumerate(firings.lanes):
            ready = times[nodes]
            if (ready[1:] < ready[:-1]).any():
                settled = False
                firings.lanes[lane] = nodes[np.argsort(ready, kind="stable")]
                firings.set_order(firings.lanes[lane])
        if settled:
            return ends
    return None


def _last(firings: StepNodes) -> tuple[list[int], int]:
    """Actor that ends each program's step, and the node of the meeting before it."""
    updates = [program.queues[0].order[-1] for program in firings.programs]
    (world,) = (
        group.base
        for group in firings.groups
        for program, actor in group.members[:1]
        if (meeting := firings.programs[program].actors[actor].meeting) and meeting.world
    )
    return updates, world


def _paced_step(
    firings: StepNodes, first: Nodes, updated_ns: list[int], pacing: Pacing | None
) -> Nodes | None:
    """Ends of a step after another, whose durations are those that its times give.

    In long steps guesses are confirmed from the begin onwards, and the length of the step long
    before its last firing.
    """
    if pacing is None or pacing.overlap == 1:
        return _launched_step(firings, first, updated_ns)
    step_ns = 0
    for _ in range(SLOWED):
        before, ends = step_ns, _launched_step(firings, first, updated_ns)
        if ends is None or moves_early(firings, ends, updated_ns):
            return None
        durations = slowed(firings, firings.work, ends, pacing)
        if (durations == firings.durations).all():
            return ends
        step_ns = int(ends.max())
        firings.durations = durations
    return ends if abs(step_ns - before) <= CLOSE * step_ns else None


def _launched_step(firings: StepNodes, first: Nodes, updated_ns: list[int]) -> Nodes | None:
    """Ends of a step after another, its meetings launched in the order of the first."""
    begun = first[: firings.count] - firings.durations
    floors = firings.floors(updated_ns)
    for _ in range(GUESSES):
        ends = firings.ends(updated_ns, floors)
        if ends is None:
            return None
        launched = _launches(firings, begun, ends)
        if (launched <= ends[: firings.count] - firings.durations).all():
            return ends
        floors = np.maximum(floors, launched)
    return None


def _launches(firings: StepNodes, begun: Nodes, ends: Nodes) -> Nodes:
    """Launch time of the last member of each meeting: after all that are launched before.

    A member is ready for it when what it waits for itself is over.
    """
    launched = np.zeros(firings.count, np.int64)
    for index, groups in enumerate(firings.group_of):
        nodes, ready = [], []
        for actor, group in enumerate(groups):
            if group.lane is not None:
                member_waits = group.waits[group.members.index((index, actor))]
                columns = np.stack([firings.before[group.nodes], *member_waits])
                nodes.append(group.nodes)
                ready.append(ends[columns].max(axis=0))
        meeting_nodes = np.concatenate(nodes)
        order = np.argsort(begun[meeting_nodes], kind="stable")
        latest = np.maximum.accumulate(np.concatenate(ready)[order])
        launched[meeting_nodes[order]] = np.maximum(launched[meeting_nodes[order]], latest)
    return launched


def _figures(firings: StepNodes, ends: Nodes, step_ns: int, begin_ns: int) -> SteadyStep:
    """Bubbles and exposed communication, from the end of a step's last update to the next's."""
    parts = []
    for groups in firings.group_of:
        nodes = np.concatenate([group.nodes for group in groups])
        until = ends[nodes]
        since = until - firings.durations[nodes]
        # What began before the window is seen again at its end: the next step begins like this.
        early = since < begin_ns
        again = (since[early] + step_ns, until[early] + step_ns)
        either = covered_ns([(since, until), again], begin_ns, begin_ns + step_ns)
        computed = [group.nodes for group in groups if group.lane is None]
        busy = int(firings.durations[np.concatenate(computed)].sum())
        parts.append(WindowSplit(busy, either - busy, step_ns - either))
    return _mean(step_ns, firings.programs, parts)


def _mean(step_ns: int, programs: Sequence[Program], parts: list[WindowSplit]) -> SteadyStep:
    """Figures of a step, from those of every program's representative."""
    bubble_ns = float(np.mean([part.bubble_ns for part in parts]))
    return SteadyStep(
        step_time_ns=step_ns,
        bubble_fraction=bubble_ns / step_ns if step_ns else 0.0,
        exposed_communication_ns=round(float(np.mean([part.exposed_ns for part in parts]))),
        busy_by_stage=stage_means(programs, (part.busy_ns / max(step_ns, 1) for part in parts)),
    )
