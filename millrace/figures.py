"""Figures of a plan: what follows from its step time, its registers, and its signatures.

`dp tp pp cp ep zero sequence_parallel ring recompute` are derived from the variants and None where
ops or blocks disagree; `mixed` then lists the values, and the variants hold the truth.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from millrace.memory_reserve import does_not_fit_probability
from millrace.models.arrays import Floats
from millrace.models.ops import model_flops, op_kind
from millrace.models.zoo.catalogue import unit_of
from millrace.planner.block_times import BlockTimes, Kind
from millrace.planner.clusters.doubts import profile_warning
from millrace.planner.formatting import size
from millrace.planner.frameworks.experts import dispatcher_of, overlaps, routing_of
from millrace.planner.frameworks.framework_tables import capabilities
from millrace.planner.frameworks.model_settings import capacity_of
from millrace.planner.frameworks.peak_memory import habit_of, needed_memory
from millrace.planner.memory import plan_memory
from millrace.planner.parallel_degrees import mixed_roles, roles
from millrace.planner.plan import ON_DEVICES, Plan, Prediction
from millrace.planner.token_cost import cost_usd_per_mtoken, energy_j_per_token
from millrace.published.step_time_range import range_document

if TYPE_CHECKING:
    from millrace.simulator import FastPrediction
    from millrace.simulator.simulate import Simulated


class Speed(NamedTuple):
    """Speed of a plan at a step time: tokens per second, TFLOP/s per device, and MFU.

    `mfu` is model FLOPs / (step time × the precision's dense peaks of all devices). None where a
    device's peak for the precision is not known, and where it would be above one: a causal mask
    leaves half of the attention that model FLOPs count in full, which long sequences consist of.
    """

    tokens_per_s: float
    tflops_per_gpu: float
    mfu: float | None


def tokens_per_step(plan: Plan) -> int:
    """Tokens of a global batch; images or samples, as `unit_of` the model says."""
    return plan.global_batch * plan.model.seq_len


def speed(plan: Plan, step_time_s: float) -> Speed:
    """Speed of a plan at a step time; model FLOPs leave out recomputation.

    Parameters
    ----------
    plan : Plan
        The plan, with its model and cluster.
    step_time_s : float
        Seconds of one step.

    Returns
    -------
    Speed
        Tokens per second of all devices, TFLOP/s of one, and MFU.
    """
    flops = model_flops(plan.graph) * plan.microbatches
    per_device = flops / step_time_s / plan.ranks
    peak = _peak_flops_per_s(plan)
    mfu = per_device * plan.ranks / peak if peak else None
    return Speed(
        tokens_per_s=tokens_per_step(plan) / step_time_s,
        tflops_per_gpu=per_device / 1e12,
        mfu=None if mfu is not None and mfu > 1 else mfu,
    )


def _peak_flops_per_s(plan: Plan) -> float | None:
    """Sum of the dense peaks of the plan's devices, in FLOP/s; None where one is not known."""
    left, total = plan.ranks, 0.0
    for group in plan.cluster.groups:
        peak = group.device.flops_per_s.get(plan.model.precision)
        used = min(left, group.devices)
        if used and not peak:
            return None
        total += used * (peak or 0.0)
        left -= used
    return total


def prediction_of(plan: Plan) -> Prediction:
    """Figures that the simulator predicts of a plan, a document of `Plan.figures`."""
    from millrace.simulator import predict_fast

    memory = needed_memory(plan)
    steady = predict_fast(plan, memory)
    step_time_s = steady.step_time_ns / 1e9
    plan_speed = speed(plan, step_time_s)
    on_host = max(stage.host_bytes for stage in memory) if plan.offload != ON_DEVICES else None
    exposed = steady.exposed_communication_ns / steady.step_time_ns
    return Prediction(
        step_time_s=step_time_s,
        tokens_per_s=plan_speed.tokens_per_s,
        tflops_per_gpu=plan_speed.tflops_per_gpu,
        mfu=plan_speed.mfu,
        memory_bytes_max=max(sum(kinds.values()) for kinds in steady.memory_by_kind),
        memory_by_kind=list(steady.memory_by_kind),
        host_memory_bytes_max=on_host,
        fidelity=steady.fidelity,
        busy_fraction=max(0.0, 1 - steady.bubble_fraction - exposed),
        busy_by_stage=[min(share, 1.0) for share in steady.busy_by_stage],
    )


def block_times(plan: Plan, cached: Mapping[Kind, Floats]) -> BlockTimes:
    """Times that each block of a plan adds to its chunk.

    Parameters
    ----------
    plan : Plan
        The plan whose blocks are timed.
    cached : mapping
        Arrays [T] by template and variant (`millrace.planner.block_times`): not timed again.

    Returns
    -------
    BlockTimes
        Times of every kind of block, the cached ones included.
    """
    from millrace.simulator.chunks.block_times import block_times as timed

    return timed(plan, cached)


def layout_bytes(plan: Plan) -> int | None:
    """Bytes of the fullest device as our compiler lays it out; None where no other account counts.

    Parameters
    ----------
    plan : Plan
        The plan: its memory is that which its framework needs, where that is known.
    """
    if habit_of(plan) is None:
        return None
    return max(stage_memory.total_bytes for stage_memory in plan_memory(plan))


def shortage(plan: Plan, by_kind: Sequence[Mapping[str, int]]) -> str:
    """Say which stage needs more of a device than a plan may use; empty where all fit.

    Parameters
    ----------
    plan : Plan
        The plan, with its cluster and memory limit.
    by_kind : sequence of dict
        Bytes by kind that a device of every stage holds; of every program, where these are more.

    Returns
    -------
    str
        A sentence about the stage that lacks most.
    """
    if len(by_kind) != plan.stages:  # these are of programs: a stage on two kinds of node has two
        by_kind = [stage_memory.by_kind for stage_memory in needed_memory(plan)]
    overruns = []
    for stage, kinds in enumerate(by_kind):
        first, last = stage * plan.mesh.devices, (stage + 1) * plan.mesh.devices - 1
        least = min(plan.cluster.device_of(rank).memory_bytes for rank in (first, last))
        room, needed = plan.memory_limit_bytes or least, sum(kinds.values())
        if plan.cluster.others:
            room = min(room, least)
        if needed > room:
            overruns.append((needed - room, stage, first, last, needed, room))
    if not overruns:
        return ""
    over, stage, first, last, needed, room = max(overruns)
    return (
        f"the plan does not fit: stage {stage} (ranks {first} to {last}) needs {size(needed)} of "
        f"a device of which it may use {size(room)}: {size(over)} too few"
    )


def reserve_bytes(plan: Plan) -> int:
    """Bytes of a device (of the first kind) that the search was to leave free."""
    if not plan.memory_limit_bytes:
        return 0
    return max(0, plan.cluster.device.memory_bytes - plan.memory_limit_bytes)


def idle_devices(plan: Plan) -> str:
    """Say how many devices of its cluster a plan leaves out; empty where it uses all."""
    if plan.ranks == plan.cluster.devices:
        return ""
    return f"the plan uses {plan.ranks} of the {plan.cluster.devices} devices of its cluster"


def has_experts(plan: Plan) -> bool:
    """True if tokens of a plan's model choose experts, which other ranks may have."""
    return any(op_kind(op.kind).routed for op in plan.graph.ops)


def dispatcher(plan: Plan) -> str:
    """Name of the dispatcher that takes a plan's tokens to their experts."""
    return str(plan.pins.get("dispatcher") or dispatcher_of(plan.cluster.software))


def plan_summary(plan: Plan) -> dict[str, Any]:
    """Fields by which scripts know a plan (the contract of `millrace plan --json`)."""
    summary: dict[str, Any] = dict(roles(plan, plan.graph))
    summary |= {
        "mixed": mixed_roles(plan, plan.graph),
        "micro_batch": micro_batch(plan),
        "schedule": plan.schedule,
        "interleave": plan.interleave,
        "offload": plan.offload,
        "fusion": plan.fusion,
        "axes": [{"name": axis.name, "size": axis.size} for axis in plan.mesh.axes],
        "microbatches": plan.microbatches,
        "global_batch": plan.global_batch,
        "ranks": plan.ranks,
        "unit": unit_of(plan.model),
        "digest": plan.digest(),
        "framework": plan.cluster.software.name,
        "precision": plan.model.precision,
        "seq_len": plan.model.seq_len,
        "mtp_layers": plan.model.config.get("mtp_layers", 0),
        "capacity_factor": capacity_of(plan.model, capabilities(plan.cluster.software.name)),
        "dispatcher": dispatcher(plan) if has_experts(plan) else None,
        "routing": routing_of(plan.cluster.software) if has_experts(plan) else None,
        "expert_overlap": overlaps(plan.cluster.software) if has_experts(plan) else None,
    }
    missing = ("step_time_s", "tokens_per_s", "tflops_per_gpu", "mfu", "memory_bytes_max")
    summary |= dict.fromkeys(missing) | plan.figures
    summary["layout_bytes_max"] = layout_bytes(plan)
    summary["reserve_bytes"] = reserve_bytes(plan)
    summary["does_not_fit_probability"] = does_not_fit_probability(
        plan.cluster, summary["memory_bytes_max"]
    )
    summary |= range_document(plan, summary["step_time_s"])
    summary["profile_warning"] = profile_warning(plan.cluster)
    summary |= spending(plan)
    evidence = plan.evidence
    summary |= {
        "objective": None if evidence is None else evidence.objective_s,
        "bound": None if evidence is None else evidence.bound_s,
        "gap": None if evidence is None else evidence.gap,
        "alternatives": [] if evidence is None else list(evidence.alternatives),
        "layers": [] if evidence is None else list(evidence.layers),
    }
    return summary


def micro_batch(plan: Plan) -> int | None:
    """Samples of a microbatch on one rank, None where ops disagree."""
    dp = roles(plan, plan.graph)["dp"]
    return plan.batch // dp if isinstance(dp, int) else None


def spending(plan: Plan) -> dict[str, float | None]:
    """Dollars per million tokens and joules per token, None where they are not known.

    Of what `unit_of` the model says where it has no tokens.
    """
    prediction = plan.prediction
    step_s = prediction.step_time_s if prediction else 0.0
    busy = prediction.busy_fraction if prediction else None
    return {
        "cost_usd_per_mtoken": cost_usd_per_mtoken(plan, step_s) if step_s else None,
        "energy_j_per_token": (
            energy_j_per_token(plan, step_s, busy) if step_s and busy is not None else None
        ),
    }


def simulated_spending(
    plan: Plan, simulated: "Simulated | FastPrediction"
) -> dict[str, float | None]:
    """Dollars per million tokens and joules per token of a simulated plan, as for `spending`.

    Parameters
    ----------
    plan : Plan
        The plan that was simulated.
    simulated : Simulated or FastPrediction
        Its step time, bubble and exposed communication.
    """
    exposed = simulated.exposed_communication_ns / simulated.step_time_ns
    busy_fraction = max(0.0, 1 - simulated.bubble_fraction - exposed)
    figures = {"step_time_s": simulated.step_time_ns / 1e9, "busy_fraction": busy_fraction}
    return spending(msgspec.structs.replace(plan, figures=figures))


def kinds_of_parallelism(plan: Plan) -> list[str]:
    """Names of the plan's degrees above one, `dp 2`; of its axes where ops disagree."""
    plan_roles = roles(plan, plan.graph)
    role_degrees = ((name, plan_roles[name]) for name in ("dp", "tp", "cp"))
    degrees = {name: degree for name, degree in role_degrees if isinstance(degree, int)}
    if len(degrees) < 3:
        degrees = {axis.name: axis.size for axis in plan.mesh.axes}
    degrees["pp"] = plan.stages
    return [f"{name} {size}" for name, size in degrees.items() if size > 1]
