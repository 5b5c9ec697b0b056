"""Placement: which stage runs each op of the training graph, and with which signature."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from millrace.models.graph import GLOBAL_BLOCK, Graph, Op, Phase
from millrace.planner.errors import InfeasibleError, PlanError
from millrace.planner.plan import FUSIONS, OFFLOADS, OpSignature, Plan
from millrace.planner.sbp import BROADCAST, NdSbp, local_shape, parse_nd_sbp
from millrace.planner.schedules import SCHEDULES

BACKWARD = (Phase.RECOMPUTE, Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedOp:
    """One op on one stage; `chunk` counts the chunks of the stage."""

    op: Op
    stage: int
    chunk: int
    inputs: tuple[NdSbp, ...]
    outputs: tuple[NdSbp, ...]
    expansion: str = ""


def check_plan(plan: Plan) -> None:
    """Raise unless the plan's numbers agree with one another.

    Raises
    ------
    PlanError
        Something is malformed: a size below one, an unknown schedule or variant, blocks missing.
    InfeasibleError
        The sizes are well formed but do not divide, or the cluster has too few devices.
    """
    for name in ("global_batch", "microbatches", "stages", "interleave"):
        if getattr(plan, name) < 1:
            raise PlanError(f"plan: `{name}` is {getattr(plan, name)}, expected at least 1")
    for axis in plan.mesh.axes:
        if axis.size < 1:
            raise PlanError(f"plan: mesh axis `{axis.name}` has size {axis.size}")
    if len(set(plan.mesh.names)) != len(plan.mesh.names):
        raise PlanError(f"plan: mesh axes {plan.mesh.names} are not all different")
    if plan.offload not in OFFLOADS:
        raise PlanError(f"plan: offload is `{plan.offload}`; one of {', '.join(OFFLOADS)}")
    if plan.fusion not in FUSIONS:
        raise PlanError(f"plan: fusion is `{plan.fusion}`; one of {', '.join(FUSIONS)}")
    if plan.schedule not in SCHEDULES:
        raise PlanError(f"plan: unknown schedule `{plan.schedule}`; one of {', '.join(SCHEDULES)}")
    if plan.global_batch % plan.microbatches:
        raise InfeasibleError(
            f"plan: global_batch {plan.global_batch} does not divide into {plan.microbatches} "
            f"microbatches"
        )
    if plan.ranks > plan.cluster.devices:
        raise InfeasibleError(
            f"plan: {plan.stages} stages of {plan.mesh.devices} devices need {plan.ranks} devices, "
            f"`{plan.cluster.name}` has {plan.cluster.devices}"
        )
    for number, chunk in enumerate(plan.chunks):
        if not 0 <= chunk.stage < plan.stages:
            raise PlanError(f"plan: chunk {number} lies on stage {chunk.stage} of {plan.stages}")
        for choice in chunk.blocks:
            if not 0 <= choice.variant < len(plan.variants):
                raise PlanError(f"plan: block `{choice.block}` names variant {choice.variant}")
    if missing := sorted(set(range(plan.stages)) - {chunk.stage for chunk in plan.chunks}):
        raise PlanError(f"plan: stage {missing[0]} holds no chunk")


def place(plan: Plan, graph: Graph) -> tuple[PlacedOp, ...]:
    """Give every op of the training graph its stage, chunk and nd-SBPs, in the graph's order.

    Ops of the global block come once per stage. SBPs on axes of size one are written B. Only sums
    of gradients that ranks add up first come later, after the ops of the next block: a device that
    works off its queue in order would wait for each such sum of ranks.

    Raises
    ------
    PlanError
        A block has no place or no signature, or a signature does not fit its op.
    InfeasibleError
        A shard does not divide.
    """
    homes: dict[str, tuple[int, int, int]] = {}
    on_stage = [0] * plan.stages
    for chunk in plan.chunks:
        for choice in chunk.blocks:
            if choice.block in homes:
                raise PlanError(f"plan: block `{choice.block}` is placed twice")
            homes[choice.block] = (chunk.stage, on_stage[chunk.stage], choice.variant)
        on_stage[chunk.stage] += 1
    if unknown := sorted(set(homes) - set(graph.blocks)):
        raise PlanError(f"plan: `{plan.model.name}` has no block `{unknown[0]}`")
    if missing := [block for block in graph.blocks if block not in homes]:
        raise PlanError(f"plan: block `{missing[0]}` is placed on no stage")
    placed: list[PlacedOp] = []
    sizes = plan.mesh.sizes
    shapes = {name: tensor.shape for name, tensor in graph.tensors_by_name.items()}
    for op in graph.ops:
        if op.block == GLOBAL_BLOCK:
            placed.extend(_everywhere(op, plan))
            continue
        stage, chunk_index, variant = homes[op.block]
        signatures = plan.variants[variant].signatures
        signature = signatures.get(op.name.removeprefix(op.block + "."))
        if signature is None:
            raise PlanError(f"plan: variant {variant} has no signature for op `{op.name}`")
        inputs, outputs = _read(op, signature, sizes, shapes)
        placed.append(
            PlacedOp(
                op=op,
                stage=stage,
                chunk=chunk_index,
                inputs=inputs,
                outputs=outputs,
                expansion=signature.expansion,
            )
        )
    return tuple(_with_late_sums(placed))


def _with_late_sums(placed: Iterable[PlacedOp]) -> Iterator[PlacedOp]:
    """The same ops, sums of what ranks have to add up first after the next block's."""
    made: dict[str, NdSbp] = {}
    held: list[PlacedOp] = []
    part, block = (0, 0, False), ""
    for one in placed:
        now = (one.stage, one.chunk, one.op.phase in BACKWARD)
        if now != part or one.op.block != block:
            stays = [late for late in held if now == part and late.op.block == block]
            yield from (late for late in held if late not in stays)
            held, part, block = stays, now, one.op.block
        made.update(zip(one.op.outputs, one.outputs, strict=True))
        if one.op.kind == "accumulate" and made.get(one.op.inputs[0]) != one.inputs[0]:
            held.append(one)
        else:
            yield one
    yield from held


def _everywhere(op: Op, plan: Plan) -> list[PlacedOp]:
    whole = (BROADCAST,) * len(plan.mesh.axes)
    inputs, outputs = (whole,) * len(op.inputs), (whole,) * len(op.outputs)
    return [
        PlacedOp(op=op, stage=stage, chunk=0, inputs=inputs, outputs=outputs)
        for stage in range(plan.stages)
    ]


def _read(
    op: Op, signature: OpSignature, sizes: tuple[int, ...], shapes: dict[str, tuple[int, ...]]
) -> tuple[tuple[NdSbp, ...], tuple[NdSbp, ...]]:
    """Parse one op's signature and check it against the op and its tensors."""
    if len(signature.inputs) != len(op.inputs) or len(signature.outputs) != len(op.outputs):
        raise PlanError(
            f"plan: op `{op.name}` has {len(op.inputs)} inputs and {len(op.outputs)} outputs, its "
            f"signature {len(signature.inputs)} and {len(signature.outputs)}"
        )
    found: list[NdSbp] = []
    for name, text in zip(
        (*op.inputs, *op.outputs), (*signature.inputs, *signature.outputs), strict=True
    ):
        try:
            found.append(_on_mesh(text, shapes[name], sizes))
        except InfeasibleError as error:
            raise InfeasibleError(f"plan: op `{op.name}`, tensor `{name}`: {error}") from None
        except PlanError as error:
            raise PlanError(f"plan: op `{op.name}`: {error}") from None
    return tuple(found[: len(op.inputs)]), tuple(found[len(op.inputs) :])


@lru_cache(maxsize=65536)
def _on_mesh(text: str, shape: tuple[int, ...], sizes: tuple[int, ...]) -> NdSbp:
    """The SBP of one operand, checked against its shape; axes of size one say B."""
    sbp = parse_nd_sbp(text)
    if len(sbp) != len(sizes):
        raise PlanError(f"{text} on a mesh of {len(sizes)} axes")
    try:
        local_shape(shape, sbp, sizes)
    except PlanError as error:
        raise InfeasibleError(str(error)) from None
    return tuple(one if n > 1 else BROADCAST for one, n in zip(sbp, sizes, strict=True))
