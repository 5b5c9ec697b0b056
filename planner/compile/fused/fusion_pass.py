"""Fusion pass: stages become as a plan's `fusion` wants them."""

from collections.abc import Sequence

from millrace.planner.compile.fused.fuse_actors import fused_draft
from millrace.planner.compile.fused.multi_tensor import joined_launches
from millrace.planner.compile.fused.row_pitch import padded
from millrace.planner.compile.stage_ir import StageIR
from millrace.planner.plan import FUSED


def fused_stages(
    drafts: Sequence[StageIR], fusion: str, *, joint: bool, across_blocks: bool = True
) -> list[StageIR]:
    """Drafts with their actors fused, or as they are.

    Parameters
    ----------
    drafts
        One per stage.
    fusion
        As a Plan has it.
    joint
        Gradients of inputs and of weights run together.
    across_blocks
        Joins launches for many variables too, which no block can be counted for.
    """
    if fusion != FUSED:
        return list(drafts)
    fused = [padded(fused_draft(draft, joint=joint)) for draft in drafts]
    return [joined_launches(draft, across_blocks=across_blocks) for draft in fused]
