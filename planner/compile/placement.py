"""Placement: which stage runs each op of the training graph, and with which signature."""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

from millrace.models.graph import GLOBAL_BLOCK, Graph, Op
from millrace.planner.costs.bucket_sizes import padded_ops
from millrace.planner.errors import InfeasibleError, PlanError
from millrace.planner.formatting import one_of
from millrace.planner.plan import OpSignature, Plan, check_blocks, signature_of
from millrace.planner.sbp import BROADCAST, NdSbp, local_shape, padded_shape, parse_nd_sbp
from millrace.planner.signatures import EXTRA

Operands = tuple[tuple[NdSbp, ...], tuple[NdSbp, ...], str]  # as `PlacedOp` ends


class PlacedOp(NamedTuple):
    """One op on one stage; `chunk` counts the chunks of the stage."""

    op: Op
    stage: int
    chunk: int
    inputs: tuple[NdSbp, ...]
    outputs: tuple[NdSbp, ...]
    expansion: str = ""


def place(plan: Plan, graph: Graph) -> tuple[PlacedOp, ...]:
    """Ops of the training graph with stage, chunk and nd-SBPs each, in the graph's order.

    Ops of the global block come once per stage. SBPs on axes of size one are written B. Only sums
    of gradients that ranks add up first come later, after the ops of the next block: a device that
    works off its queue in order would wait for each such sum of ranks.

    Parameters
    ----------
    plan : Plan
        Its chunks say where each block lies and which variant gives its signatures.
    graph : Graph
        The plan's training graph, or a part of it of which `plan` places every block.

    Raises
    ------
    PlanError
        A block has no place, several or no signature, or a signature does not fit its op.
    InfeasibleError
        A shard does not divide, or a dim that is split does not exist.
    """
    check_blocks(plan, graph)
    homes: dict[str, tuple[int, int, int]] = {}
    on_stage = [0] * plan.stages
    for chunk in plan.chunks:
        for choice in chunk.blocks:
            homes[choice.block] = (chunk.stage, on_stage[chunk.stage], choice.variant)
        on_stage[chunk.stage] += 1
    placed: list[PlacedOp] = []
    sizes, padded = plan.mesh.sizes, padded_ops(graph, plan.cluster.software)
    shapes = {name: tensor.shape for name, tensor in graph.tensors_by_name.items()}
    read: dict[object, Operands] = {}  # of ops that are equal in equal blocks
    for op in graph.ops:
        if op.block == GLOBAL_BLOCK:
            placed.extend(_everywhere(op, plan))
            continue
        stage, chunk_index, variant = homes[op.block]
        inner = op.name.removeprefix(f"{op.block}.")
        operands = tuple([shapes[name] for name in op.inputs + op.outputs])
        key = (variant, inner, op.kind, len(op.inputs), operands, op.name in padded)
        if key not in read:
            signature = signature_of(plan, variant, op)
            inputs, outputs = _read(op, signature, sizes, shapes, op.name in padded)
            read[key] = inputs, outputs, signature.expansion
        placed.append(PlacedOp(op, stage, chunk_index, *read[key]))
    return tuple(_with_late_sums(placed))


def _with_late_sums(placed: Iterable[PlacedOp]) -> Iterator[PlacedOp]:
    """Ops as they come, but sums of what ranks add up first after the next block's ops."""
    sbp_of: dict[str, NdSbp] = {}
    late_sums: list[PlacedOp] = []
    part, block = (0, 0, False), ""
    for placed_op in placed:
        op = placed_op.op
        now = (placed_op.stage, placed_op.chunk, op.phase.is_backward)
        if now != part or op.block != block:
            stays: list[PlacedOp] = []
            for late in late_sums:
                if now == part and late.op.block == block:
                    stays.append(late)
                else:
                    yield late
            late_sums, part, block = stays, now, op.block
        for name, sbp in zip(op.outputs, placed_op.outputs, strict=True):
            sbp_of[name] = sbp
        if op.kind == "accumulate" and sbp_of.get(op.inputs[0]) != placed_op.inputs[0]:
            late_sums.append(placed_op)
        else:
            yield placed_op
    yield from late_sums


def _everywhere(op: Op, plan: Plan) -> list[PlacedOp]:
    broadcast = (BROADCAST,) * len(plan.mesh.axes)
    inputs, outputs = (broadcast,) * len(op.inputs), (broadcast,) * len(op.outputs)
    return [
        PlacedOp(op=op, stage=stage, chunk=0, inputs=inputs, outputs=outputs)
        for stage in range(plan.stages)
    ]


def _read(
    op: Op,
    signature: OpSignature,
    sizes: tuple[int, ...],
    shapes: dict[str, tuple[int, ...]],
    padded: bool,
) -> tuple[tuple[NdSbp, ...], tuple[NdSbp, ...]]:
    """Parse one op's signature and check it against the op and its tensors."""
    extras = [extra.name for extra in EXTRA.get(op.kind, ())]
    if signature.expansion and signature.expansion not in extras:
        raise PlanError(
            f"plan: op `{op.name}` has no extra signature `{signature.expansion}`; there is "
            f"{one_of(extras) if extras else 'none'}"
        )
    sbps: list[NdSbp] = []
    for name, text in zip(
        (*op.inputs, *op.outputs), (*signature.inputs, *signature.outputs), strict=True
    ):
        try:
            sbps.append(_on_mesh(text, shapes[name], sizes, padded))
        except InfeasibleError as error:
            raise InfeasibleError(f"plan: op `{op.name}`, tensor `{name}`: {error}") from None
        except PlanError as error:
            raise PlanError(f"plan: op `{op.name}`: {error}") from None
    return tuple(sbps[: len(op.inputs)]), tuple(sbps[len(op.inputs) :])


@lru_cache(maxsize=65536)
def _on_mesh(text: str, shape: tuple[int, ...], sizes: tuple[int, ...], padded: bool) -> NdSbp:
    """SBP of one operand, checked against its shape; axes of size one say B."""
    sbp = parse_nd_sbp(text)
    if len(sbp) != len(sizes):
        raise PlanError(f"{text} on a mesh of {len(sizes)} axes")
    try:
        (padded_shape if padded else local_shape)(shape, sbp, sizes)
    except PlanError as error:
        raise InfeasibleError(str(error)) from None
    return tuple(axis_sbp if n > 1 else BROADCAST for axis_sbp, n in zip(sbp, sizes, strict=True))
