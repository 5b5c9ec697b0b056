"""The compiler's passes, in order: place, lower, slots, orders, places in memory, proof."""

from dataclasses import dataclass

from millrace.planner.actors.graph import ActorGraph
from millrace.planner.actors.null_clock import run_to_completion
from millrace.planner.actors.validate import validate
from millrace.planner.compile.arena import lay_out
from millrace.planner.compile.collectives import bucketed, hold_back
from millrace.planner.compile.queue_orders import (
    FirstStep,
    first_step,
    joined,
    unordered,
    with_queues,
    with_slots,
)
from millrace.planner.compile.slots import Timetable
from millrace.planner.compile.stage_ir import StageIR
from millrace.planner.compile.stages import lowered
from millrace.planner.costs import durations
from millrace.planner.costs.launch_overhead import Pacing, pacing_of
from millrace.planner.plan import FUSED, Plan, check_plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordered:
    """A plan compiled but for its places in memory.

    `first` is the run that gave the orders: of one step, by `durations_ns` per program and actor;
    `pacing` is what else held it back.
    """

    graph: ActorGraph
    drafts: tuple[StageIR, ...]
    table: Timetable
    durations_ns: tuple[tuple[int, ...], ...]
    first: FirstStep
    pacing: Pacing | None


def compile_plan(plan: Plan, *, in_buckets: bool | None = None) -> ActorGraph:
    """Actor graph of a plan, proven to run to its end.

    Parameters
    ----------
    plan
        The plan.
    in_buckets
        True joins collectives of state (`millrace.planner.compile.collectives`); None: where the
        plan's ops are fused.

    Raises
    ------
    PlanError
        The plan is malformed, or does not fit the model's ops.
    InfeasibleError
        Shards or microbatches do not divide, or the schedule cannot run the chunks.
    ProtocolError
        The compiled graph would deadlock (a bug in a schedule or in the compiler).
    """
    check_plan(plan)
    ordered = ordered_plan(plan, in_buckets=in_buckets)
    laid_out = [
        lay_out(program, draft, ordered.table)
        for program, draft in zip(ordered.graph.programs, ordered.drafts, strict=True)
    ]
    actors = validate(joined(laid_out, plan.model.name, plan.mesh.axes))
    run_to_completion(actors)
    return actors


def ordered_plan(plan: Plan, *, in_buckets: bool | None = None) -> Ordered:
    """Plan compiled but for its places in memory.

    That it runs to its end is shown by a run, not proven: whoever simulates it sees.

    Parameters
    ----------
    plan : Plan
        Checked first (`check_plan`).
    in_buckets : bool, optional
        True joins collectives of state (`millrace.planner.compile.collectives`), False leaves each
        by itself; None: joined where the plan's ops are fused.

    Raises
    ------
    PlanError
        The plan is malformed, or does not fit the model's ops.
    ModelError
        The plan's specification of the model gives no graph.
    InfeasibleError
        The cluster has too few devices, shards or microbatches do not divide, or the schedule
        cannot run the chunks.
    ClusterError
        A device has no rate for the precision of an op.
    ProtocolError
        The schedule's orders wait for one another in a cycle.
    """
    check_plan(plan)
    drafts, table = lowered(plan, plan.graph)
    for stage, draft in enumerate(drafts):
        hold_back(draft, table.joint)
        if plan.fusion == FUSED if in_buckets is None else in_buckets:
            drafts[stage] = bucketed(
                draft,
                table.orders[stage],
                stage,
                plan.mesh,
                plan.cluster,
                table.paired_slots[stage],
            )
    programs = [
        unordered(draft, f"stage {stage}", stage, table.orders[stage], table.paired_slots[stage])
        for stage, draft in enumerate(drafts)
    ]
    actors = joined(programs, plan.model.name, plan.mesh.axes)
    actors = with_slots(actors, drafts, table)
    durations_ns = durations(actors, plan.cluster)
    pacing = pacing_of(actors, plan.cluster)
    first = first_step(actors, drafts, durations_ns, pacing)
    return Ordered(
        graph=with_queues(actors, drafts, first),
        drafts=tuple(drafts),
        table=table,
        durations_ns=durations_ns,
        first=first,
        pacing=pacing,
    )
