"""The compiler's passes, in order: place, lower, slots, orders, places in memory, proof."""

from models.graph import Graph
from planner.actors.graph import ActorGraph
from planner.actors.null_clock import run_to_completion
from planner.actors.validate import validate
from planner.compile.arena import lay_out
from planner.compile.lowering import Lowering
from planner.compile.orders import joined, unordered, with_queues, with_slots
from planner.compile.placement import check_plan, place
from planner.compile.prefetch import hold_back
from planner.compile.slots import timetable
from planner.costs import durations
from planner.plan import Plan, plan_graph


def compile_plan(plan: Plan, graph: Graph | None = None) -> ActorGraph:
    """Return the actor graph of a plan, proven to run to its end.

    Parameters
    ----------
    plan
        The plan.
    graph
        Its graph, as `plan_graph` gives it, where it is already at hand.

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
    if graph is None:
        graph = plan_graph(plan)
    lowering = Lowering(graph, plan.mesh, plan.stages, plan.microbatches, plan.offload)
    for placed in place(plan, graph):
        lowering.lower(placed)
    drafts = lowering.stages
    homes = tuple(chunk.stage for chunk in plan.chunks)
    table = timetable(plan.schedule, homes, plan.microbatches)
    for draft in drafts:
        hold_back(draft, table.joint)
    programs = [
        unordered(draft, f"stage {stage}", stage, table.orders[stage])
        for stage, draft in enumerate(drafts)
    ]
    actors = joined(programs, plan.model.name, plan.mesh.axes)
    actors = with_slots(actors, drafts, table)
    actors = with_queues(actors, drafts, durations(actors, plan.cluster))
    laid_out = [
        lay_out(program, draft, table.joint)
        for program, draft in zip(actors.programs, drafts, strict=True)
    ]
    actors = validate(joined(laid_out, plan.model.name, plan.mesh.axes))
    run_to_completion(actors)
    return actors
