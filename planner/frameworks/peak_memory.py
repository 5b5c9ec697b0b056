"""Peak memory that a framework needs for a plan: the account that plans are held to.

Activations, buffers of boxing and what a section needs besides are the plan's. What is kept of a
parameter, how losses are computed, how many layers a stage has and what is kept of an op more or
less than the plan does is the framework's habit (`millrace.planner.frameworks.framework_memory`).
ZeRO and FSDP split flat buffers, which always divide; tables are split over tensor parallel ranks.
A plan of a framework whose habits are not known, and one for our own executor, needs what the
compiler lays out.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import prod

from millrace.models.graph import ITEMSIZE, Graph, Op, Phase
from millrace.models.labels import EXPERT, parse
from millrace.models.ops import state_of
from millrace.planner.compile.placement import PlacedOp, place
from millrace.planner.frameworks.framework_memory import (
    USUAL,
    FrameworkMemory,
    LossKernel,
    memory_of_run,
)
from millrace.planner.frameworks.framework_tables import framework_memory, has_account
from millrace.planner.frameworks.layer_split import ON_THE_WAY, split_layers
from millrace.planner.frameworks.resident_memory import (
    boundary_bytes,
    gather_bytes,
    last_shares,
    rounding_bytes,
    routing_bytes,
    workspace_bytes,
)
from millrace.planner.memory import StageMemory, device_overhead_bytes, plan_memory
from millrace.planner.memory.formula import BOXED
from millrace.planner.parallel_degrees import axis_roles, roles
from millrace.planner.plan import ON_DEVICES, Plan
from millrace.planner.sbp import local_shape, local_size

ADAMS, MOMENT_BYTES = 2, 4  # moments that `ParameterBytes` counts, and the bytes of one


class Figure(StrEnum):
    """Figure of memory that a source prints: of the allocator, or of the whole device."""

    ALLOCATED = "allocated"
    RESERVED = "reserved"
    DEVICE = "device"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryHabit:
    """Habit of a run in using memory: its framework's, with the run's own settings.

    Attributes
    ----------
    framework : FrameworkMemory
        The framework's, as the run has it.
    zero, zero_ranks : int, optional
        Level, and over how many replicas at most; None: as the plan has it, all of them.
    copies : int
        Times that split state is there, each time split over as many fewer replicas.
    gathers_again : bool
        Activations that were gathered are gathered again in the backward pass, not held.
    unread : bool
        Blocks that keep every second product keep a last one that no gradient reads.
    figure : Figure
        The figure that the source prints.
    stage : int, optional
        The stage whose figures it prints; None: the fullest.
    """

    framework: FrameworkMemory = USUAL
    zero: int | None = None
    zero_ranks: int | None = None
    copies: int = 1
    gathers_again: bool = False
    unread: bool = False
    figure: Figure = Figure.ALLOCATED
    stage: int | None = None


def needed_memory(plan: Plan) -> tuple[StageMemory, ...]:
    """Memory of every stage of a plan, as the framework that runs it needs it.

    Parameters
    ----------
    plan : Plan
        The plan; the software of its cluster says who runs it.
    """
    habit = habit_of(plan)
    return plan_memory(plan) if habit is None else framework_stages(plan, habit)


def habit_of(plan: Plan) -> MemoryHabit | None:
    """Habit of the framework that runs a plan; None where it is not known.

    Parameters
    ----------
    plan : Plan
        The plan; its parallelism and recomputation say which habits count.
    """
    software = plan.cluster.software
    if not has_account(software.name):
        return None
    shown = roles(plan, plan.graph)
    degrees = {role: value for role, value in shown.items() if isinstance(value, int)}
    memory = memory_of_run(
        framework_memory(software.name),
        precision=plan.model.precision,
        tp=degrees.get("tp", 1),
        pp=plan.stages,
        loss=LossKernel.COMPILED if software.compiled else "",
    )
    zero = degrees.get("zero")  # hybrid ZeRO is as the plan has it
    if zero is not None and plan.stages > 1 and memory.pipelined_zero is not None:
        zero = min(zero, memory.pipelined_zero)
    unread = software.selective.every_second and not software.compiled
    return MemoryHabit(
        framework=memory,
        zero=zero,
        zero_ranks=software.state_ranks or None,
        gathers_again=bool(shown["sequence_parallel"]) or degrees.get("cp", 1) > 1,
        unread=unread and shown["recompute"] == "selective",
    )


def framework_stages(plan: Plan, habit: MemoryHabit) -> tuple[StageMemory, ...]:
    """Memory of every stage of a plan by a framework's habit.

    Parameters
    ----------
    plan : Plan
        The plan.
    habit : MemoryHabit
        How the run uses memory.
    """
    framework = habit.framework
    placed = place(plan, plan.graph)
    states = _state_bytes(plan, placed, habit)
    logits = _logits(plan, placed)
    memory = plan_memory(
        plan,
        gathers_again=habit.gathers_again,
        lets_sent_go=framework.lets_sent_go,
        grown=_kept_factors(plan.graph, habit),
    )
    passing = _passing_bytes(plan, placed, framework)
    outside = _outside_bytes(plan, placed, habit)
    placeholders = placeholder_bytes(plan, placed) if framework.placeholders else Counter()
    resident = Counter(dict.fromkeys(range(plan.stages), framework.bucket_bytes))
    if framework.workspaces is not None and plan.cluster.cores_per_node is None:
        libraries = workspace_bytes(framework.workspaces, plan)
        resident += Counter(dict.fromkeys(range(plan.stages), libraries))
        resident += boundary_bytes(plan, placed) + _rounding(plan, placed, habit)
        resident += gather_bytes(plan, placed)
        fused = framework.workspaces.fused_permutation
        resident += routing_bytes(plan, placed, fused_permutation=fused)
    stages = []
    for stage, planned in enumerate(memory):
        area = max(planned.temporary_bytes, _loss_bytes(logits[stage], framework))
        passed = passing[stage] + planned.temporary_bytes - planned.activation_bytes
        laid_out = replace(
            planned,
            **({} if states is None else states[stage]),
            activation_bytes=planned.activation_bytes
            + 2 * sum(logits[stage]) * min(framework.deferred, plan.microbatches),
            temporary_bytes=max(area, passed),
            communication_bytes=planned.communication_bytes,
            resident_bytes=resident[stage] + placeholders[stage] + outside[stage],
        )
        overhead = device_overhead_bytes(laid_out.arena_bytes, plan.cluster)
        stages.append(replace(laid_out, **{f"{kind}_bytes": n for kind, n in overhead.items()}))
    return tuple(stages)


def printed_stage(plan: Plan, habit: MemoryHabit) -> StageMemory:
    """Memory of the stage whose figures a source prints.

    Blocks are dealt out to stages as the framework does it.

    Parameters
    ----------
    plan : Plan
        The plan of a run that happened.
    habit : MemoryHabit
        How the run used memory; without a stage of its own, the fullest counts.
    """
    if habit.stage is not None:
        return framework_stages(plan, habit)[habit.stage]
    stages = framework_stages(split_layers(plan, habit.framework.layer_split), habit)
    return max(stages, key=lambda stage: stage.arena_bytes)


def printed_bytes(plan: Plan, memory: Sequence[StageMemory], figure: Figure) -> int:
    """Memory of the fullest device as a source would print it, in bytes.

    Parameters
    ----------
    plan : Plan
        The plan.
    memory : sequence of StageMemory
        That of every stage, as `plan_memory` gives it, or of the one whose figures are printed.
    figure : Figure
        What the source prints.
    """
    needed = max(stage.arena_bytes for stage in memory)
    more = device_overhead_bytes(needed, plan.cluster)
    if figure is Figure.ALLOCATED:
        return needed
    if figure is Figure.RESERVED:
        return needed + more.get("slack", 0)
    return needed + sum(more.values())


def _state_bytes(
    plan: Plan, placed: tuple[PlacedOp, ...], habit: MemoryHabit
) -> list[dict[str, int]] | None:
    """Bytes of parameters, gradients and optimizer per stage; None where the plan says it."""
    if habit.zero is None or plan.offload != ON_DEVICES:
        return None
    stages: list[Counter[str]] = [Counter() for _ in range(plan.stages)]
    stored = habit.framework.parameters
    parts = (
        ("optimizer_bytes", stored.state_bytes, 1),
        ("gradient_bytes", stored.gradient_bytes, 2),
        ("parameter_bytes", stored.weight_bytes, 3),
    )
    updated = _states(plan.graph)
    for stage, variable, elements, ranks in _read_elements(plan, placed):
        ranks = max(1, min(ranks, habit.zero_ranks or ranks) // habit.copies)
        for kind, size, level in parts:
            if kind != "parameter_bytes":
                size = size if variable in updated else 0
            if kind == "optimizer_bytes":
                size -= MOMENT_BYTES * (ADAMS - updated.get(variable, ADAMS))
            stages[stage][kind] += elements * size // (ranks if habit.zero >= level else 1)
    return [{kind: stage[kind] for kind, _, _ in parts} for stage in stages]


def _states(graph: Graph) -> dict[str, int]:
    """Numbers that optimizers keep for each of a variable's, for those that are trained."""
    states: dict[str, int] = {}
    for op in graph.ops:
        if op.phase is Phase.UPDATE and "variable" in op.attributes:
            variable = str(op.attributes["variable"])
            states[variable] = states.get(variable, 0) + len(state_of(op.kind, op.attributes))
    return states


def _rounding(plan: Plan, placed: tuple[PlacedOp, ...], habit: MemoryHabit) -> Counter[int]:
    """Bytes per stage by which the allocator rounds up weights and state, a tensor each.

    Optimizers make all that they keep of a tensor before they go to the next. With ZeRO-1 weights
    lie in a flat buffer, of which a rank has the state of its share, a tensor for every parameter
    that lies in it (`DistributedOptimizer`, megatron/core/optimizer/distrib_optimizer.py, read
    2026-11). Parameters lie there from the last to the first, and the last rank prints.
    """
    bytes_by_stage: Counter[int] = Counter()
    if habit.zero not in (0, 1):
        return bytes_by_stage
    owners = _owners(plan)
    tensors: dict[int, dict[tuple[str, int, int], int]] = {k: {} for k in range(plan.stages)}
    for stage, name, number, ranks in _read_elements(plan, placed):
        ranks = max(1, min(ranks, habit.zero_ranks or ranks) // habit.copies) if habit.zero else 1
        owner = (*owners.get(name, (name, 1)), ranks)
        tensors[stage][owner] = tensors[stage].get(owner, 0) + number
    stored = habit.framework.parameters
    moments = max(stored.state_bytes // MOMENT_BYTES - 1, 0)
    for stage, elements in tensors.items():
        every = [(n // of, ranks) for (_, of, ranks), n in elements.items() for _ in range(of)]
        sizes = [] if habit.zero else [stored.weight_bytes * number for number, _ in every]
        shares = last_shares(every)
        sizes += [MOMENT_BYTES * number for number in shares]
        sizes += [MOMENT_BYTES * number for number in shares for _ in range(moments)]
        bytes_by_stage[stage] = rounding_bytes(sizes)
    return bytes_by_stage


def _owners(plan: Plan) -> dict[str, tuple[str, int]]:
    """Tensors that weights of products lie in, by weight: a name, and how many there are.

    Products of one module that read the same are one product (`linear_qkv`, `linear_fc1` of
    Megatron-Core, read 2026-11); every expert on a device has a tensor of its own.
    """
    ranks = int(roles(plan, plan.graph)["ep"] or 1)
    tensors = plan.graph.tensors_by_name
    weights: dict[str, str] = {}
    owners: dict[str, tuple[str, int]] = {}
    for op in plan.graph.ops:
        if op.kind == "variable":
            weights[op.outputs[0]] = op.outputs[0]
        elif op.kind in ON_THE_WAY and op.inputs[0] in weights:
            weights[op.outputs[0]] = weights[op.inputs[0]]
        elif op.kind == "matmul" and op.phase is Phase.FORWARD and op.inputs[1] in weights:
            weight = weights[op.inputs[1]]
            of_expert = parse(op.labels).inputs[1][0] == (EXPERT,)
            experts = tensors[weight].shape[0] // ranks if of_expert else 1
            owners[weight] = f"{op.name.rpartition('.')[0]} of {op.inputs[0]}", experts
    return owners


def _passing_bytes(
    plan: Plan, placed: tuple[PlacedOp, ...], framework: FrameworkMemory
) -> Counter[int]:
    """Bytes of the gradients of a microbatch per stage, where they are apart from their sums."""
    bytes_by_stage: Counter[int] = Counter()
    if framework.passing_bytes:
        trained = _states(plan.graph)
        for stage, variable, elements, _ in _read_elements(plan, placed):
            if variable in trained:
                bytes_by_stage[stage] += elements * framework.passing_bytes
    return bytes_by_stage


def _outside_bytes(plan: Plan, placed: tuple[PlacedOp, ...], habit: MemoryHabit) -> Counter[int]:
    """Bytes per stage of gathered weights outside of layers, where they stay gathered."""
    bytes_by_stage: Counter[int] = Counter()
    if habit.zero == 3 and habit.framework.gathered_outside:
        ends, makers = (plan.graph.blocks[0], plan.graph.blocks[-1]), plan.graph.makers
        for stage, variable, elements, _ in _read_elements(plan, placed):
            if makers[variable].block in ends:
                bytes_by_stage[stage] += elements * habit.framework.parameters.weight_bytes
    return bytes_by_stage


def placeholder_bytes(plan: Plan, placed: tuple[PlacedOp, ...]) -> Counter[int]:
    """Bytes of one gradient of 2 bytes per stage for every shape of weight that a product reads.

    Products of one name in several blocks have one shape; experts of a layer have one too.

    Parameters
    ----------
    plan : Plan
        The plan, with its mesh and graph.
    placed : tuple of PlacedOp
        Its ops, in order.
    """
    sizes, tensors = plan.mesh.sizes, plan.graph.tensors_by_name
    stored: set[str] = set()
    elements: dict[tuple[int, str], int] = {}
    for placed_op in placed:
        op = placed_op.op
        if op.trains or (op.kind in ON_THE_WAY and op.inputs[0] in stored):
            stored.add(op.outputs[0])
        elif op.phase is Phase.FORWARD and op.kind == "matmul" and op.inputs[1] in stored:
            shape = local_shape(tensors[op.inputs[1]].shape, placed_op.inputs[1], sizes)
            experts = parse(op.labels).inputs[1][0] == (EXPERT,)
            name = op.name.removeprefix(f"{op.block}.")
            elements[placed_op.stage, name] = prod(shape[1:] if experts else shape)
    bytes_by_stage: Counter[int] = Counter()
    for (stage, _), number in elements.items():
        bytes_by_stage[stage] += 2 * number
    return bytes_by_stage


def _read_elements(plan: Plan, placed: tuple[PlacedOp, ...]) -> Iterator[tuple[int, str, int, int]]:
    """Yield stage, name, elements on a rank and ranks that hold the same, for every parameter."""
    sizes = plan.mesh.sizes
    roles = axis_roles(plan, plan.graph)
    replicas = [axis for axis, axis_role in enumerate(roles) if axis_role & {"dp", "cp"}]
    tensor = [axis for axis, axis_role in enumerate(roles) if "tp" in axis_role]
    logits = _logits_names(plan.graph)
    for op in plan.graph.ops:
        logits.update(op.inputs if op.kind == "add" and logits.intersection(op.outputs) else ())
    source: dict[str, str] = {}
    read: dict[tuple[int, str], tuple[int, int]] = {}  # elements, and ranks that hold them
    for placed_op in placed:
        if placed_op.op.kind == "variable":
            source[placed_op.op.outputs[0]] = placed_op.op.outputs[0]
        elif placed_op.op.kind in ON_THE_WAY and placed_op.op.inputs[0] in source:
            source[placed_op.op.outputs[0]] = source[placed_op.op.inputs[0]]
        elif placed_op.op.phase is Phase.FORWARD:
            for name, sbp in zip(placed_op.op.inputs, placed_op.inputs, strict=True):
                if name in source and (placed_op.stage, source[name]) not in read:
                    ranks = 1
                    for axis in replicas:
                        ranks *= 1 if sbp[axis].is_split else sizes[axis]
                    shape = plan.graph.tensors_by_name[name].shape
                    elements = local_size(shape, sbp, sizes)
                    if placed_op.op.kind == "embedding":
                        for axis in tensor:
                            elements //= 1 if sbp[axis].is_split else sizes[axis]
                    elif _on_all_ranks(placed_op.op, plan.graph, logits):
                        for axis in tensor:
                            elements *= sizes[axis] if sbp[axis].is_split else 1
                    read[placed_op.stage, source[name]] = elements, ranks
    for (stage, variable), (elements, ranks) in read.items():
        yield stage, variable, elements, ranks


def _on_all_ranks(op: Op, graph: Graph, logits: set[str]) -> bool:
    """True if tensor parallel ranks have all of what an op reads, whatever the plan splits.

    They do of positions, and of what a head does before its logits (`BertLMHead` and `Pooler`,
    megatron/core/models/bert, read 2026-11).
    """
    head = op.block == graph.blocks[-1] and op.kind == "matmul"
    return op.block == graph.blocks[0] or (head and not logits.intersection(op.outputs))


def _kept_factors(graph: Graph, habit: MemoryHabit) -> dict[str, float]:
    """Factors on the bytes that ops keep of what they make, by name; logits are counted apart.

    The gradient of a table is made when no activations are left, so that it is in no peak.
    """
    logits, times = _logits_names(graph), dict(habit.framework.byte_multiples)
    factors: dict[str, float] = {}
    again = {_end(op, times) for op in graph.ops if op.phase is Phase.RECOMPUTE}
    for op in graph.ops:
        if op.phase in (Phase.FORWARD, Phase.RECOMPUTE):
            end = _end(op, times)
            if op.kind in times:
                factors[op.name] = times[op.kind]
            # What ends a block that is computed again is its checkpoint: nothing is kept beside it.
            elif end and (op.phase is Phase.RECOMPUTE or end not in again):
                factors[op.name] = factors[f"{op.name}{BOXED}"] = times[end]
            if logits.intersection(op.outputs):
                factors[op.name] = 0.0
        elif op.phase is Phase.BACKWARD_WEIGHT and habit.framework.placeholders:
            factors[op.name] = 0.0
    if habit.unread:
        factors |= _unread_factors(graph)
    return factors


def _end(op: Op, ends: Iterable[str]) -> str:
    """End of an op's name that is among some, or nothing; if computed again, of what it repeats."""
    name = op.name.removesuffix(f".{Phase.RECOMPUTE.value}")
    return next((end for end in ends if f".{name}".endswith(f".{end}")), "")


def _unread_factors(graph: Graph) -> dict[str, float]:
    """Factors of the sums that read the last product of blocks with an odd number of them."""
    recomputed = {op.block for op in graph.ops if op.phase is Phase.RECOMPUTE}
    forward = [op for op in graph.ops if op.phase is Phase.FORWARD and op.block in recomputed]
    products: dict[str, list[str]] = {}
    for op in forward:
        if op.kind == "matmul":
            products.setdefault(op.block, []).append(op.outputs[0])
    last = {every[-1] for every in products.values() if len(every) % 2}
    return {op.name: 2.0 for op in forward if last.intersection(op.inputs)}


def _logits_names(graph: Graph) -> set[str]:
    """Names of the logits of 2 bytes, which losses read."""
    tensors = graph.tensors_by_name
    return {
        op.inputs[0]
        for op in graph.ops
        if op.kind == "cross_entropy" and ITEMSIZE[tensors[op.inputs[0]].dtype] == 2
    }


def _logits(plan: Plan, placed: tuple[PlacedOp, ...]) -> defaultdict[int, list[int]]:
    """Elements of a microbatch's logits of every head on each stage, where they are of 2 bytes."""
    elements_by_stage: defaultdict[int, list[int]] = defaultdict(list)
    for placed_op in placed:
        if placed_op.op.kind == "cross_entropy" and placed_op.op.phase is Phase.FORWARD:
            logits = plan.graph.tensors_by_name[placed_op.op.inputs[0]]
            if ITEMSIZE[logits.dtype] == 2:
                elements_by_stage[placed_op.stage].append(
                    local_size(logits.shape, placed_op.inputs[0], plan.mesh.sizes)
                )
    return elements_by_stage


def _loss_bytes(heads: Sequence[int], framework: FrameworkMemory) -> int:
    """Bytes at the peak of the losses of heads, each with so many logits."""
    waiting = framework.loss_bytes
    if framework.softmax_bytes is not None:
        waiting = min(waiting, framework.softmax_bytes)
    return waiting * sum(heads) + (framework.loss_bytes - waiting) * max(heads, default=0)
