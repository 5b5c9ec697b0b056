"""Stages as a plan's `fusion` wants them."""

from collections.abc import Sequence

from millrace.planner.compile.draft import DraftStage
from millrace.planner.compile.fused.drafts import fused_draft
from millrace.planner.compile.fused.launches import joined_launches
from millrace.planner.compile.fused.padding import padded
from millrace.planner.plan import FUSED


def fused_stages(
    drafts: Sequence[DraftStage], fusion: str, *, joint: bool, across_blocks: bool = True
) -> list[DraftStage]:
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
