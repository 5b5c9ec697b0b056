"""Offload as the last resort: optimizer state in host memory, where nothing fits without.

The idea is ZeRO-Offload's (Ren et al. 2021); what its copies take is in
`millrace.planner.costs.host_transfers`.
"""

from dataclasses import replace

import msgspec

from millrace.models.graph import Graph
from millrace.models.model_counts import master_weights
from millrace.models.ops import op_kind, state_of
from millrace.planner.costs.host_transfers import host_of
from millrace.planner.errors import InfeasibleError
from millrace.planner.memory import plan_memory
from millrace.planner.plan import ON_DEVICES, OPTIMIZER, Plan
from millrace.planner.search.request import (
    HostMemoryError,
    MemoryLimitError,
    NoPlanError,
    SearchRequest,
)


def last_resort(
    request: SearchRequest, graph: Graph, error: InfeasibleError
) -> SearchRequest | None:
    """Request with optimizer state on the host; None where that cannot help.

    It is asked only where memory binds, no pin speaks of it and the framework can. Ranks on a CPU
    have no memory but the machine's.

    Parameters
    ----------
    request : SearchRequest
        Question that has no answer with all state on the devices.
    graph : Graph
        Training graph: says whether there is state that could go to the host.
    error : InfeasibleError
        Raised by the search; memory binds if it is a NoPlanError or a MemoryLimitError.
    """
    helps = (
        isinstance(error, NoPlanError | MemoryLimitError)
        and request.offload == ON_DEVICES
        and request.pins.offload is None
        and request.runs.offload
        and request.cluster.cores_per_node is None
        and host_state_bytes(graph) > 0
    )
    return replace(request, last_resort=True) if helps else None


def with_first_search_reason(plan: Plan, error: InfeasibleError, remedy: str = "") -> Plan:
    """Plan of the second search, with what the first one said foremost in its evidence.

    What the first did not prove to be impossible may be better than any of the second.

    Parameters
    ----------
    plan : Plan
        Plan with optimizer state on the host, with its evidence.
    error : InfeasibleError
        Raised by the search with that state on the devices. The `bound_ns` of a NoPlanError lowers
        the bound of the evidence, and its gap follows; any other leaves them.
    remedy : str
        A change with which that state fits on the devices, in words.
    """
    assert plan.evidence is not None
    open_s = error.bound_ns / 1e9 if isinstance(error, NoPlanError) else float("inf")
    bound_s = min(plan.evidence.bound_s, open_s)
    without = {"plan": "optimizer state on the devices", "reason": str(error)}
    if remedy:
        without["remedy"] = remedy
    alternatives = (without, *plan.evidence.alternatives)
    gap = plan.evidence.objective_s / bound_s - 1
    evidence = msgspec.structs.replace(
        plan.evidence, bound_s=bound_s, gap=gap, alternatives=alternatives
    )
    return msgspec.structs.replace(plan, evidence=evidence)


def host_state_bytes(graph: Graph) -> int:
    """Bytes that offload takes off the devices: moments, and variables that are only cast."""
    tensors = graph.tensors_by_name
    total_bytes = sum(tensors[name].size_bytes for name in master_weights(graph))
    for op in graph.ops:
        if op_kind(op.kind).updates:
            total_bytes += len(state_of(op.kind, op.attributes)) * tensors[op.outputs[0]].size_bytes
    return total_bytes


def host_room_bytes(request: SearchRequest) -> int | None:
    """Bytes of host memory of all devices together; None where one group's is not known."""
    room_bytes = 0
    for group in request.cluster.groups:
        share = host_of(group, request.cluster).memory_bytes
        if share is None:
            return None
        room_bytes += share * group.devices
    return room_bytes


def host_shortage(plan: Plan) -> HostMemoryError | None:
    """Error for the first stage whose nodes lack host memory; None where none is known to."""
    if plan.offload != OPTIMIZER:
        return None
    cluster, devices = plan.cluster, plan.mesh.devices
    for stage, memory in enumerate(plan_memory(plan)):
        ranks = range(stage * devices, (stage + 1) * devices)
        groups = cluster.groups if not cluster.others else map(cluster.group_of, ranks)
        for group in groups:
            share = host_of(group, cluster).memory_bytes
            if share is not None and memory.host_bytes > share:
                return HostMemoryError(memory.host_bytes, share, stage)
    return None
