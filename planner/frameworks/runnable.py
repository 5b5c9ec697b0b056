"""Runnable: whether a framework can run a plan as it is, and if not, what stands in its way."""

from collections.abc import Iterator

from millrace.planner.frameworks.capabilities import DEGREES, Capabilities, layer_counts
from millrace.planner.parallel_degrees import Roles, roles
from millrace.planner.plan import Plan


def unrunnable(plan: Plan, runs: Capabilities) -> list[str]:
    """Say what of a plan a framework cannot run; nothing where it can run all of it.

    Parameters
    ----------
    plan : Plan
        Whoever it was made for.
    runs : Capabilities
        The framework's.

    Raises
    ------
    PlanError
        An op of the plan has no signature that fits it.
    """
    plan_roles = roles(plan, plan.graph)
    return [*_degree_faults(plan_roles, runs), *_choice_faults(plan, plan_roles, runs)]


def _degree_faults(plan_roles: Roles, runs: Capabilities) -> Iterator[str]:
    for name in DEGREES:
        degree = plan_roles[name]
        if degree is None and not runs.mixed:
            yield f"{name}: axes of the mesh play several roles"
        elif degree is not None and int(degree) > 1 and name not in runs.degrees:
            yield f"{name} {degree}: there is no such parallelism"


def _choice_faults(plan: Plan, plan_roles: Roles, runs: Capabilities) -> Iterator[str]:
    if plan.stages > 1 and plan.schedule not in runs.schedules:
        yield f"schedule {plan.schedule}: {' or '.join(runs.schedules)}"
    for name, allowed in (("recompute", runs.recompute), ("zero", runs.levels(plan.stages))):
        choice = plan_roles[name]
        if choice is None and not runs.mixed:
            yield f"{name}: layers differ"
        elif choice is not None and str(choice) not in allowed:
            yield f"{name} {choice}: {' or '.join(allowed)}"
    parallel = plan_roles["sequence_parallel"]
    wanted = {"always": True, "never": False}.get(runs.sequence_parallel)
    if wanted is not None and int(plan_roles["tp"] or 1) > 1 and parallel is not wanted:
        yield f"sequence parallelism beside tensor parallelism: {runs.sequence_parallel}"
    if plan_roles["ring"] and not runs.ring:
        yield "ring: keys and values are gathered"
    if not runs.mixed:
        yield from _layer_faults(plan, runs)


def _layer_faults(plan: Plan, runs: Capabilities) -> Iterator[str]:
    templates = plan.graph.templates
    variants: dict[str, set[int]] = {}
    for chunk in plan.chunks:
        for choice in chunk.blocks:
            variants.setdefault(templates[choice.block], set()).add(choice.variant)
    for template, used in variants.items():
        if len(used) > 1:
            yield f"blocks like {template}: {len(used)} variants"
    counts = [len(chunk.blocks) for chunk in plan.chunks]
    counts[0], counts[-1] = counts[0] - 1, counts[-1] - 1
    if runs.layers != "any" and tuple(counts) not in layer_counts(
        sum(counts), len(counts), runs.layers
    ):
        yield f"layers of chunks: {', '.join(map(str, counts))}"
