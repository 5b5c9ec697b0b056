"""Cluster transfer: a plan's ranks on another cluster's devices, with their links and memory."""

from msgspec.structs import replace

from millrace.planner.cluster import OURS, Cluster, Software
from millrace.planner.errors import InfeasibleError
from millrace.planner.plan import FUSED, UNFUSED, Plan


def on_cluster(plan: Plan, cluster: Cluster) -> Plan:
    """The plan on another cluster of as many devices.

    A memory limit keeps its share of the device. Ops are fused where our own executor would fuse
    them, unless the plan pins that.

    Parameters
    ----------
    plan : Plan
        Its mesh, stages, schedule and layouts stay.
    cluster : Cluster
        Devices, links and software in place of the plan's.

    Returns
    -------
    Plan
        Without figures and evidence. It may need more memory than the devices have, which
        `millrace.figures.shortage` says.

    Raises
    ------
    InfeasibleError
        The cluster has another number of devices.
    """
    if cluster.devices not in (plan.ranks, plan.cluster.devices):
        raise InfeasibleError(_sizes_differ(plan, cluster))
    limit_bytes = plan.memory_limit_bytes
    if limit_bytes:
        limit_bytes = limit_bytes * _memory_bytes(cluster) // _memory_bytes(plan.cluster)
    ours = cluster.cores_per_node is None and cluster.software.name == OURS
    fusion = plan.fusion if "fusion" in plan.pins else FUSED if ours else UNFUSED
    return replace(
        plan,
        cluster=cluster,
        memory_limit_bytes=limit_bytes,
        fusion=fusion,
        evidence=None,
        figures={},
    )


def software_kept(plan: Plan, cluster: Cluster) -> Cluster:
    """Cluster with the plan's framework, where it has GPUs and names no framework of its own.

    Parameters
    ----------
    plan : Plan
        Its cluster has the framework.
    cluster : Cluster
        The cluster that the plan is tried on.
    """
    unnamed = cluster.software.name == Software().name
    return (
        replace(cluster, software=plan.cluster.software)
        if unnamed and cluster.cores_per_node is None
        else cluster
    )


def _memory_bytes(cluster: Cluster) -> int:
    return min(group.device.memory_bytes for group in cluster.groups)


def _sizes_differ(plan: Plan, cluster: Cluster) -> str:
    """Sentence about a cluster with another number of devices, and what to ask instead."""
    needed, per_node = plan.cluster.devices, cluster.devices_per_node
    nodes, left = divmod(needed, per_node)
    stem = cluster.name.removesuffix(f"x{cluster.nodes}")
    resizable = stem != cluster.name and not cluster.others and not left
    name = f"{stem}x{nodes}" if resizable else f"a cluster of {needed} devices"
    return (
        f"--cluster {cluster.name}: it has {cluster.devices} devices, and the plan was made for "
        f"{needed}: name {name}, or search for a plan on this one with `millrace plan "
        f"{plan.model.name} --cluster {cluster.name}`"
    )
