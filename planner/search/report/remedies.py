"""Remedies: the nearest change under which a question without an answer has one.

Every remedy that is named was tried: shapes are enumerated for it, and where memory binds, a plan
is divided and laid out. They are few, so that the answer comes quickly.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec

from millrace.models.graph import Graph
from millrace.models.ops import op_kind, state_of
from millrace.models.zoo.catalogue import build_training
from millrace.planner.cluster import Cluster
from millrace.planner.clusters import reference_node
from millrace.planner.errors import ClusterError, InfeasibleError
from millrace.planner.memory import beside, plan_memory, reserved_bytes
from millrace.planner.plan import COUNT_MAX, ON_DEVICES, OPTIMIZER, TOKENS_MAX, plan_graph
from millrace.planner.schedules import PLAIN, SCHEDULES
from millrace.planner.search.candidates import Candidate
from millrace.planner.search.evaluation import Evaluator, Found, Refused
from millrace.planner.search.meshes import divisors
from millrace.planner.search.pins import DEGREES
from millrace.planner.search.report.offload import host_room_bytes, host_shortage, host_state_bytes
from millrace.planner.search.request import (
    HostMemoryError,
    MemoryLimitError,
    NoPlanError,
    SearchRequest,
    SignatureError,
)
from millrace.planner.search.sites import candidates_of, usable_bytes
from millrace.planner.search.writing import write_plan
from millrace.planner.wording import limit_option, one_of

SHOWN = 3  # remedies in one sentence
SIZES = 3  # of clusters that are tried
DEPTHS = 4  # numbers of stages that are tried on each
MESHES = 8  # that are tried where signatures bind
# What to try of a pin: more of it, else without it.
STRONGER = {"recompute": "full", "zero": 3, "offload": OPTIMIZER}
ORDER = ("offload", "recompute", "zero", "micro_batch", *DEGREES, "schedule", "interleave")


# -- what shapes allow -------------------------------------------------------------------------


def shape_remedies(request: SearchRequest, graph: Graph, by_batch: bool) -> list[str]:
    """Single changes of a pin or of the batch under which there is a plan, whatever its memory."""
    found = []
    for batch in _batches(request) if by_batch else ():
        if _has_plans(replace(request, global_batch=batch), graph):
            found.append(f"--global-batch {batch}")
            break
    for name, value in request.pins.document.items():
        flag = f"--{name.replace('_', '-')}"
        if name in (*DEGREES, "micro_batch"):
            for other in _nearby(int(value), request):
                if _has_plans(_repinned(request, name, other), graph):
                    found.append(f"{flag} {other}")
                    break
        if _has_plans(_repinned(request, name, None), graph):
            found.append(f"without {flag}")
    return found[:SHOWN]


def _batches(request: SearchRequest) -> list[int]:
    """The nearest batches that microbatches of the pinned sizes divide."""
    pins = request.pins
    unit = (pins.dp or 1) * (pins.micro_batch or 1)
    schedule = SCHEDULES[pins.schedule or PLAIN]
    if schedule.in_rounds:
        unit *= pins.pp or 1
    below = request.global_batch // unit * unit
    around = [below, below + unit]
    if (least := schedule.least_microbatches(pins.pp or 1)) > 1:
        around.append(unit * least)
    most = min(COUNT_MAX, TOKENS_MAX // request.model.seq_len)
    mine = [one for one in around if 0 < one <= most and one != request.global_batch]
    return sorted(mine, key=lambda one: (abs(one - request.global_batch), one))


def _nearby(value: int, request: SearchRequest) -> list[int]:
    """Divisors of the devices and of the batch, the nearest to a pinned value first."""
    both = {*divisors(request.cluster.devices), *divisors(request.global_batch)} - {value}
    return sorted(both, key=lambda one: (abs(one - value), one))[:6]


def _has_plans(request: SearchRequest, graph: Graph) -> bool:
    """Whether there are shapes, and legal signatures of every op on one of a few of them."""
    try:
        everything = candidates_of(request, graph)
        if graph.batch != request.global_batch:
            graph = build_training(request.model, request.training, request.global_batch)
        evaluator = Evaluator(request, graph)
        largest: dict[tuple[int, ...], Candidate] = {}
        for one in sorted(everything, key=lambda one: (one.batch, -one.pipeline.stages)):
            largest[one.sizes] = one  # more samples divide more
        few = list(largest.values())[:: max(1, len(largest) // MESHES)]
        bounds = evaluator.lower_bounds_ns(few)
    except InfeasibleError:
        return False
    return not all(isinstance(bound, InfeasibleError) for bound in bounds)


def _repinned(request: SearchRequest, name: str, value: object) -> SearchRequest:
    return replace(request, pins=replace(request.pins, **{name: value}))  # type: ignore[arg-type]


# -- what memory allows ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Room:
    """What the roomiest plan of a request needs of a device, its context included."""

    needed_bytes: int
    fits: bool


def storage_bytes(graph: Graph, offload: str = ON_DEVICES) -> int:
    """Bytes of variables, gradients and optimizer state: no plan holds less on all its devices.

    With optimizer state in host memory, of what is left on the devices.
    """
    tensors = graph.tensors_by_name
    found = 0
    for op in graph.ops:
        if op.kind == "variable":
            found += tensors[op.outputs[0]].size_bytes
        elif op_kind(op.kind).updates:
            kept = 1 + len(state_of(op.kind, op.attributes))
            found += kept * tensors[op.outputs[0]].size_bytes
    return found if offload == ON_DEVICES else found - host_state_bytes(graph)


def check_storage(request: SearchRequest, graph: Graph) -> None:
    """Refuse at once what cannot even hold the model and its optimizer, wherever they lie.

    Raises
    ------
    NoPlanError, HostMemoryError
        Names what weights, gradients and optimizer state take of a device, or of its node.
    """
    reserved = reserved_bytes(request.cluster)
    if request.usable_bytes <= 0:
        raise NoPlanError(
            "context, workspace and communication buffers, before any plan",
            reserved,
            request.limit_bytes,
        )
    devices = request.cluster.devices
    needed = -(-storage_bytes(graph, request.offload) // devices)
    groups = request.cluster.groups
    room = sum(group.devices * request.usable_on((group.device,)) for group in groups)
    if needed * devices > room:
        on_host = request.offload != ON_DEVICES
        raise NoPlanError(
            f"{'weights and gradients' if on_host else 'weights, gradients and optimizer state'}, "
            f"spread over {'all ' if devices > 1 else ''}{devices} device{'s' * (devices > 1)}",
            needed,
            room // devices,
            offload=request.offload,
        )
    _check_host(request, graph)


def _check_host(request: SearchRequest, graph: Graph) -> None:
    """Refuse optimizer state that the nodes' memory cannot hold, wherever it is known."""
    room = host_room_bytes(request) if request.offload != ON_DEVICES else None
    if room is None:
        return
    devices = request.cluster.devices
    needed = host_state_bytes(graph)
    if needed > room:
        raise HostMemoryError(-(-needed // devices), room // devices)


def memory_remedies(request: SearchRequest, graph: Graph) -> list[str]:
    """Single changes under which a plan fits: a pin, the number of devices, their memory."""
    found: list[str] = []
    if request.usable_bytes <= 0:
        # No plan can be sized where nothing can be laid out: that of the whole device.
        room = roomiest(replace(request, memory_limit_bytes=None), graph)
        return [f"with --memory-limit {limit_option(room.needed_bytes)}"] if room else found
    for name in (one for one in ORDER if one in request.pins.document):
        for value in dict.fromkeys((STRONGER.get(name), None)):
            if str(value) == str(request.pins.document[name]):
                continue
            room = roomiest(_repinned(request, name, value), graph)
            if room is not None and room.fits:
                flag = f"--{name.replace('_', '-')}"
                found.append(f"without {flag}" if value is None else f"with {flag} {value}")
                break
        if len(found) == SHOWN - 1:
            break
    if bigger := _more_devices(request, graph):
        found.append(bigger)
    room = roomiest(request, graph) if _worth_asking(request, graph) else None
    if room is not None and not room.fits:
        device = request.cluster.device
        option = limit_option(room.needed_bytes)
        if room.needed_bytes <= device.memory_bytes:
            found.append(f"with --memory-limit {option}")
        else:
            found.append(f"with devices of {option} (--memory-limit {option})")
    return found


def _worth_asking(request: SearchRequest, graph: Graph) -> bool:
    """Whether the memory that is missing could be that of a larger device."""
    return (
        storage_bytes(graph, request.offload) < 8 * request.usable_bytes * request.cluster.devices
    )


def _more_devices(request: SearchRequest, graph: Graph) -> str | None:
    """The smallest of a few larger clusters on which a plan fits."""
    least = storage_bytes(graph, request.offload) / request.usable_bytes
    tried = 0
    for cluster in larger(request.cluster):
        if cluster.devices < least:
            continue
        tried += 1
        room = roomiest(replace(request, cluster=cluster), graph)
        if room is not None and room.fits:
            return f"with {cluster.devices} devices ({cluster.name})"
        if tried == SIZES:
            break
    return None


def larger(cluster: Cluster) -> Iterator[Cluster]:
    """Clusters of the same devices: a fuller node, then twice as many nodes again and again."""
    if cluster.others or cluster.cores_per_node is not None:
        return
    try:
        full = reference_node(cluster.device.name).devices_per_node
    except ClusterError:
        full = cluster.devices_per_node
    per_node, nodes = cluster.devices_per_node, cluster.nodes
    for _ in range(24):
        if nodes == 1 and per_node < full and cluster.torus is None and cluster.islands is None:
            per_node = min(2 * per_node, full)
        else:
            nodes *= 2
        name = f"{cluster.device.name}:{per_node}x{nodes}"
        yield msgspec.structs.replace(cluster, name=name, devices_per_node=per_node, nodes=nodes)


def roomiest(request: SearchRequest, graph: Graph) -> Room | None:
    """What the plan that needs least memory takes, among a few that split and recompute most.

    None where the pins leave no candidate, or the signatures none.
    """
    try:
        few = _frugal(candidates_of(request, graph))
    except InfeasibleError:
        return None
    evaluator = Evaluator(request, graph)
    if request.pins.recompute is None:
        evaluator.modes = ("full",)
    best: Room | None = None
    limits = [usable_bytes(request, one) for one in few]
    for outcome in evaluator.squeeze_many([(one, 0.0) for one in few], limits, float("inf")):
        least = outcome
        if not isinstance(outcome, Found):
            needed = getattr(getattr(outcome, "error", None), "needed_bytes", None)
            if needed is None or (best is not None and best.fits):
                continue
            # Divided again with what it needs, to lay it out.
            kinds = len(usable_bytes(request, outcome.candidate))
            again = evaluator.squeeze_many(
                [(outcome.candidate, 0.0)], [(needed,) * kinds], float("inf")
            )
            least = again[0]
        if not isinstance(least, Found):
            continue
        room = _laid_out(evaluator, least)
        if best is None or room.needed_bytes < best.needed_bytes:
            best = room
        if best.fits:
            break
    return best


def _laid_out(evaluator: Evaluator, found: Found) -> Room:
    request = evaluator.request
    plan = write_plan(evaluator, found)
    graph = plan_graph(plan)
    arena = max(one.arena_bytes for one in plan_memory(plan, graph))
    needed = arena + sum(beside(arena, request.cluster).values())
    fits = arena <= request.usable_bytes and host_shortage(plan, graph) is None
    return Room(needed_bytes=needed, fits=fits)


def _frugal(everything: tuple[Candidate, ...]) -> list[Candidate]:
    """Of a few numbers of stages, the candidates with the smallest microbatches."""
    best: dict[int, tuple[tuple[int, ...], Candidate]] = {}
    for one in everything:
        p = one.pipeline
        rank = (one.batch, p.interleave, not p.in_turn, len(one.axes))
        if p.stages not in best or rank < best[p.stages][0]:
            best[p.stages] = rank, one
    depths = sorted(best)
    step = -(-len(depths) // DEPTHS)
    return [best[depth][1] for depth in depths[::step]]


def with_remedies(error: InfeasibleError, request: SearchRequest, graph: Graph) -> InfeasibleError:
    """Return the error with the nearest changes that help, where any does."""
    short = isinstance(error, NoPlanError | HostMemoryError)
    if short:
        found = memory_remedies(request, graph)
    else:
        # Another batch is nothing to offer where sizes of the model are what does not divide.
        found = shape_remedies(request, graph, not isinstance(error, SignatureError))
    if not found:
        return error
    lead = "It fits" if short else "There are plans"
    text = f"{str(error).rstrip('.')}. {lead} {one_of([_spoken(one) for one in found])}"
    return InfeasibleError(text)


def _spoken(remedy: str) -> str:
    return f"with {remedy}" if remedy.startswith("--") else remedy


def unfit(found: list[Refused], offload: str, bound_ns: float) -> InfeasibleError:
    """Join the reasons of all candidates: the nearest to fitting, or the first refusal.

    `bound_ns` is the least bound of those of which it is not proven.
    """
    close = [(one.candidate, one.error) for one in found if isinstance(one.error, MemoryLimitError)]
    first = found[0].error
    if isinstance(first, HostMemoryError) or (not close and isinstance(first, SignatureError)):
        return first
    if not close:
        return InfeasibleError(f"{found[0].candidate.text}: {first}")
    candidate, nearest = min(close, key=lambda pair: pair[1].needed_bytes)
    needed, limit = nearest.needed_bytes, nearest.limit_bytes
    return NoPlanError(candidate.text, needed, limit, nearest.stage, offload, bound_ns)
