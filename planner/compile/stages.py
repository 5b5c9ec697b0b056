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
        Its chunks, variants, mesh, schedule, offload and fusion count.
    graph : Graph
        The plan's training graph (`plan.graph`).
    across_blocks : bool
        True joins launches for many variables too, which no block can be counted for; False joins
        only sums over microbatches, within a block. Without fusion nothing is joined.

    Returns
    -------
    tuple (list of StageIR, Timetable)
        A draft per stage, its meetings in no bucket and in no order yet.

    Raises
    ------
    PlanError
        A block has no place or no signature, a signature does not fit its op, a tensor of every
        microbatch is read once a step, or no schedule has that name.
    InfeasibleError
        A shard does not divide, no boxing joins two SBPs, or the schedule cannot run the chunks.
    """
    lowering = Lowering(graph, plan.mesh, plan.stages, plan.microbatches, plan.offload)
    for placed in place(plan, graph):
        lowering.lower(placed)
    homes = tuple(chunk.stage for chunk in plan.chunks)
    table = timetable(plan.schedule, homes, plan.microbatches)
    stages = lowering.stages
    fused = fused_stages(stages, plan.fusion, joint=table.joint, across_blocks=across_blocks)
    return fused, table
