"""Plan writer: a solved candidate as a Plan, whose axes are named after their roles."""

from msgspec.structs import replace

from millrace.models.graph import Graph
from millrace.planner.mesh import Axis, Mesh
from millrace.planner.parallel_degrees import HYBRID, axis_roles, roles
from millrace.planner.plan import BlockChoice, Chunk, Plan, Variant
from millrace.planner.schedules import stage_of
from millrace.planner.search.blocks.variants import variants as variants_of
from millrace.planner.search.evaluation import Evaluator, SolvedPlan
from millrace.planner.search.pins import Pins
from millrace.planner.search.placement_groups import ordered

# Roles whose axes another choice is about.
OVER = {"etp": ("tp",), "zero": ("dp", "cp"), "sequence_parallel": ("tp",), "ring": ("cp",)}


def write_plan(evaluator: Evaluator, solved: SolvedPlan) -> Plan:
    """Plan of a solved candidate, without evidence or figures.

    Variants that no block takes are left out.

    Parameters
    ----------
    evaluator : Evaluator
        That of the search: its request and graph, and the spaces that options are numbered in.
    solved : SolvedPlan
        Division of the blocks, and the solutions that it numbers.
    """
    request, graph = evaluator.request, evaluator.graph
    variants = solution_variants(evaluator, solved)
    candidate, pipeline = solved.candidate, solved.candidate.pipeline
    templates = len({graph.templates[block] for block in graph.blocks})
    place = {variant.template: index for index, variant in enumerate(variants[:templates])}
    chunks = tuple(
        Chunk(
            stage=stage_of(pipeline.schedule, position, pipeline.stages),
            blocks=tuple(
                BlockChoice(
                    block=block, variant=place[graph.templates[block]] + templates * variant
                )
                for block, variant in chunk
            ),
        )
        for position, chunk in enumerate(solved.division.chunks)
    )
    plan = Plan(
        model=request.model,
        training=request.training,
        cluster=ordered(request.cluster, candidate.placing.order)
        if candidate.placing
        else request.cluster,
        global_batch=request.global_batch,
        microbatches=pipeline.microbatches,
        mesh=Mesh(
            axes=tuple(
                Axis(name=f"axis{index}", size=size) for index, size in enumerate(candidate.sizes)
            )
        ),
        stages=pipeline.stages,
        schedule=pipeline.schedule,
        interleave=pipeline.interleave,
        variants=variants,
        chunks=chunks,
        pins=request.pins.document,
        memory_limit_bytes=request.limit_bytes,
        seed=request.seed,
        offload=request.offload,
        fusion=request.fusion,
    )
    plan = only_used(plan)
    return replace(plan, mesh=named_mesh(plan, graph))


def solution_variants(evaluator: Evaluator, plan: SolvedPlan) -> tuple[Variant, ...]:
    """Variants of a plan's solutions: per solution one of every template.

    Parameters
    ----------
    evaluator : Evaluator
        That of the search.
    plan : SolvedPlan
        Its candidate and solutions.
    """
    shape = evaluator.shape(plan.candidate)
    return tuple(
        variant
        for solved in plan.solved
        for variant in variants_of(
            evaluator.programs.space(shape, solved.mode),
            evaluator.graph,
            solved.solution.options,
            solved.mode,
        )
    )


def disobeyed(plan: Plan, graph: Graph, pins: Pins) -> str:
    """Say which pin the finished plan does not show, as people read it; empty where all do.

    Roles on which ops disagree cannot contradict a pin.

    Parameters
    ----------
    plan : Plan
    graph : Graph
        Its training graph.
    pins : Pins
        Choices that it was asked to show.
    """
    degrees = roles(plan, graph)
    asked = pins.document
    if pins.zero is not None and pins.zero != HYBRID:
        asked["zero"] = int(pins.zero)
    for name in ("dp", "tp", "pp", "cp", "etp", "zero", "sequence_parallel", "ring"):
        if any(degrees[role] is None for role in OVER.get(name, ())):
            continue
        if name in asked and degrees[name] is not None and degrees[name] != asked[name]:
            return (
                f"--{name.replace('_', '-')} {asked[name]} cannot be had: the labels of this "
                f"model's ops give {degrees[name]}"
            )
    return ""


def only_used(plan: Plan) -> Plan:
    """Leave out variants that no block takes."""
    used = sorted({choice.variant for chunk in plan.chunks for choice in chunk.blocks})
    place = {variant: index for index, variant in enumerate(used)}
    chunks = tuple(
        replace(
            chunk,
            blocks=tuple(replace(choice, variant=place[choice.variant]) for choice in chunk.blocks),
        )
        for chunk in plan.chunks
    )
    return replace(plan, variants=tuple(plan.variants[index] for index in used), chunks=chunks)


def named_mesh(plan: Plan, graph: Graph) -> Mesh:
    """Mesh of the plan with every axis named after its role, and a number where one repeats."""
    names: list[str] = []
    for role_names in axis_roles(plan, graph):
        name = "+".join(sorted(role_names)) or "whole"
        taken = sum(other.rstrip("0123456789") == name for other in names)
        names.append(name + (str(taken + 1) if taken else ""))
    axes = (Axis(name=n, size=size) for n, size in zip(names, plan.mesh.sizes, strict=True))
    return Mesh(axes=tuple(axes))
