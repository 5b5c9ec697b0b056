"""Every legal signature of an op, one by one: what the search's arrays are compared with."""

from collections.abc import Mapping, Sequence
from itertools import product

from millrace.models.graph import Op, Tensor
from millrace.models.ops import op_kind
from millrace.planner.errors import PlanError
from millrace.planner.sbp import NdSbp, local_shape
from millrace.planner.signatures import Allowed, AxisSignature, Signature, axis_signatures, joined


def op_signatures(
    op: Op,
    tensors: Mapping[str, Tensor],
    axis_sizes: Sequence[int],
    *,
    values: frozenset[str] = frozenset(),
    unsplittable: Mapping[str, frozenset[str]] | None = None,
    allowed: Allowed | None = None,
) -> tuple[Signature, ...]:
    """Every legal signature of an op on a mesh, in a fixed order, all-B first.

    Parameters
    ----------
    op : Op
    tensors : mapping
        The graph's tensors by name: shapes and dtypes.
    axis_sizes : sequence of int
    values : frozenset of str, optional
        Tensors that hold a variable's value (`variable_values`): these are partial only as the
        summand of a jointly linear op, where zeros elsewhere complete them; multiplying by a
        partial weight would repeat the whole product on every device.
    unsplittable : mapping, optional
        Labels per op kind that may not be split.
    allowed : callable, optional
        A filter per axis.
    """
    per_axis: list[list[AxisSignature]] = []
    barred = (unsplittable or {}).get(op.kind, frozenset())
    ids = [i for i, name in enumerate(op.inputs) if tensors[name].dtype.startswith("int")]
    if op_kind(op.kind).linear != "joint" or op.outputs[0] in values:
        ids += [i for i, name in enumerate(op.inputs) if name in values]
    base = axis_signatures(op.kind, op.labels, ids, barred)
    for axis in range(len(axis_sizes)):
        per_axis.append([s for s in base if allowed is None or allowed(op, axis, s)])
    shapes = [tensors[name].shape for name in (*op.inputs, *op.outputs)]
    signatures: dict[tuple[tuple[NdSbp, ...], str], Signature] = {}
    for choice in product(*per_axis):
        signature = joined(choice, len(op.inputs), len(op.outputs))
        if signature and _divides(signature, shapes, tuple(axis_sizes)):
            signatures.setdefault(
                ((*signature.inputs, *signature.outputs), signature.expansion), signature
            )
    return tuple(signatures.values())


def _divides(
    signature: Signature, shapes: Sequence[tuple[int, ...]], axis_sizes: tuple[int, ...]
) -> bool:
    try:
        for shape, sbp in zip(shapes, (*signature.inputs, *signature.outputs), strict=True):
            local_shape(shape, sbp, axis_sizes)
    except PlanError:
        return False
    return True
