"""Figures of a plan: what follows from its step time, its registers, and its signatures.

`dp tp pp cp ep zero sequence_parallel ring recompute` are derived from the variants and None where
ops or blocks disagree; `axes` and the variants then hold the truth.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from millrace.models.arrays import Floats
from millrace.models.graph import Graph
from millrace.models.ops import model_flops
from millrace.models.zoo.catalogue import unit_of
from millrace.planner.block_times import BlockTimes, Kind
from millrace.planner.formatting import size
from millrace.planner.memory import plan_memory
from millrace.planner.parallel_degrees import roles
from millrace.planner.plan import ON_DEVICES, Plan, plan_graph
from millrace.planner.token_cost import cost_usd_per_mtoken, energy_j_per_token

if TYPE_CHECKING:
    from millrace.simulator import Forecast


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


def speed(plan: Plan, step_time_s: float, graph: Graph | None = None) -> Speed:
    """Speed of a plan at a step time; model FLOPs leave out recomputation.

    Parameters
    ----------
    plan : Plan
        The plan, with its model and cluster.
    step_time_s : float
        Seconds of one step.
    graph : Graph, optional
        The plan's, as `plan_graph` gives it, where it is already at hand.

    Returns
    -------
    Speed
        Tokens per second of all devices, TFLOP/s of one, and MFU.
    """
    flops = model_flops(plan_graph(plan) if graph is None else graph) * plan.microbatches
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


def forecast_figures(plan: Plan) -> dict[str, Any]:
    """Figures of a plan, as `millrace.api.figures` says."""
    from millrace.simulator import forecast

    graph = plan_graph(plan)
    return predicted_figures(plan, forecast(plan, graph, plan_memory(plan, graph)), graph)


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

    return timed(plan, plan_graph(plan), cached)


def predicted_figures(plan: Plan, prediction: "Forecast", graph: Graph) -> dict[str, Any]:
    """Figures of a plan from its forecast, as the plan's `figures` hold them.

    Parameters
    ----------
    plan : Plan
        The plan that was simulated.
    prediction : Forecast
        The simulator's forecast of it.
    graph : Graph
        The plan's, as `plan_graph` gives it.

    Returns
    -------
    dict
        As `millrace.api.figures` returns it.
    """
    step_time_s = prediction.step_time_ns / 1e9
    on_host = {}
    if plan.offload != ON_DEVICES:
        sizes = [stage.host_bytes for stage in plan_memory(plan, graph)]
        on_host = {"host_memory_bytes_max": max(sizes)}
    return {
        "step_time_s": step_time_s,
        **speed(plan, step_time_s, graph)._asdict(),
        **memory_figures(prediction.memory_by_kind),
        **on_host,
        "fidelity": prediction.fidelity,
        "busy_fraction": max(
            0.0,
            1
            - prediction.bubble_fraction
            - prediction.exposed_communication_ns / prediction.step_time_ns,
        ),
    }


def memory_figures(by_kind: Sequence[dict[str, int]]) -> dict[str, Any]:
    """Figures of memory from the bytes by kind that a device of every stage holds."""
    most = max(sum(kinds.values()) for kinds in by_kind)
    return {"memory_bytes_max": most, "memory_by_kind": list(by_kind)}


def shortage(plan: Plan, by_kind: Sequence[dict[str, int]]) -> str:
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
        by_kind = [program_memory.by_kind for program_memory in plan_memory(plan, plan_graph(plan))]
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
        f"a device that has {size(room)}: {size(over)} too few"
    )


def idle_devices(plan: Plan) -> str:
    """Say how many devices of its cluster a plan leaves out; empty where it uses all."""
    if plan.ranks == plan.cluster.devices:
        return ""
    return f"the plan uses {plan.ranks} of the {plan.cluster.devices} devices of its cluster"


def plan_summary(plan: Plan) -> dict[str, Any]:
    """Fields by which scripts know a plan (the contract of `millrace plan --json`)."""
    summary: dict[str, Any] = dict(roles(plan, plan_graph(plan)))
    summary |= {
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
    }
    missing = ("step_time_s", "tokens_per_s", "tflops_per_gpu", "mfu", "memory_bytes_max")
    summary |= dict.fromkeys(missing) | plan.figures
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
    dp = roles(plan, plan_graph(plan))["dp"]
    return plan.batch // dp if isinstance(dp, int) else None


def spending(plan: Plan) -> dict[str, float | None]:
    """Dollars per million tokens and joules per token, None where they are not known.

    Of what `unit_of` the model says where it has no tokens.
    """
    step_s, busy = plan.figures.get("step_time_s"), plan.figures.get("busy_fraction")
    return {
        "cost_usd_per_mtoken": cost_usd_per_mtoken(plan, step_s) if step_s else None,
        "energy_j_per_token": (
            energy_j_per_token(plan, step_s, busy) if step_s and busy is not None else None
        ),
    }


def kinds_of_parallelism(plan: Plan) -> list[str]:
    """Names of the plan's degrees above one, `dp 2`; of its axes where ops disagree."""
    plan_roles = roles(plan, plan_graph(plan))
    role_degrees = ((name, plan_roles[name]) for name in ("dp", "tp", "cp"))
    degrees = {name: degree for name, degree in role_degrees if isinstance(degree, int)}
    if len(degrees) < 3:
        degrees = {axis.name: axis.size for axis in plan.mesh.axes}
    degrees["pp"] = plan.stages
    return [f"{name} {size}" for name, size in degrees.items() if size > 1]
