"""Coverage: how much of a step is priced by what a profile has measured, and how much beyond it."""

from collections import defaultdict
from collections.abc import Iterator

import msgspec

from millrace.planner.actors.graph import ActorGraph
from millrace.planner.cluster import Cluster
from millrace.planner.compile import compile_plan
from millrace.planner.costs.actors import durations, firing_of_actor
from millrace.planner.costs.op_batch import OpFirings
from millrace.planner.costs.ops import times_beyond
from millrace.planner.costs.tables.shape_tables import NEAR
from millrace.planner.plan import Plan

SHOWN_KINDS = 3
SAID = 0.02  # Less of a step is not worth a word.


class Extrapolation(msgspec.Struct, frozen=True, kw_only=True):
    """Kind of op that is priced beyond its table: its share of all ops' time, and how far beyond.

    `times` is its largest work over that of the last measured point.
    """

    kind: str
    share: float
    times: float


def extrapolations_of(plan: Plan) -> tuple[Extrapolation, ...]:
    """Kinds of op of a step whose work is beyond what the profile measured, largest share first.

    Parameters
    ----------
    plan : Plan
        With its cluster; devices that were not measured extrapolate nothing.
    """
    cluster = plan.cluster
    if not cluster.device.kernels:
        return ()
    graph = compile_plan(plan)
    total_ns = 0
    spent_ns: dict[str, int] = defaultdict(int)
    farthest: dict[str, float] = defaultdict(float)
    for firings, duration_ns in op_times(graph, cluster):
        total_ns += duration_ns
        if (times := times_beyond(firings, cluster.device)) > NEAR:
            spent_ns[firings.kind] += duration_ns
            farthest[firings.kind] = max(farthest[firings.kind], times)
    rows = [
        Extrapolation(kind=kind, share=kind_ns / max(total_ns, 1), times=farthest[kind])
        for kind, kind_ns in spent_ns.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.share, row.kind)))


def coverage_warning(rows: tuple[Extrapolation, ...]) -> str | None:
    """Sentence that says how much of a step is extrapolated; None where next to nothing is.

    Parameters
    ----------
    rows : tuple of Extrapolation
        As `extrapolations_of` gives them.
    """
    share = sum(row.share for row in rows)
    if share < SAID:
        return None
    kinds = ", ".join(f"{row.kind} of {row.times:.1f} times the work" for row in rows[:SHOWN_KINDS])
    return (
        f"{100 * share:.0f} % of the ops' time is beyond what the profile measured ({kinds}); "
        f"`millrace compare --update-profile` after a run measures it"
    )


def op_times(graph: ActorGraph, cluster: Cluster) -> Iterator[tuple[OpFirings, int]]:
    """Firings of every actor of one op, and the nanoseconds that they take of a step on all ranks.

    Parameters
    ----------
    graph : ActorGraph
        A compiled plan.
    cluster : Cluster
        The devices, whose tables price it.
    """
    for program, row in zip(graph.programs, durations(graph, cluster), strict=True):
        for actor, duration_ns in zip(program.actors, row, strict=True):
            if actor.meeting is None and not actor.parts:
                spent_ns = duration_ns * actor.firings * len(program.ranks)
                yield firing_of_actor(actor, program), spent_ns
