"""Placement: which stage runs each op of the training graph, and with which signature."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from millrace.models.graph import GLOBAL_BLOCK, Graph, Op
from millrace.planner.errors import InfeasibleError, PlanError
from millrace.planner.plan import OpSignature, Plan, check_blocks, signature_of
from millrace.planner.sbp import BROADCAST, NdSbp, local_shape, parse_nd_sbp
from millrace.planner.signatures import EXTRA
from millrace.planner.wording import one_of


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedOp:
    """One op on one stage; `chunk` counts the chunks of the stage."""

    op: Op
    stage: int
    chunk: int
    inputs: tuple[NdSbp, ...]
    outputs: tuple[NdSbp, ...]
    expansion: str = ""


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
    check_blocks(plan, graph)
    homes: dict[str, tuple[int, int, int]] = {}
    on_stage = [0] * plan.stages
    for chunk in plan.chunks:
        for choice in chunk.blocks:
            homes[choice.block] = (chunk.stage, on_stage[chunk.stage], choice.variant)
        on_stage[chunk.stage] += 1
    placed: list[PlacedOp] = []
    sizes = plan.mesh.sizes
    shapes = {name: tensor.shape for name, tensor in graph.tensors_by_name.items()}
    for op in graph.ops:
        if op.block == GLOBAL_BLOCK:
            placed.extend(_everywhere(op, plan))
            continue
        stage, chunk_index, variant = homes[op.block]
        signature = signature_of(plan, variant, op)
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
        now = (one.stage, one.chunk, one.op.phase.is_backward)
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
    known = [extra.name for extra in EXTRA.get(op.kind, ())]
    if signature.expansion and signature.expansion not in known:
        raise PlanError(
            f"plan: op `{op.name}` has no extra signature `{signature.expansion}`; there is "
            f"{one_of(known) if known else 'none'}"
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
