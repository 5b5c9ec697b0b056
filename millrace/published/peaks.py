"""Peaks: the memory that a framework needs for a plan, and which figure a source prints of it.

Activations, buffers of boxing and what a section needs besides are the plan's. What is kept of a
parameter, how losses are computed, how many layers a stage has (`splits.py`) and what is kept of an
op more or less than the plan does is the framework's habit (`kept.py`). ZeRO and FSDP split flat
buffers, which always divide; tables are split over tensor parallel ranks.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from millrace.models.graph import ITEMSIZE, Graph, Op, Phase
from millrace.planner.compile.placement import PlacedOp, place
from millrace.planner.memory import StageMemory, beside, plan_memory
from millrace.planner.plan import Plan
from millrace.planner.roles import axis_roles
from millrace.planner.sbp import local_size
from millrace.published.splits import ON_THE_WAY, split_by_weight, split_evenly


class Figure(StrEnum):
    """What a source prints: of the allocator, or of the whole device."""

    ALLOCATED = "allocated"
    RESERVED = "reserved"
    DEVICE = "device"


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """What a framework keeps, in bytes of a parameter but for `loss_bytes` and `bucket_bytes`.

    Attributes
    ----------
    weight_bytes, gradient_bytes, state_bytes : int
        What products read, what gradients are summed in, and the rest, which ZeRO-1 splits.
    passing_bytes : int
        Of the gradients of one microbatch before they are summed: most when its activations are
        gone.
    loss_bytes : int
        Of a logit of 2 bytes, itself with all that is made of it, at the peak of the loss.
    bucket_bytes : int
        Of buffers whose size depends on nothing.
    zero, zero_ranks : int, optional
        Level, and over how many replicas at most; None: as the plan has it, all of them.
    gathers_again : bool
        Activations that were gathered are gathered again in the backward pass, not held.
    beside : tuple of (str, float)
        Kinds of op beside whose results more is kept: how many times their bytes in all.
    every_second : bool
        Blocks that recompute make every second of their products again too.
    unread : bool
        They keep a last product that no gradient reads.
    by_weight : bool
        Stages have blocks of equal weight, not equally many.
    figure : Figure
    """

    weight_bytes: int = 2
    gradient_bytes: int = 4
    state_bytes: int = 12
    passing_bytes: int = 0
    loss_bytes: int = 8
    bucket_bytes: int = 0
    zero: int | None = None
    zero_ranks: int | None = None
    gathers_again: bool = False
    beside: tuple[tuple[str, float], ...] = ()
    every_second: bool = False
    unread: bool = False
    by_weight: bool = False
    figure: Figure = Figure.ALLOCATED


def peak_bytes(plan: Plan, graph: Graph, kept: Keeping) -> int:
    """Return the memory of the fullest device as a source prints it.

    Parameters
    ----------
    plan : Plan
    graph : Graph
        As `plan_graph` gives it.
    kept : Keeping
        Of the framework.
    """
    plan = split_by_weight(plan, graph) if kept.by_weight else split_evenly(plan)
    placed = place(plan, graph)
    states = _state_bytes(plan, graph, placed, kept)
    logits = _logits(plan, graph, placed)
    memory = plan_memory(plan, graph, gathers_again=kept.gathers_again, grown=_grown(graph, kept))
    passing = _passing_bytes(plan, graph, placed, kept)
    needed = []
    for stage, planned in enumerate(memory):
        state = _planned_state(planned) if states is None else states[stage]
        area = max(planned.temporary_bytes, logits[stage] * kept.loss_bytes)
        working = max(planned.activation_bytes + area, passing[stage] + planned.temporary_bytes)
        needed.append(state + working + planned.communication_bytes + kept.bucket_bytes)
    return _printed(max(needed), plan, kept.figure)


def _planned_state(planned: StageMemory) -> int:
    return planned.parameter_bytes + planned.gradient_bytes + planned.optimizer_bytes


def _printed(needed: int, plan: Plan, figure: Figure) -> int:
    """A figure of what is allocated."""
    more = beside(needed, plan.cluster)
    if figure is Figure.ALLOCATED:
        return needed
    if figure is Figure.RESERVED:
        return needed + more.get("slack", 0)
    return needed + sum(more.values())


def _state_bytes(
    plan: Plan, graph: Graph, placed: tuple[PlacedOp, ...], kept: Keeping
) -> list[int] | None:
    """Bytes of parameters, gradients and optimizer per stage; None where the plan says it."""
    if kept.zero is None:
        return None
    found: Counter[int] = Counter()
    for stage, elements, ranks in _read_elements(plan, graph, placed):
        ranks = min(ranks, kept.zero_ranks or ranks)
        parts = (kept.state_bytes, 1), (kept.gradient_bytes, 2), (kept.weight_bytes, 3)
        for size, level in parts:
            found[stage] += elements * size // (ranks if kept.zero >= level else 1)
    return [found[stage] for stage in range(plan.stages)]


def _passing_bytes(
    plan: Plan, graph: Graph, placed: tuple[PlacedOp, ...], kept: Keeping
) -> Counter[int]:
    """Bytes of the gradients of a microbatch per stage, where they are apart from their sums."""
    found: Counter[int] = Counter()
    if kept.passing_bytes:
        for stage, elements, _ in _read_elements(plan, graph, placed):
            found[stage] += elements * kept.passing_bytes
    return found


def _read_elements(
    plan: Plan, graph: Graph, placed: tuple[PlacedOp, ...]
) -> Iterator[tuple[int, int, int]]:
    """Parameters per stage: elements on a rank, and ranks that hold the same."""
    sizes = plan.mesh.sizes
    roles = axis_roles(plan, graph)
    replicas = [axis for axis, one in enumerate(roles) if one & {"dp", "cp"}]
    tensor = [axis for axis, one in enumerate(roles) if "tp" in one]
    source: dict[str, str] = {}
    read: dict[tuple[int, str], tuple[int, int]] = {}  # elements, and ranks that hold them
    for one in placed:
        if one.op.kind == "variable":
            source[one.op.outputs[0]] = one.op.outputs[0]
        elif one.op.kind in ON_THE_WAY and one.op.inputs[0] in source:
            source[one.op.outputs[0]] = source[one.op.inputs[0]]
        elif one.op.phase is Phase.FORWARD:
            for name, sbp in zip(one.op.inputs, one.inputs, strict=True):
                if name in source and (one.stage, source[name]) not in read:
                    ranks = 1
                    for axis in replicas:
                        ranks *= 1 if sbp[axis].is_split else sizes[axis]
                    shape = graph.tensors_by_name[name].shape
                    elements = local_size(shape, sbp, sizes)
                    if one.op.kind == "embedding":
                        for axis in tensor:
                            elements //= 1 if sbp[axis].is_split else sizes[axis]
                    read[one.stage, source[name]] = elements, ranks
    for (stage, _), (elements, ranks) in read.items():
        yield stage, elements, ranks


def _grown(graph: Graph, kept: Keeping) -> dict[str, float]:
    """By name of op: how many times what it makes is kept; logits are counted apart."""
    logits, times = _logits_names(graph), dict(kept.beside)
    found: dict[str, float] = {}
    for op in graph.ops:
        if op.phase in (Phase.FORWARD, Phase.RECOMPUTE):
            if op.kind in times:
                found[op.name] = times[op.kind]
            if logits.intersection(op.outputs):
                found[op.name] = 0.0
    if kept.every_second:
        _every_second(graph, kept, found)
    return found


def _every_second(graph: Graph, kept: Keeping, found: dict[str, float]) -> None:
    """Products of a block that recomputes, of which every second is made again."""
    recomputed = {op.block for op in graph.ops if op.phase is Phase.RECOMPUTE}
    products: dict[str, list[Op]] = {}
    for op in graph.ops:
        forward = op.phase is Phase.FORWARD and op.block in recomputed
        if forward and op.kind == "matmul" and op.name not in found:
            products.setdefault(op.block, []).append(op)
    for every in products.values():
        found.update((op.name, 0.0) for op in every[1::2])
    if kept.unread:
        last = {every[-1].outputs[0] for every in products.values() if len(every) % 2}
        sums = (op for op in graph.ops if op.phase is Phase.FORWARD and last & {*op.inputs})
        found.update((op.name, 2.0) for op in sums)


def _logits_names(graph: Graph) -> set[str]:
    """Logits of 2 bytes, made once and again."""
    tensors = graph.tensors_by_name
    return {
        op.inputs[0]
        for op in graph.ops
        if op.kind == "cross_entropy" and ITEMSIZE[tensors[op.inputs[0]].dtype] == 2
    }


def _logits(plan: Plan, graph: Graph, placed: tuple[PlacedOp, ...]) -> Counter[int]:
    """Logits of a microbatch on a device of each stage, where they are of 2 bytes."""
    found: Counter[int] = Counter()
    for one in placed:
        if one.op.kind == "cross_entropy" and one.op.phase is Phase.FORWARD:
            logits = graph.tensors_by_name[one.op.inputs[0]]
            if ITEMSIZE[logits.dtype] == 2:
                found[one.stage] += local_size(logits.shape, one.inputs[0], plan.mesh.sizes)
    return found
