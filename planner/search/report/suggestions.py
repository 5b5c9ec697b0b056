"""Suggestions: the nearest change under which a question without an answer has one.

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
from millrace.planner.formatting import limit_option, one_of, size
from millrace.planner.frameworks.capabilities import DEGREES
from millrace.planner.frameworks.peak_memory import needed_memory
from millrace.planner.memory import (
    NO_RESERVE,
    device_overhead_bytes,
    reserved_bytes,
)
from millrace.planner.plan import COUNT_MAX, ON_DEVICES, OPTIMIZER, TOKENS_MAX
from millrace.planner.schedules import PLAIN, SCHEDULES
from millrace.planner.search.candidates import Candidate
from millrace.planner.search.evaluation import Evaluator, Refused, SolvedPlan
from millrace.planner.search.meshes import divisors
from millrace.planner.search.placement_groups import candidates_of, usable_bytes
from millrace.planner.search.plan_writer import disobeyed, write_plan
from millrace.planner.search.ranking.outcomes import outcomes_of
from millrace.planner.search.report.host_offload import (
    host_room_bytes,
    host_shortage,
    host_state_bytes,
)
from millrace.planner.search.request import (
    HostMemoryError,
    MemoryLimitError,
    NoPlanError,
    SearchRequest,
    SignatureError,
)

SHOWN = 3  # remedies in one sentence, at most
SIZES = 3  # larger clusters that are tried
DEPTHS = 4  # numbers of stages that are tried on each
ANY_BYTES = 2**60  # more memory than any device has
MESHES = 8  # meshes that are tried where signatures bind
# Pins are tried stronger first, where they can be, else left out.
STRONGER = {"recompute": "full", "zero": 3, "offload": OPTIMIZER}
ORDER = ("offload", "recompute", "zero", "micro_batch", *DEGREES, "schedule", "interleave")


# -- what shapes allow -------------------------------------------------------------------------


def shape_remedies(request: SearchRequest, graph: Graph, by_batch: bool) -> list[str]:
    """Single changes of a pin or of the batch under which there is a plan, whatever its memory."""
    remedies = []
    for batch in _batches(request) if by_batch else ():
        if _has_plans(replace(request, global_batch=batch), graph):
            remedies.append(f"--global-batch {batch}")
            break
    for name, value in request.pins.document.items():
        flag = f"--{name.replace('_', '-')}"
        if name in (*DEGREES, "micro_batch"):
            for other in _nearby(int(value), request):
                if _has_plans(_repinned(request, name, other), graph):
                    remedies.append(f"{flag} {other}")
                    break
        if _has_plans(_repinned(request, name, None), graph):
            remedies.append(f"without {flag}")
    return remedies[:SHOWN]


def _batches(request: SearchRequest) -> list[int]:
    """Nearest batches that microbatches of the pinned sizes divide."""
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
    batches = [batch for batch in around if 0 < batch <= most and batch != request.global_batch]
    return sorted(batches, key=lambda batch: (abs(batch - request.global_batch), batch))


def _nearby(value: int, request: SearchRequest) -> list[int]:
    """Divisors of the devices and of the batch, the nearest to a pinned value first."""
    both = {*divisors(request.cluster.devices), *divisors(request.global_batch)} - {value}
    return sorted(both, key=lambda divisor: (abs(divisor - value), divisor))[:6]


def _has_plans(request: SearchRequest | None, graph: Graph) -> bool:
    """True if there are shapes, and a plan on one of a few of them shows what is pinned."""
    if request is None:
        return False
    try:
        everything = candidates_of(request, graph)
        if graph.batch != request.global_batch:
            graph = build_training(request.model, request.training, request.global_batch)
        evaluator = Evaluator(request, graph)
        largest: dict[tuple[int, ...], Candidate] = {}
        for candidate in sorted(
            everything, key=lambda candidate: (candidate.batch, -candidate.pipeline.stages)
        ):
            largest[candidate.sizes] = candidate  # more samples divide more
        few = list(largest.values())[:: max(1, len(largest) // MESHES)]
        bounds = evaluator.lower_bounds_ns(few)
    except InfeasibleError:
        return False
    return any(
        _shows_pins(evaluator, candidate)
        for candidate, bound in zip(few, bounds, strict=True)
        if not isinstance(bound, InfeasibleError)
    )


def _shows_pins(evaluator: Evaluator, candidate: Candidate) -> bool:
    """True if a candidate's plan, as if it had any memory, is what pins ask for."""
    limits = (ANY_BYTES,) * len(usable_bytes(evaluator.request, candidate))
    outcome = outcomes_of(evaluator, [candidate], {candidate: limits})[candidate]
    return isinstance(outcome, SolvedPlan) and not disobeyed(
        write_plan(evaluator, outcome), evaluator.graph, evaluator.request.pins
    )


def _repinned(request: SearchRequest, name: str, value: object) -> SearchRequest | None:
    """Request with another value of a pin; None where the framework cannot run that."""
    try:
        return replace(request, pins=replace(request.pins, **{name: value}))  # type: ignore[arg-type]
    except InfeasibleError:
        return None


# -- what memory allows ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes that the roomiest plan of a request needs of a device, its context included."""

    needed_bytes: int
    fits: bool


def storage_bytes(graph: Graph, offload: str = ON_DEVICES) -> int:
    """Bytes of variables, gradients and optimizer state: no plan holds less on all its devices.

    With optimizer state in host memory, those of what is left on the devices.
    """
    tensors = graph.tensors_by_name
    total_bytes = 0
    for op in graph.ops:
        if op.kind == "variable":
            total_bytes += tensors[op.outputs[0]].size_bytes
        elif op_kind(op.kind).updates:
            copies = 1 + len(state_of(op.kind, op.attributes))
            total_bytes += copies * tensors[op.outputs[0]].size_bytes
    return total_bytes if offload == ON_DEVICES else total_bytes - host_state_bytes(graph)


def check_storage(request: SearchRequest, graph: Graph) -> None:
    """Refuse at once what cannot even hold the model and its optimizer, wherever they lie.

    Parameters
    ----------
    request : SearchRequest
        Devices and the memory of each that may be used; whether optimizer state is on the host.
    graph : Graph
        Training graph: weights, gradients and optimizer state.

    Raises
    ------
    NoPlanError, HostMemoryError
        Says how much weights, gradients and optimizer state take of a device, or of its node.
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
    remedies: list[str] = []
    if request.usable_bytes <= 0:
        # Where nothing can be laid out, the plan for the whole device is sized instead.
        everything = replace(request, memory_limit_bytes=None, reserve=NO_RESERVE)
        room = least_memory_need(everything, graph)
        return [_more_room(request, room.needed_bytes)] if room else remedies
    for name in (pin for pin in ORDER if pin in request.pins.document):
        for value in dict.fromkeys((STRONGER.get(name), None)):
            if str(value) == str(request.pins.document[name]):
                continue
            other = _repinned(request, name, value)
            room = least_memory_need(other, graph) if other is not None else None
            if room is not None and room.fits:
                flag = f"--{name.replace('_', '-')}"
                remedies.append(f"without {flag}" if value is None else f"with {flag} {value}")
                break
        if len(remedies) == SHOWN - 1:
            break
    if bigger := _more_devices(request, graph):
        remedies.append(bigger)
    room = least_memory_need(request, graph) if _worth_asking(request, graph) else None
    if room is not None and not room.fits:
        remedies.append(_more_room(request, room.needed_bytes))
    return remedies


def reserve_remedy(request: SearchRequest, graph: Graph) -> str:
    """Words for the reserve without which a plan fits; empty where there is none, or it does not.

    Parameters
    ----------
    request : SearchRequest
        Question that no plan fits.
    graph : Graph
        Training graph of the request.
    """
    if request.memory_limit_bytes is not None or request.reserve == NO_RESERVE:
        return ""
    room = least_memory_need(replace(request, reserve=NO_RESERVE), graph)
    return _more_room(request, room.needed_bytes) if room is not None and room.fits else ""


def _more_room(request: SearchRequest, needed_bytes: int) -> str:
    """Change of the memory that a plan may use, in words: its reserve, its limit, or the device."""
    memory_bytes = request.cluster.device.memory_bytes
    option = limit_option(needed_bytes)
    if needed_bytes > memory_bytes:
        return f"with devices of {option} (--memory-limit {option})"
    if request.memory_limit_bytes is None and request.reserve != NO_RESERVE:
        return f"with --reserve 0 (which leaves {size(memory_bytes - needed_bytes)})"
    return f"with --memory-limit {option}"


def _worth_asking(request: SearchRequest, graph: Graph) -> bool:
    """True if the memory that is missing could be that of a larger device."""
    return (
        storage_bytes(graph, request.offload) < 8 * request.usable_bytes * request.cluster.devices
    )


def _more_devices(request: SearchRequest, graph: Graph) -> str | None:
    """Smallest of a few larger clusters on which a plan fits, in words."""
    least = storage_bytes(graph, request.offload) / request.usable_bytes
    tried = 0
    for cluster in larger(request.cluster):
        if cluster.devices < least:
            continue
        tried += 1
        room = least_memory_need(replace(request, cluster=cluster), graph)
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


def least_memory_need(request: SearchRequest, graph: Graph) -> MemoryNeed | None:
    """Room of the plan that needs least memory, among a few that split and recompute most.

    None where the pins leave no candidate, or the signatures none.
    """
    try:
        few = _smallest_microbatch_candidates(candidates_of(request, graph))
    except InfeasibleError:
        return None
    evaluator = Evaluator(request, graph)
    if request.pins.recompute is None:
        evaluator.modes = request.runs.recompute[-1:]
    best: MemoryNeed | None = None
    for outcome in outcomes_of(evaluator, few).values():
        least = outcome
        if not isinstance(outcome, SolvedPlan):
            needed = getattr(getattr(outcome, "error", None), "needed_bytes", None)
            if needed is None or (best is not None and best.fits):
                continue
            # Divided again with what it needs, to lay it out.
            kinds = len(usable_bytes(request, outcome.candidate))
            again = outcomes_of(
                evaluator, [outcome.candidate], {outcome.candidate: (needed,) * kinds}
            )
            least = again[outcome.candidate]
        if not isinstance(least, SolvedPlan):
            continue
        room = _laid_out(evaluator, least)
        if best is None or room.needed_bytes < best.needed_bytes:
            best = room
        if best.fits:
            break
    return best


def _laid_out(evaluator: Evaluator, best_plan: SolvedPlan) -> MemoryNeed:
    request = evaluator.request
    plan = write_plan(evaluator, best_plan)
    arena = max(stage_memory.arena_bytes for stage_memory in needed_memory(plan))
    needed = arena + sum(device_overhead_bytes(arena, request.cluster).values())
    fits = arena <= request.usable_bytes and host_shortage(plan) is None
    return MemoryNeed(needed_bytes=needed, fits=fits)


def _smallest_microbatch_candidates(everything: tuple[Candidate, ...]) -> list[Candidate]:
    """Candidates with the smallest microbatches, for each of a few numbers of stages."""
    best: dict[int, tuple[tuple[int, ...], Candidate]] = {}
    for candidate in everything:
        p = candidate.pipeline
        rank = (candidate.batch, p.interleave, not p.in_turn, len(candidate.axes))
        if p.stages not in best or rank < best[p.stages][0]:
            best[p.stages] = rank, candidate
    depths = sorted(best)
    step = -(-len(depths) // DEPTHS)
    return [best[depth][1] for depth in depths[::step]]


def with_remedies(error: InfeasibleError, request: SearchRequest, graph: Graph) -> InfeasibleError:
    """Error with the nearest changes that help, where any does.

    Parameters
    ----------
    error : InfeasibleError
        Raised by the search. Memory is changed after a NoPlanError or a HostMemoryError, shapes are
        after any other, but no batch after a SignatureError.
    request : SearchRequest
        Question that the error answers.
    graph : Graph
        Training graph of the request.

    Returns
    -------
    InfeasibleError
        The error itself where no change helps; else a plain InfeasibleError with its text and more.
    """
    short = isinstance(error, NoPlanError | HostMemoryError)
    if short:
        remedies = memory_remedies(request, graph)
    else:
        # Another batch is not offered where it is sizes of the model that do not divide.
        remedies = shape_remedies(request, graph, not isinstance(error, SignatureError))
    if not remedies:
        return error
    lead = "It fits" if short else "There are plans"
    text = f"{str(error).rstrip('.')}. {lead} {one_of([_spoken(remedy) for remedy in remedies])}"
    return InfeasibleError(text)


def _spoken(remedy: str) -> str:
    return f"with {remedy}" if remedy.startswith("--") else remedy


def infeasibility_error(refusals: list[Refused], offload: str, bound_ns: float) -> InfeasibleError:
    """Error for all candidates: the one nearest to fitting, or the first refusal.

    Parameters
    ----------
    refusals : list of Refused
        At least one, in the order tried. A MemoryLimitError that needs the fewest bytes is the
        nearest; a HostMemoryError that comes first goes before it.
    offload : str
        Place of optimizer state, as in a Plan: none or optimizer.
    bound_ns : float
        The least bound of those of which it is not proven, nanoseconds; infinite: all are proven.
    """
    close = [
        (refused.candidate, refused.error)
        for refused in refusals
        if isinstance(refused.error, MemoryLimitError)
    ]
    first = refusals[0].error
    if isinstance(first, HostMemoryError) or (not close and isinstance(first, SignatureError)):
        return first
    if not close:
        return InfeasibleError(f"{refusals[0].candidate.text}: {first}")
    candidate, nearest = min(close, key=lambda pair: pair[1].needed_bytes)
    needed, limit = nearest.needed_bytes, nearest.limit_bytes
    return NoPlanError(candidate.text, needed, limit, nearest.stage, offload, bound_ns)
