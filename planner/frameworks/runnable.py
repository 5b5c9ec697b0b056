"""Runnable: whether a framework can run a plan as it is, and if not, what stands in its way."""

from collections.abc import Iterator

from millrace.models.model_counts import parallelism_limits
from millrace.planner.frameworks.capabilities import (
    DEGREES,
    Capabilities,
    divided_blocks,
    layer_counts,
)
from millrace.planner.frameworks.experts import overlaps
from millrace.planner.parallel_degrees import Roles, roles
from millrace.planner.plan import ON_DEVICES, Plan


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
    if parallelism_limits(plan.graph)["experts"] and overlaps(plan.cluster.software):
        if plan.stages == 1 and not runs.overlap_alone:
            return ["expert_overlap: it takes a pipeline"]
        runs = runs.overlapping
    return [*_degree_faults(plan_roles, runs), *_choice_faults(plan, plan_roles, runs)]


def _degree_faults(plan_roles: Roles, runs: Capabilities) -> Iterator[str]:
    for name in DEGREES:
        degree = plan_roles[name]
        if degree is None and not runs.mixed:
            yield f"{name}: axes of the mesh play several roles"
        elif degree is not None and int(degree) > 1 and name not in runs.degrees:
            yield f"{name} {degree}: there is no such parallelism"


def _choice_faults(plan: Plan, plan_roles: Roles, runs: Capabilities) -> Iterator[str]:
    if plan.stages > 1 and not runs.has_schedule(plan.schedule):
        yield f"schedule {plan.schedule}: there is {' or '.join(runs.schedules)}"
    for name, allowed in (("recompute", runs.recompute), ("zero", runs.levels(plan.stages))):
        choice = plan_roles[name]
        if name == "recompute" and choice is None and runs.recompute_some:
            continue  # `_layer_faults` looks at the layers
        if choice is None and not runs.mixed:
            yield f"{name}: layers differ"
        elif choice is not None and str(choice) not in allowed:
            yield f"{name} {choice}: there is {' or '.join(allowed)}"
    parallel = plan_roles["sequence_parallel"]
    wanted = {"always": True, "never": False}.get(runs.sequence_parallel)
    if wanted is not None and int(plan_roles["tp"] or 1) > 1 and parallel is not wanted:
        choice = "mixed" if parallel is None else "on" if parallel else "off"
        yield f"sequence_parallel {choice} beside tp: there it {runs.sequence_parallel} is"
    if plan_roles["ring"] and not runs.ring:
        yield "ring: keys and values are gathered"
    if plan.offload != ON_DEVICES and not runs.offload:
        yield f"offload {plan.offload}: optimizer state stays on the devices"
    if not runs.mixed:
        yield from _layer_faults(plan, runs)


def _layer_faults(plan: Plan, runs: Capabilities) -> Iterator[str]:
    templates = plan.graph.templates
    variants: dict[str, set[int]] = {}
    for chunk in plan.chunks:
        for choice in chunk.blocks:
            variants.setdefault(templates[choice.block], set()).add(choice.variant)
    for template, used in variants.items():
        first, *others = (plan.variants[number].signatures for number in sorted(used))
        unlike = any(
            first[op] != other[op] for other in others for op in first.keys() & other.keys()
        )
        if unlike or (others and not runs.recompute_some):
            yield f"blocks like {template}: {len(used)} variants, where all have to be alike"
    if runs.recompute_some and not _recomputes_first(plan):
        yield "recompute: other layers than the first of every chunk"
    counts = [divided_blocks([c.block for c in chunk.blocks]) for chunk in plan.chunks]
    counts[0], counts[-1] = counts[0] - 1, counts[-1] - 1
    further = sum(len(chunk.blocks) for chunk in plan.chunks) - sum(counts) - 2
    if runs.layers != "any" and tuple(counts) not in layer_counts(
        sum(counts), len(counts), runs.layers, further
    ):
        few, many = min(counts), max(counts)
        ends = " but for the first and the last" if runs.layers == "ends" else ""
        spread = f"{few} to {many}" if few < many else f"{few}"
        yield f"chunks of {spread} layers: all have as many{ends}"


def _recomputes_first(plan: Plan) -> bool:
    """True if all layers have one mode, or the first N of every chunk are recomputed in full."""
    blocks = [choice for chunk in plan.chunks for choice in chunk.blocks]
    layers = {choice.block for choice in blocks[1:-1]}
    by_chunk = [
        [plan.variants[c.variant].recompute for c in chunk.blocks if c.block in layers]
        for chunk in plan.chunks
    ]
    if len({mode for modes in by_chunk for mode in modes}) <= 1:
        return True
    fewest = max(modes.count("full") for modes in by_chunk)
    return all(
        modes == ["full"] * min(fewest, len(modes)) + ["none"] * max(len(modes) - fewest, 0)
        for modes in by_chunk
    )
