"""A plan's job: all that a trainer has to be told, or why it has no words for it."""

from typing import Any

from millrace.models.model_counts import parallelism_limits
from millrace.planner.cluster import Software
from millrace.planner.errors import InfeasibleError
from millrace.planner.frameworks.capabilities import divided_blocks
from millrace.planner.frameworks.experts import dispatcher_of, overlaps
from millrace.planner.frameworks.framework_tables import capabilities, framework
from millrace.planner.frameworks.runnable import unrunnable
from millrace.planner.parallel_degrees import roles
from millrace.planner.plan import ON_DEVICES, Plan
from millrace.planner.search import Pins
from millrace.published.columns import RECOMPUTE_MODULES
from millrace.published.framework_of_row import TENSOR
from millrace.trainers.job import TrainingJob
from millrace.trainers.trainer import Trainer


def job_of(plan: Plan, trainer: Trainer) -> TrainingJob:
    """Training job that a plan describes.

    Parameters
    ----------
    plan : Plan
        Whoever it was made for.
    trainer : Trainer
        The trainer that is to run it.

    Raises
    ------
    InfeasibleError
        The framework cannot run the plan; says what stands in its way, and what to ask instead.
    """
    usual = trainer.frameworks[0]
    if faults := unrunnable(plan, trainer.runs or capabilities(usual)):
        raise InfeasibleError(
            f"{trainer.name} cannot run this plan: {'; '.join(faults)}. Plan with `--framework "
            f"{usual}`, whose plans have no other choices"
        )
    if plan.ranks < plan.cluster.devices:
        raise InfeasibleError(
            f"the plan leaves {plan.cluster.devices - plan.ranks} of {plan.cluster.devices} "
            f"devices idle, and a trainer takes all that it is started on: plan for {plan.ranks}"
        )
    choices = roles(plan, plan.graph)
    counts = _chunk_layers(plan)
    recomputed = 0
    if choices["recompute"] is None:
        recomputed = _recomputed_layers(plan)
        choices["recompute"] = "full"
    return TrainingJob(
        model=plan.model,
        training=plan.training,
        global_batch=plan.global_batch,
        nodes=-(-plan.ranks // plan.cluster.devices_per_node),
        devices_per_node=min(plan.cluster.devices_per_node, plan.ranks),
        pins=Pins.of(_pins(plan, choices)),
        framework=plan.cluster.software.name,
        cluster=plan.cluster.name,
        chunk_layers=() if len(set(counts)) == 1 else counts,
        recompute_layers=recomputed,
        software=_software(plan.cluster.software, bool(plan.model.config.get("experts"))),
    )


def _software(software: Software, experts: bool) -> dict[str, str]:
    """Words on how software is set, where it is set otherwise than its framework's record."""
    usual = framework(software.name)
    words: dict[str, str] = {}
    if software.overlap == 0 < usual.overlap:
        words["overlap"] = "0"
    tensor = set(usual.pieces) & set(TENSOR)
    if tensor and not tensor & set(software.pieces):
        words["tensor_overlap"] = "0"
    if software.gradient_bytes not in (0, usual.gradient_bytes):
        words["gradient_bytes"] = str(software.gradient_bytes)
    again = software.selective.again
    rule = (usual.expert_selective if experts else None) or usual.selective
    if again and again != rule.again:
        modules = (name for name, parts in RECOMPUTE_MODULES.items() if {*parts} <= {*again})
        words["recompute_modules"] = " ".join(modules)
    if software.compiled:
        words["compiled"] = "1"
    if software.state_ranks:
        words["shard_group"] = str(software.state_ranks)
    return words


def _pins(plan: Plan, choices: dict[str, Any]) -> dict[str, Any]:
    """Pins that hold all choices of a plan."""
    pinned = {name: choices[name] for name in ("dp", "tp", "pp", "cp", "recompute")}
    pinned["micro_batch"] = plan.batch // int(choices["dp"])
    if int(choices["dp"]) * int(choices["cp"]) > 1:
        pinned["zero"] = choices["zero"]
    if plan.stages > 1:
        pinned |= {"schedule": plan.schedule, "interleave": plan.interleave}
    if int(choices["tp"]) > 1:
        pinned["sequence_parallel"] = choices["sequence_parallel"]
    if int(choices["cp"]) > 1:
        pinned["ring"] = choices["ring"]
    if plan.offload != ON_DEVICES:
        pinned["offload"] = plan.offload
    if parallelism_limits(plan.graph)["experts"]:
        software = plan.cluster.software
        pinned |= {"ep": choices["ep"], "dispatcher": dispatcher_of(software)}
        pinned["expert_overlap"] = overlaps(software)
        if int(choices["tp"]) > 1:
            pinned["etp"] = choices["etp"]
    return pinned


def _chunk_layers(plan: Plan) -> tuple[int, ...]:
    """Layers of every chunk, without embedding, loss and modules that predict further tokens."""
    counts = [divided_blocks([choice.block for choice in chunk.blocks]) for chunk in plan.chunks]
    counts[0], counts[-1] = counts[0] - 1, counts[-1] - 1
    return tuple(counts)


def _recomputed_layers(plan: Plan) -> int:
    """Number of first layers of every chunk that are recomputed."""
    return max(
        sum(plan.variants[choice.variant].recompute == "full" for choice in chunk.blocks)
        for chunk in plan.chunks
    )
