"""Rehearsals: ops of a plan timed on this machine before it is run, as they are in a step.

A profile has kernels of a few sizes. How long those of a model take at its own sizes, one behind
the other and on all ranks at once, a rehearsal shows: steps of the plan in which ranks meet nobody.
What meetings take, and who waits for whom, stays for the simulator to predict.
"""

from collections.abc import Callable
from dataclasses import replace
from math import ceil
from time import monotonic

import msgspec

from millrace.executor.errors import DataError, ExecutorError
from millrace.executor.launch import rehearse
from millrace.executor.measure import keep_profile, profile_in_keep
from millrace.executor.probes.recheck import CROWDED
from millrace.planner.actors.graph import ActorGraph
from millrace.planner.cluster import Cluster, Device
from millrace.planner.compile import compile_plan
from millrace.planner.costs.tables.shape_tables import is_measured
from millrace.planner.errors import InfeasibleError
from millrace.planner.plan import Plan
from millrace.planner.search import SearchRequest
from millrace.planner.search.search_log import SearchLog
from millrace.profiling.profile_coverage import op_times
from millrace.profiling.profile_update import rehearsed_profile
from millrace.units import format_seconds

# The plan that rehearsals make the fastest may have ops that none of them had. So many searches are
# made for a question, and none is begun that much after the first.
ROUNDS, PATIENCE_S = 5, 20.0
UNMEASURED = 0.02  # Ops that were never timed may take this share of a step's computing.
SECONDS, STEPS = 3.0, (4, 10)  # A rehearsal takes about so long, in so many steps.
LONGEST_S = 3.0  # Steps that take longer are not rehearsed.

Find = Callable[[SearchRequest, SearchLog], Plan]


def search_with_rehearsals(
    request: SearchRequest,
    find: Find,
    progress: Callable[[str], None] | None = None,
    record: SearchLog | None = None,
) -> Plan:
    """Plan whose ops were timed on this machine, where it is planned for and its profile is kept.

    Parameters
    ----------
    request : SearchRequest
        The question.
    find : callable
        Answers it, and writes what it did into a record.
    progress : callable, optional
        Called with a sentence before every rehearsal.
    record : SearchLog, optional
        Filled with what the last search did, and with the time of all.
    """
    record, began_s = record or SearchLog(), monotonic()
    for rounds_left in reversed(range(ROUNDS)):
        latest = record.beside()
        try:
            plan = find(request, latest)
        except KeyboardInterrupt:
            record.take(latest)
            raise
        finally:
            record.add_seconds(latest)
        is_last = rounds_left == 0 or monotonic() - began_s > PATIENCE_S
        is_whole = plan.cluster.devices == request.cluster.devices
        cluster = _rehearsed(plan, progress) if is_whole and not is_last else None
        if cluster is None:
            break
        request = replace(request, cluster=cluster)
    record.take(latest)
    return plan


def _rehearsed(plan: Plan, progress: Callable[[str], None] | None) -> Cluster | None:
    """Cluster of a plan with what a rehearsal of it took; None where nothing is to be learned."""
    cluster, prediction = plan.cluster, plan.prediction
    cores, ranks = cluster.cores_per_node, cluster.devices
    if (
        cores is None
        or cluster.nodes > 1
        or ranks > CROWDED * cores
        or not _is_kept(cluster.device, ranks)
    ):
        return None
    if prediction is None or prediction.step_time_s > LONGEST_S:
        return None
    graph = compile_plan(plan)
    if _unmeasured(graph, cluster) < UNMEASURED:
        return None
    least, most = STEPS
    steps = min(max(ceil(SECONDS / prediction.step_time_s), least), most)
    if progress is not None:
        seconds = format_seconds(steps * prediction.step_time_s)
        progress(f"timing the plan's ops on this machine, once (about {seconds}) …")
    try:
        trace = rehearse(plan, steps=steps)
    except (ExecutorError, InfeasibleError, DataError):  # who runs the plan will be told
        return None
    device = rehearsed_profile(cluster.device, graph, trace)
    keep_profile(ranks, device)
    return msgspec.structs.replace(cluster, device=device)


def _is_kept(device: Device, ranks: int) -> bool:
    """True where a device is what is kept of this machine with so many ranks."""
    kept_device = profile_in_keep(ranks)
    if kept_device is None:
        return False
    return msgspec.structs.replace(kept_device, memory_bytes=device.memory_bytes) == device


def _unmeasured(graph: ActorGraph, cluster: Cluster) -> float:
    """Share of the computing of a step, of all ranks, in ops whose shape was never timed."""
    total_ns = unmeasured_ns = 0
    for firings, spent_ns in op_times(graph, cluster):
        total_ns += spent_ns
        unmeasured_ns += 0 if is_measured(firings, cluster.device) else spent_ns
    return unmeasured_ns / max(total_ns, 1)
