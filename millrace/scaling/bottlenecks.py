"""Bottlenecks of a simulated step: its time by the resource that would shorten it.

The simulator splits the step of the average device in three that add up to it: busy, communication
that nothing hides, and bubble. Each is split further:

* busy, in proportion to the durations of all ops: ops that run a second time count for memory (the
  plan repeats them for lack of it), every other op for whichever shortens it most when it costs
  nothing: FLOP/s (compute), bandwidth of the device's memory (memory-bound ops), or launching it
  and copies from and to host memory (host);
* exposed communication, between links inside nodes and links between them, in proportion to what
  the step would gain if either moved data in no time; and then, in proportion to the durations of
  all meetings, by the kind of collective. A meeting lies between nodes where its members do;
* bubble: what vanishes when the host launches ops in no time counts for the host.

Parts of one resource are then added up (`resources`), and the largest binds.
"""

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from millrace.models.ops import OPS, op_kind
from millrace.planner.actors.graph import Actor, ActorGraph, Program
from millrace.planner.cluster import Cluster, Link, NodeGroup
from millrace.planner.compile.queue_orders import joined, unordered
from millrace.planner.compile.stages import lowered
from millrace.planner.costs import durations
from millrace.planner.costs.group_topology import frame_of, nodes_of
from millrace.planner.frameworks.peak_memory import needed_memory
from millrace.planner.plan import Plan

COMPUTE, MEMORY_BOUND, HOST = "compute", "memory-bound ops", "host"
MEMORY, BUBBLE = "recomputation", "bubble"
INSIDE, BETWEEN = PLACES = ("inside nodes", "between nodes")
RESOURCES = {  # the parts of a resource: their name, or how it ends
    "compute": COMPUTE,
    "memory_bandwidth": MEMORY_BOUND,
    "memory": MEMORY,
    "links_inside_nodes": INSIDE,
    "links_between_nodes": BETWEEN,
    "bubble": BUBBLE,
    "host": HOST,
}
FREE = 1e9  # times as fast: what is left of a duration is below a nanosecond
MADE_TWICE = "recompute"
SENT = {"recv": "send"}  # two ends of one transfer

Parts = dict[str, float]


def step_bottlenecks(plan: Plan) -> Parts:
    """Fractions of a plan's step by what they go to, the largest first; they sum to 1.

    Names are `compute`, `memory-bound ops`, `host`, `recomputation`, `bubble`, and collectives with
    their place, such as `all_reduce between nodes`.
    """
    from millrace.simulator import predict_fast

    memory = needed_memory(plan)

    def step_ns(cluster: Cluster) -> int:
        return predict_fast(replace(plan, cluster=cluster), memory).step_time_ns

    prediction = predict_fast(plan, memory)
    step_time_ns = max(prediction.step_time_ns, 1)
    exposed = min(prediction.exposed_communication_ns / step_time_ns, 1.0)
    bubble = min(prediction.bubble_fraction, 1 - exposed)
    actors = _lowered(plan)
    parts = _scaled(_work(actors, plan.cluster), 1 - exposed - bubble)
    moved = _moved(actors, plan.cluster)
    if exposed > 0:
        gains = {
            place: step_time_ns - step_ns(_changed(plan.cluster, FREE_LINKS[place]))
            for place in _places(moved)
        }
        parts |= _exposed(moved, gains, exposed)
    if plan.cluster.software.host_ns:
        software = replace(plan.cluster.software, host_ns=0)
        waited = 1 - step_ns(replace(plan.cluster, software=software)) / step_time_ns
        waited = min(max(waited, 0.0), bubble)
        parts[HOST] = parts.get(HOST, 0.0) + waited
        bubble -= waited
    parts[BUBBLE] = bubble
    return dict(sorted(((n, v) for n, v in parts.items() if v > 0), key=lambda part: -part[1]))


def resources(parts: Mapping[str, float]) -> Parts:
    """Fractions of a step by resource, in the order of `RESOURCES`.

    Examples
    --------
    >>> shares = resources({"compute": 0.9, "send between nodes": 0.1})
    >>> shares["links_between_nodes"], shares["bubble"]
    (0.1, 0.0)
    """
    return {
        resource: float(sum(part for name, part in parts.items() if name.endswith(ending)))
        for resource, ending in RESOURCES.items()
    }


def _lowered(plan: Plan) -> ActorGraph:
    """Actors of the plan; in which order they run does not matter here."""
    drafts, table = lowered(plan, plan.graph)
    programs = [
        unordered(draft, f"stage {stage}", stage, table.orders[stage])
        for stage, draft in enumerate(drafts)
    ]
    return joined(programs, plan.model.name, plan.mesh.axes)


def _work(actors: ActorGraph, cluster: Cluster) -> Parts:
    """Nanoseconds of all ops, by what they wait for."""
    now = durations(actors, cluster)
    free = {
        name: durations(actors, free_cluster)
        for name, free_cluster in _free_devices(cluster).items()
    }
    ns_by_resource: Parts = {}
    for program_index, program in enumerate(actors.programs):
        for index, actor in enumerate(program.actors):
            if actor.meeting is not None:
                continue
            gains = {
                name: now[program_index][index] - rows[program_index][index]
                for name, rows in free.items()
            }
            name = _resource(actor, gains)
            ns_by_resource[name] = (
                ns_by_resource.get(name, 0.0) + now[program_index][index] * actor.firings
            )
    return ns_by_resource


def _resource(actor: Actor, gains: Mapping[str, int]) -> str:
    if actor.phase == MADE_TWICE:
        return MEMORY
    best = max(gains, key=lambda name: gains[name])  # the first of equals
    if gains[best] > 0:
        return best
    products = any(kind in OPS and op_kind(kind).products for kind in actor.kinds)
    return COMPUTE if products else MEMORY_BOUND


def _moved(actors: ActorGraph, cluster: Cluster) -> dict[tuple[str, str], float]:
    """Nanoseconds of all meetings, by kind and place."""
    times = durations(actors, cluster)
    places: dict[object, str] = {}
    ns_by_kind_and_place: dict[tuple[str, str], float] = {}
    for program_index, program in enumerate(actors.programs):
        for actor, ns in zip(program.actors, times[program_index], strict=True):
            meeting = actor.meeting
            if meeting is None:
                continue
            key = (program_index, meeting.kind, meeting.axes, meeting.peer, meeting.world)
            if key not in places:
                places[key] = _place(actors, program, actor, cluster)
            name = (SENT.get(meeting.kind, meeting.kind), places[key])
            ns_by_kind_and_place[name] = ns_by_kind_and_place.get(name, 0.0) + ns * actor.firings
    return ns_by_kind_and_place


def _place(actors: ActorGraph, program: Program, actor: Actor, cluster: Cluster) -> str:
    """Place where the group of the program's first rank meets: inside nodes, or between them."""
    assert actor.meeting is not None
    members = actors.members(program.ranks[0], actor.meeting)
    return BETWEEN if len(set(nodes_of(tuple(members), frame_of(cluster)).tolist())) > 1 else INSIDE


def _places(moved: Mapping[tuple[str, str], float]) -> list[str]:
    return [
        name for name in PLACES if any(place == name and ns for (_, place), ns in moved.items())
    ]


def _exposed(
    moved: Mapping[tuple[str, str], float], gains: Mapping[str, int], exposed: float
) -> Parts:
    """Parts of the exposed communication, a fraction of the step, as the module says."""
    by_place: dict[str, Parts] = {}
    for (kind, place), ns in moved.items():
        by_place.setdefault(place, {})[f"{kind} {place}"] = ns
    totals = {place: sum(kinds.values()) for place, kinds in by_place.items()}
    weights = {place: float(max(gain, 0)) for place, gain in gains.items()}
    if not any(weights.values()):
        weights = totals
    parts: Parts = {}
    for place, share in _scaled(weights, exposed).items():
        parts |= _scaled(by_place[place], share)
    return parts


def _scaled(parts: Mapping[str, float], total: float) -> Parts:
    sum_of_parts = sum(parts.values())
    return (
        {name: part * total / sum_of_parts for name, part in parts.items()} if sum_of_parts else {}
    )


def _free_devices(cluster: Cluster) -> dict[str, Cluster]:
    """Clusters whose devices compute, reach their memory, or are launched, for nothing.

    Ops whose times were measured take as long as before.
    """
    return {
        COMPUTE: _changed(cluster, _free_compute),
        MEMORY_BOUND: _changed(cluster, _free_bandwidth),
        HOST: _changed(cluster, _free_host),
    }


def _free_compute(group: NodeGroup) -> NodeGroup:
    peaks = {name: rate * FREE for name, rate in group.device.flops_per_s.items()}
    return replace(group, device=replace(group.device, flops_per_s=peaks))


def _free_bandwidth(group: NodeGroup) -> NodeGroup:
    rate = group.device.memory_bandwidth_bytes_per_s * FREE
    return replace(group, device=replace(group.device, memory_bandwidth_bytes_per_s=rate))


def _free_host(group: NodeGroup) -> NodeGroup:
    host = group.host and replace(
        group.host, latency_ns=0, bandwidth_bytes_per_s=group.host.bandwidth_bytes_per_s * FREE
    )
    return replace(group, device=replace(group.device, launch_ns=0), host=host)


def _free_inside(group: NodeGroup) -> NodeGroup:
    islands = group.islands and replace(group.islands, link=_free(group.islands.link))
    bare = replace(group.device, collectives={})
    return replace(group, device=bare, intra_node=_free(group.intra_node), islands=islands)


def _free_between(group: NodeGroup) -> NodeGroup:
    return replace(group, inter_node=_free(group.inter_node))


def _free(link: Link) -> Link:
    rate = link.bandwidth_bytes_per_s * FREE
    return replace(link, latency_ns=0, gap_ns=0, bandwidth_bytes_per_s=rate)


FREE_LINKS = {INSIDE: _free_inside, BETWEEN: _free_between}


def _changed(cluster: Cluster, change: Callable[[NodeGroup], NodeGroup]) -> Cluster:
    """Cluster with every kind of node changed."""
    first, *others = map(change, cluster.groups)
    return replace(
        cluster,
        device=first.device,
        intra_node=first.intra_node,
        inter_node=first.inter_node,
        islands=first.islands,
        host=first.host,
        others=tuple(others),
    )
