"""Layout of a plan's repeated block: how tensors lie on the mesh, and collectives between them."""

from dataclasses import dataclass

from millrace.drawing import repeated_template
from millrace.models.graph import Graph, Op, Phase
from millrace.planner.boxing import boxing_path
from millrace.planner.collectives import LOCAL_BOXING
from millrace.planner.plan import Plan, Variant
from millrace.planner.sbp import parse_nd_sbp

THROUGH = ("repeat", "cast")  # ops behind which a weight is still that weight


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRow:
    """One forward op of a block.

    `activation`, `weight` and `output` are SBPs by mesh axis, empty where there is no such tensor;
    `stored` is how the weight lies between steps. `moves` says which collectives lead to its
    inputs: `all_gather over tp`.
    """

    op: str
    kind: str
    activation: tuple[str, ...]
    stored: tuple[str, ...]
    weight: tuple[str, ...]
    output: tuple[str, ...]
    moves: tuple[str, ...]


def layout_rows(plan: Plan) -> tuple[str, tuple[LayoutRow, ...]]:
    """Name of a block of the template that most are of, and its forward ops.

    Parameters
    ----------
    plan : Plan
        Its graph is built where it is not yet.
    """
    template = repeated_template(plan)
    block, variant = next(
        (choice.block, plan.variants[choice.variant])
        for chunk in plan.chunks
        for choice in chunk.blocks
        if plan.variants[choice.variant].template == template
    )
    graph = plan.graph
    makers = {output: op for op in graph.ops if op.block == block for output in op.outputs}
    ops = [
        op
        for op in graph.ops
        if op.block == block and op.phase is Phase.FORWARD and op.kind not in ("variable", *THROUGH)
    ]
    rows = [_row(plan, graph, variant, op, makers) for op in ops]
    return block, tuple(row for row in rows if row is not None)


def _row(
    plan: Plan, graph: Graph, variant: Variant, op: Op, makers: dict[str, Op]
) -> LayoutRow | None:
    signature = variant.signatures.get(_short(op))
    if signature is None:
        return None
    activation: tuple[str, ...] = ()
    stored: tuple[str, ...] = ()
    weight: tuple[str, ...] = ()
    moves: list[str] = []
    for name, text in zip(op.inputs, signature.inputs, strict=True):
        maker = makers.get(name)
        if variable := _variable(name, makers):
            if not weight:
                weight = _axes(text)
                stored = _axes(variant.signatures[_short(variable)].outputs[0])
        elif not activation:
            activation = _axes(text)
        if maker is not None and maker.kind not in ("variable", *THROUGH):
            output_sbp = variant.signatures[_short(maker)].outputs[maker.outputs.index(name)]
            moves += _crossings(plan, graph, name, output_sbp, text)
    if expansion := signature.expansion:
        moves.append(f"inside: {expansion}")
    return LayoutRow(
        op=_short(op),
        kind=op.kind,
        activation=activation,
        stored=stored,
        weight=weight,
        output=_axes(signature.outputs[0]) if signature.outputs else (),
        moves=tuple(dict.fromkeys(moves)),
    )


def _short(op: Op) -> str:
    return op.name.removeprefix(f"{op.block}.")


def _axes(text: str) -> tuple[str, ...]:
    return tuple(map(str, parse_nd_sbp(text)))


def _variable(name: str, makers: dict[str, Op]) -> Op | None:
    """Variable that a tensor is, perhaps cast or repeated."""
    maker = makers.get(name)
    while maker is not None and maker.kind in THROUGH and maker.inputs:
        maker = makers.get(maker.inputs[0])
    return maker if maker is not None and maker.kind == "variable" else None


def _crossings(plan: Plan, graph: Graph, name: str, before: str, after: str) -> list[str]:
    """Collectives that take a tensor from one SBP to another, with the axes they span."""
    if before == after:
        return []
    shape = graph.tensor(name).shape
    path = boxing_path(parse_nd_sbp(before), parse_nd_sbp(after), plan.mesh.sizes, shape)
    names = plan.mesh.names
    return [
        f"{step.kind} over {' × '.join(names[axis] for axis in step.axes)}"
        for step in path
        if step.kind not in LOCAL_BOXING
    ]
