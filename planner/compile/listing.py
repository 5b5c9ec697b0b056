"""Listing: the ops of a plan that are fused, block template by block template."""

from millrace.planner.compile.stages import lowered
from millrace.planner.plan import Plan, check_plan


def fused_ops(plan: Plan) -> dict[str, tuple[tuple[str, ...], ...]]:
    """Ops that become one actor each, of the first block of every template.

    Names have the block's cut off. What a step's ends do to all variables at once is in no block,
    and left out.

    Parameters
    ----------
    plan
        The plan.

    Raises
    ------
    PlanError
        The plan is malformed, or does not fit the model's ops.
    InfeasibleError
        Shards or microbatches do not divide.
    """
    check_plan(plan)
    drafts, _ = lowered(plan, plan.graph, across_blocks=False)
    blocks: dict[str, str] = {}  # the first of every template
    for block in plan.graph.blocks:
        blocks.setdefault(plan.graph.templates[block], block)
    rows: dict[str, list[tuple[str, ...]]] = {}
    for actor in (actor for draft in drafts for actor in draft.actors if actor.parts):
        rows.setdefault(actor.block, []).append(
            tuple(part.name.removeprefix(f"{actor.block}.") for part in actor.parts)
        )
    return {template: tuple(rows[block]) for template, block in blocks.items() if rows.get(block)}
