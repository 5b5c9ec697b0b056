"""Stages: a plan placed, lowered and fused, with the orders of its schedule."""

from millrace.models.graph import Graph
from millrace.planner.compile.fused import fused_stages
from millrace.planner.compile.lowering import Lowering
from millrace.planner.compile.placement import place
from millrace.planner.compile.slots import Timetable, timetable
from millrace.planner.compile.stage_ir import StageIR
from millrace.planner.plan import Plan


def lowered(
    plan: Plan, graph: Graph, *, across_blocks: bool = True
) -> tuple[list[StageIR], Timetable]:
    """Stages of a plan as its `fusion` wants them, and the orders of its schedule.

    Parameters
    ----------
    plan : Plan
        The plan.
    graph : Graph
        Training graph of its model.
    across_blocks : bool
        True if ops of two blocks may be one actor.
    """
    lowering = Lowering(graph, plan.mesh, plan.stages, plan.microbatches, plan.offload)
    for placed in place(plan, graph):
        lowering.lower(placed)
    homes = tuple(chunk.stage for chunk in plan.chunks)
    table = timetable(plan.schedule, homes, plan.microbatches)
    stages = lowering.stages
    fused = fused_stages(stages, plan.fusion, joint=table.joint, across_blocks=across_blocks)
    return fused, table
