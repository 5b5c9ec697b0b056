"""Subclusters: parts of a cluster that a plan may be content with, where a token has a price.

Twice the devices are never more than twice as fast, so a step's price falls with their number until
memory forces recomputation or the batch fills too little. The smallest are searched first; one
whose bound already costs more is skipped, and after `WORSE` in a row that cost more, larger ones
are not looked at (what is skipped so is not proven).
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import msgspec

from millrace.models.zoo.catalogue import build_training
from millrace.planner.cluster import Cluster
from millrace.planner.errors import InfeasibleError
from millrace.planner.formatting import percent
from millrace.planner.plan import Plan
from millrace.planner.search.choosing import Progress, Simulate
from millrace.planner.search.evaluation import Evaluator
from millrace.planner.search.meshes import divisors
from millrace.planner.search.outer import search
from millrace.planner.search.placement_groups import candidates_of
from millrace.planner.search.report.suggestions import check_storage
from millrace.planner.search.request import SearchRequest
from millrace.planner.search.search_log import SearchLog
from millrace.planner.token_cost import check_known, check_objective, power_watts, price_usd_per_s

WORSE = 2


def search_for(
    request: SearchRequest,
    optimize_for: str,
    simulate: Simulate | None = None,
    progress: Progress | None = None,
    record: SearchLog | None = None,
) -> Plan:
    """Best plan for throughput, cost or energy per token.

    Parameters
    ----------
    request : SearchRequest
        As for `search`; its cluster is the most that may be used.
    optimize_for : str
        throughput: all devices are used. cost, energy: the plan may use fewer, whole nodes or a
        divisor of one; its cluster is then the part that it uses.
    simulate : callable, optional
        As for `search`: predicts a plan's figures; None: the planner's own cost decides.
    progress : callable, optional
        As for `search`: told a line of text now and then.
    record : SearchLog, optional
        As for `search`. Counts and the answer are those of the part that won, seconds of all parts.

    Raises
    ------
    PlanError
        There is no such objective.
    ClusterError
        A device has no price or power.
    InfeasibleError
        No part of the cluster has a plan.
    """
    check_objective(optimize_for)
    if optimize_for == "throughput":
        return search(request, simulate, progress, record)
    check_known(request.cluster, optimize_for)
    record = record or SearchLog()
    tell = progress or (lambda line: None)
    best: tuple[float, Plan, SearchLog] | None = None
    others: list[dict[str, Any]] = []
    worse = 0
    for cluster in subclusters(request.cluster):
        asked = replace(request, cluster=cluster)
        bound = _least(asked, optimize_for)
        if bound is None or (best is not None and bound >= best[0]) or worse == WORSE:
            continue
        tell(f"on {cluster.devices} of {request.cluster.devices} devices")
        part_record = record.beside()
        try:
            plan = search(asked, simulate, progress, part_record, remedies=False)
        except InfeasibleError:
            continue
        finally:
            record.add_seconds(part_record)
        spent = spending(plan, part_record, optimize_for)
        others.append({"plan": cluster.name, "spent": spent})
        if best is None or spent < best[0]:
            best, worse = (spent, plan, part_record), 0
        else:
            worse += 1
    if best is None:
        return search(request, simulate, progress, record)
    spent, plan, part_record = best
    record.take(part_record)
    return _with_others(plan, spent, others, optimize_for)


def _with_others(plan: Plan, spent: float, others: list[dict[str, Any]], optimize_for: str) -> Plan:
    """The plan with those of the other subclusters among its alternatives."""
    assert plan.evidence is not None
    lost = tuple(
        {
            "plan": f"on {other['plan']}",
            "reason": f"+{percent(other['spent'] / spent - 1)} {optimize_for}",
        }
        for other in others
        if other["plan"] != plan.cluster.name
    )
    evidence = msgspec.structs.replace(
        plan.evidence, alternatives=(*lost, *plan.evidence.alternatives)
    )
    return msgspec.structs.replace(plan, evidence=evidence)


def spending(plan: Plan, record: SearchLog, optimize_for: str) -> float:
    """Dollars or joules of a step."""
    assert plan.evidence is not None
    assert record.answer is not None
    prediction = plan.prediction
    step_s = prediction.step_time_s if prediction else plan.evidence.objective_s
    if optimize_for == "cost":
        return float(step_s * (price_usd_per_s(plan.cluster) or 0.0))
    busy = prediction.busy_fraction if prediction else None
    if busy is None:
        from millrace.planner.search.report.breakdown import breakdown, busy_ns

        parts = breakdown(record.answer.evaluator, record.answer.chosen)
        busy = busy_ns(parts) / sum(parts.values())
    return float(step_s * (power_watts(plan.cluster, busy) or 0.0))


def _least(request: SearchRequest, optimize_for: str) -> float | None:
    """Least dollars or joules of a step, by the bounds on its time; None where nothing can be."""
    graph = build_training(request.model, request.training, request.global_batch)
    try:
        everything = candidates_of(request, graph)
        check_storage(request, graph)
    except InfeasibleError:
        return None
    bounds = Evaluator(request, graph).lower_bounds_ns(everything)
    times = [bound for bound in bounds if not isinstance(bound, InfeasibleError)]
    if not times:
        return None
    rates: dict[str, Callable[[], float | None]] = {
        "cost": lambda: price_usd_per_s(request.cluster),
        "energy": lambda: power_watts(request.cluster, 0.0),
    }
    return min(times) / 1e9 * (rates[optimize_for]() or 0.0)


def subclusters(cluster: Cluster) -> Iterator[Cluster]:
    """Parts of a cluster, the smallest first: divisors of a node, then of the number of nodes.

    Examples
    --------
    >>> from millrace.planner.clusters import parse_cluster
    >>> [part.name for part in subclusters(parse_cluster("h100-sxm-80gb:4x2"))]
    ['h100-sxm-80gb:1x1', 'h100-sxm-80gb:2x1', 'h100-sxm-80gb:4x1', 'h100-sxm-80gb:4x2']
    """
    if cluster.others:  # each kind alone, and all
        for group in cluster.groups:
            yield msgspec.structs.replace(
                cluster,
                name=f"{group.device.name}:{group.devices_per_node}x{group.nodes}",
                device=group.device,
                devices_per_node=group.devices_per_node,
                nodes=group.nodes,
                intra_node=group.intra_node,
                inter_node=group.inter_node,
                islands=group.islands,
                torus=group.torus,
                host=group.host,
                others=(),
            )
        yield cluster
        return
    per_node = cluster.devices_per_node
    for devices in divisors(per_node)[:-1]:
        islands = cluster.islands
        if cluster.torus is not None or (islands and devices % islands.devices):
            continue
        yield _part(cluster, devices, 1)
    for nodes in divisors(cluster.nodes):
        yield cluster if nodes == cluster.nodes else _part(cluster, per_node, nodes)


def _part(cluster: Cluster, per_node: int, nodes: int) -> Cluster:
    name = f"{cluster.device.name}:{per_node}x{nodes}"
    return msgspec.structs.replace(cluster, name=name, devices_per_node=per_node, nodes=nodes)
