"""Stages as a plan's `fusion` wants them."""

from collections.abc import Sequence

from millrace.models.graph import Graph
from millrace.planner.compile.draft import DraftStage
from millrace.planner.compile.fused.drafts import fused_draft
from millrace.planner.compile.fused.launches import joined_launches
from millrace.planner.compile.fused.padding import padded
from millrace.planner.compile.lowering import Lowering
from millrace.planner.compile.placement import place
from millrace.planner.compile.slots import Timetable, timetable
from millrace.planner.plan import FUSED, Plan


def fused_stages(
    drafts: Sequence[DraftStage], fusion: str, *, joint: bool, across_blocks: bool = True
) -> list[DraftStage]:
    """Return drafts with their actors fused, or as they are.

    Parameters
    ----------
    drafts
        One per stage.
    fusion
        As a Plan has it.
    joint
        Gradients of inputs and of weights run together.
    across_blocks
        Join what launches for many variables too, which no block can be counted for.
    """
    if fusion != FUSED:
        return list(drafts)
    fused = [padded(fused_draft(draft, joint=joint)) for draft in drafts]
    return [joined_launches(draft, across_blocks=across_blocks) for draft in fused]


def lowered(
    plan: Plan, graph: Graph, *, across_blocks: bool = True
) -> tuple[list[DraftStage], Timetable]:
    """Return the stages of a plan as its `fusion` wants them, and the orders of its schedule."""
    lowering = Lowering(graph, plan.mesh, plan.stages, plan.microbatches, plan.offload)
    for placed in place(plan, graph):
        lowering.lower(placed)
    homes = tuple(chunk.stage for chunk in plan.chunks)
    table = timetable(plan.schedule, homes, plan.microbatches)
    stages = lowering.stages
    fused = fused_stages(stages, plan.fusion, joint=table.joint, across_blocks=across_blocks)
    return fused, table
