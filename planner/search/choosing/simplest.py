"""Simplest plan among those that predictions cannot tell from the fastest.

A plan counts what people have to set up and to watch: every degree of parallelism but data
parallelism, chunks of a pipeline, ZeRO that splits more than state, and every choice in which
layers differ. Fewer are simpler.
"""

from collections.abc import Sequence

from millrace.models.graph import Graph
from millrace.planner.parallel_degrees import plan_roles
from millrace.planner.plan import ON_DEVICES, Plan
from millrace.planner.search.candidates import Candidate
from millrace.planner.search.choosing.checked_plans import (
    Checked,
    Progress,
    Simulate,
    block_timer,
    but_axes,
    settled_plans,
    simulated_plans,
)
from millrace.planner.search.evaluation import Evaluator, SolvedPlan
from millrace.planner.search.plan_writer import write_plan
from millrace.planner.search.ranking.ranker import Ranker

# Difference of two plans' steps, as a share of the shorter, that half of the published runs which
# differ in one setting were predicted closer than (docs/accuracy.md: 386 pairs, 2026-11).
RANKING_ERROR = 0.016

WRITTEN, SETTLED = 12, 2  # ranked plans whose roles are read, and of these settled, at most


def complexity(plan: Plan, graph: Graph) -> int:
    """Number of things to set up beside data parallelism of equal layers.

    Parameters
    ----------
    plan : Plan
    graph : Graph
        Its training graph, of any batch.
    """
    values = plan_roles(plan, graph)
    degrees = sum(values[name] != [1] for name in ("tp", "pp", "cp", "ep"))
    unlike = sum(len(options) > 1 for options in values.values())
    chunks = plan.stages > 1 and plan.interleave > 1
    gathering = not {*map(str, values["zero"])} <= {"0", "1"}
    return degrees + unlike + chunks + gathering + (plan.offload != ON_DEVICES)


def least_complexity(candidate: Candidate) -> int:
    """Number of such things that every plan of a candidate has."""
    roles = {axis.role for axis in candidate.axes if axis.size > 1} & {"tp", "cp"}
    experts = any(axis.experts for axis in candidate.axes)
    pipeline = candidate.pipeline
    chunks = pipeline.stages > 1 and pipeline.interleave > 1
    return len(roles) + experts + (pipeline.stages > 1) + chunks


def simplest(
    evaluator: Evaluator,
    ranker: Ranker,
    checked: Sequence[Checked],
    best: Checked,
    simulate: Simulate | None,
    tell: Progress,
) -> tuple[Checked, list[Checked]]:
    """Simplest plan that takes at most `request.simpler_within` longer, and all checked plans.

    Parameters
    ----------
    evaluator : Evaluator
    ranker : Ranker
        Has ranked all candidates; those that are simpler and were left are solved now.
    checked : sequence of Checked
        Plans so far.
    best : Checked
        The fastest of them.
    simulate, tell : callable
        As for `check_plans`.
    """
    graph, longest = evaluator.graph, 1 + evaluator.request.simpler_within
    most = complexity(best.settled_plan.plan, graph)
    if not most:
        return best, list(checked)
    limit_ns = longest * best.solved_plan.division.step_ns
    ranker.widen(limit_ns, lambda candidate: least_complexity(candidate) < most)
    before = {but_axes(plan.solved_plan) for plan in checked}
    waiting = _waiting(evaluator, ranker.ranking.solved_plans, before, limit_ns, most)
    more: list[Checked] = []
    if waiting:
        tell(f"looking for a simpler plan: {waiting[0].candidate.text}")
        more = settled_plans(evaluator, waiting, block_timer(simulate))
    every = []
    for plan in (*checked, *more):
        # Times by blocks or tables are compared with the best's own, not with its simulated step.
        near = plan.settled_plan.step_ns <= longest * best.settled_plan.step_ns
        simpler = not plan.reason and complexity(plan.settled_plan.plan, graph) < most
        if simulate is not None and simpler and near and not plan.prediction:
            every += simulated_plans([plan], simulate, tell)
        else:
            every.append(plan)
    comparable = [
        plan
        for plan in every
        if not plan.reason and (simulate is None or plan.prediction is not None)
    ]
    chosen = min(
        [plan for plan in comparable if plan.time_s <= longest * best.time_s],
        key=lambda plan: (complexity(plan.settled_plan.plan, graph), plan.time_s),
    )
    return chosen, every


def _waiting(
    evaluator: Evaluator,
    solved_plans: Sequence[SolvedPlan],
    before: set[object],
    limit_ns: float,
    most: int,
) -> list[SolvedPlan]:
    """The simplest plans within a limit that were not settled before, one of each order of axes."""
    near: dict[object, SolvedPlan] = {}
    for plan in sorted(solved_plans, key=lambda plan: plan.division.step_ns):
        key = but_axes(plan)
        if plan.division.step_ns <= limit_ns and least_complexity(plan.candidate) < most:
            near.setdefault(key, plan)
    new = [plan for key, plan in near.items() if key not in before]
    new.sort(key=lambda plan: (least_complexity(plan.candidate), plan.division.step_ns))
    counted = [
        (complexity(write_plan(evaluator, plan), evaluator.graph), plan) for plan in new[:WRITTEN]
    ]
    counted.sort(key=lambda pair: (pair[0], pair[1].division.step_ns))
    return [plan for count, plan in counted if count < most][:SETTLED]
