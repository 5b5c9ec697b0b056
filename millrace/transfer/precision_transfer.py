"""Precision transfer: a plan's layouts, and those of the ops that another precision adds.

Most ops are there in every precision, by the same name, and keep their signatures. Casts to 16 bits
and quantisations to 8 are added or fall away. An added op lies as its inputs come to it, so that
what travels afterwards is of the narrower kind; where it cannot (it takes no partial sums), as its
first reader wants it.
"""

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from millrace.models.builder import PRECISIONS
from millrace.models.graph import Graph, Op
from millrace.models.spec import GRAPH
from millrace.planner.errors import InfeasibleError, PlanError
from millrace.planner.plan import OpSignature, Plan
from millrace.planner.sbp import NdSbp, parse_nd_sbp
from millrace.planner.signatures import AxisSignature, axis_signatures, joined

# Signatures of a variant, by the names of ops without the block's.
Signatures = dict[str, OpSignature]


def in_precision(plan: Plan, precision: str) -> Plan:
    """The plan with its model in another precision.

    Parameters
    ----------
    plan : Plan
        Its mesh, stages and schedule stay, and so do the layouts of all ops that both have.
    precision : str
        fp64, fp32, tf32, bf16, fp16, fp8, mxfp8, mxfp4 or nvfp4.

    Returns
    -------
    Plan
        Without figures and evidence; the plan itself where it has that precision.

    Raises
    ------
    PlanError
        There is no such precision.
    InfeasibleError
        The model was imported with its dtypes, or an added op fits none of the layouts around it.
    """
    if precision == plan.model.precision:
        return plan
    if precision not in PRECISIONS:
        raise PlanError(
            f"--precision {precision}: there is no such precision; choose one of "
            f"{', '.join(PRECISIONS)}"
        )
    imported = plan.model.family == GRAPH
    if imported and PRECISIONS[precision] != PRECISIONS[plan.model.precision]:
        raise InfeasibleError(
            f"--precision {precision}: the plan holds `{plan.model.name}` as it was imported in "
            f"{plan.model.precision}; import and plan it anew with `millrace plan FILE --precision "
            f"{precision}`"
        )
    changed = replace(
        plan, model=replace(plan.model, precision=precision), evidence=None, figures={}
    )
    graph = changed.graph
    signatures = _signatures(changed, graph)
    variants = tuple(
        replace(variant, signatures=signatures.get(index, {}))
        for index, variant in enumerate(plan.variants)
    )
    return replace(changed, variants=variants)


def _signatures(plan: Plan, graph: Graph) -> dict[int, Signatures]:
    """Signatures of every variant, for the ops of another graph than the one it was made for."""
    variant_of = {choice.block: choice.variant for chunk in plan.chunks for choice in chunk.blocks}
    layouts: dict[str, NdSbp] = {}  # of tensors, as their ops write them
    signatures: dict[int, Signatures] = {}
    for op in graph.ops:
        variant = variant_of.get(op.block)
        if variant is None:  # an op of every stage, which no variant lays out
            continue
        name = op.name.removeprefix(f"{op.block}.")
        filled = signatures.setdefault(variant, {})
        if name not in filled:
            planned = plan.variants[variant].signatures.get(name)
            filled[name] = planned or _added(plan, graph, op, layouts, variant_of)
        outputs = map(parse_nd_sbp, filled[name].outputs)
        layouts |= zip(op.outputs, outputs, strict=True)
    return signatures


def _added(
    plan: Plan,
    graph: Graph,
    op: Op,
    layouts: Mapping[str, NdSbp],
    variant_of: Mapping[str, int],
) -> OpSignature:
    """Signature of an op that the plan does not have."""
    axes = len(plan.mesh.axes)
    inputs = [layouts.get(name) for name in op.inputs]
    if all(sbp is not None for sbp in inputs):
        columns = [tuple(sbp[axis] for sbp in inputs if sbp is not None) for axis in range(axes)]
        signature = _matching(op, [("inputs", column) for column in columns])
        if signature is not None:
            return signature
    for wanted in _wanted(plan, graph, op, variant_of):
        signature = _matching(op, [("outputs", (wanted[axis],)) for axis in range(axes)])
        if signature is not None:
            return signature
    raise InfeasibleError(
        f"--precision {plan.model.precision}: it adds op `{op.name}` to the plan, which fits none "
        f"of the layouts around it; search for a plan with `millrace plan {plan.model.name} "
        f"--precision {plan.model.precision}`"
    )


def _wanted(plan: Plan, graph: Graph, op: Op, variant_of: Mapping[str, int]) -> Iterator[NdSbp]:
    """Yield layouts that the readers of an op's first output take, as far as the plan has them."""
    for reader in graph.ops:
        if op.outputs[0] not in reader.inputs or reader.block not in variant_of:
            continue
        name = reader.name.removeprefix(f"{reader.block}.")
        signature = plan.variants[variant_of[reader.block]].signatures.get(name)
        if signature is not None and len(signature.inputs) == len(reader.inputs):
            yield parse_nd_sbp(signature.inputs[reader.inputs.index(op.outputs[0])])


def _matching(op: Op, columns: Sequence[tuple[str, Sequence[object]]]) -> OpSignature | None:
    """Signature whose operands begin so on each mesh axis; None where the op has none."""
    choice: list[AxisSignature] = []
    for side, sbps in columns:
        match = next(
            (
                signature
                for signature in axis_signatures(op.kind, op.labels)
                if getattr(signature, side)[: len(sbps)] == tuple(sbps)
            ),
            None,
        )
        if match is None:
            return None
        choice.append(match)
    signature = joined(tuple(choice), len(op.inputs), len(op.outputs))
    return None if signature is None else signature.document
