"""The table itself, and what follows from a row and the shapes: FLOPs, bytes and kept state."""

from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

from millrace.models.errors import ModelError
from millrace.models.graph import Graph, Phase
from millrace.models.labels import Shape, bind, parse
from millrace.models.ops import (
    arithmetic_ops,
    expert_ops,
    layer_ops,
    pointwise_ops,
    recurrence_ops,
    sparse_ops,
    stream_ops,
    structure_ops,
)
from millrace.models.ops.kind import Attributes, OpKind
from millrace.models.ops.windows import window_fractions

OPS: dict[str, OpKind] = {
    kind.name: kind
    for rows in (
        structure_ops.ROWS,
        arithmetic_ops.ROWS,
        pointwise_ops.ROWS,
        layer_ops.ROWS,
        recurrence_ops.ROWS,
        sparse_ops.ROWS,
        stream_ops.ROWS,
        expert_ops.ROWS,
    )
    for kind in rows
}


class OpWork(NamedTuple):
    """Cost of one firing of an op: FLOPs, and bytes read and written."""

    flops: int
    bytes: int


def op_kind(name: str) -> OpKind:
    """Return the row called `name`; raises ModelError naming the kinds there are."""
    try:
        return OPS[name]
    except KeyError:
        raise ModelError(f"there is no op kind `{name}`; the kinds are {', '.join(OPS)}") from None


def kinds_where(holds: Callable[[OpKind], object]) -> tuple[str, ...]:
    """Names of the kinds whose rows satisfy a condition, in the order of the table.

    Examples
    --------
    >>> kinds_where(lambda row: row.updates)
    ('adamw', 'sgd', 'muon')
    """
    return tuple(row.name for row in OPS.values() if holds(row))


def state_of(kind: str, attributes: Attributes) -> tuple[str, ...]:
    """Names of the tensors, like the first input, that an op keeps from step to step.

    Parameters
    ----------
    kind
        Of the op, as `op_kind` knows it.
    attributes
        Of the op: SGD keeps a velocity where its `momentum` is not 0.
    """
    if kind == "sgd" and not attributes.get("momentum"):
        return ()
    return op_kind(kind).state


def op_flops(
    kind: str,
    labels: str,
    input_shapes: Sequence[Shape],
    output_shapes: Sequence[Shape],
    *,
    attributes: Attributes | None = None,
    op: str = "",
) -> int:
    """FLOPs of one firing: two per point of every product that the kind's row lists, or its own.

    Attention counts in full, causal or not; a convolution by its outputs.

    Parameters
    ----------
    kind
        Of the op.
    labels
        Its dims, `b s i, i o -> b s o` (`millrace.models.labels`).
    input_shapes, output_shapes
        Those of one device, or of the whole tensors.
    attributes
        Of the op, where its kind counts FLOPs by them.
    op
        Name of the op, for errors.

    Raises
    ------
    ModelError
        The kind is unknown or the shapes do not fit the labels.
    """
    row = op_kind(kind)
    if not row.multiplies:
        return 0
    expression = parse(labels)
    sizes = bind(expression, input_shapes, output_shapes, op=op)
    total = 0 if row.flops is None else int(row.flops(labels, attributes or {}, sizes))
    for pair in row.products:
        points = {
            label for position in pair for dim in expression.operands[position] for label in dim
        }
        total += 2 * prod(sizes[label] for label in points)
    return total


def op_work(
    kind: str,
    labels: str,
    attributes: Attributes,
    input_shapes: Sequence[Shape],
    output_shapes: Sequence[Shape],
    input_itemsizes: Sequence[int],
    output_itemsizes: Sequence[int],
) -> OpWork:
    """FLOPs (`op_flops`) and bytes of one firing on these (one device's) shapes.

    Bytes are everything read and written once: kept state and an output that is added to count
    both ways.

    Parameters
    ----------
    kind, labels, input_shapes, output_shapes
        As for `op_flops`.
    attributes
        Of the op, as for `state_of`.
    input_itemsizes, output_itemsizes
        Bytes of one element of each input and output.

    Raises
    ------
    ModelError
        The kind is unknown or the shapes do not fit the labels.
    """
    row = op_kind(kind)
    flops = op_flops(kind, labels, input_shapes, output_shapes, attributes=attributes)
    outputs = [
        prod(shape) * item for shape, item in zip(output_shapes, output_itemsizes, strict=True)
    ]
    moved = sum(outputs)
    for index, (shape, item) in enumerate(zip(input_shapes, input_itemsizes, strict=True)):
        size = prod(shape)
        moved += item * (min(size, prod(output_shapes[0])) if index in row.gathered else size)
    if row.reads_output:
        moved += outputs[0]
    if states := state_of(kind, attributes):
        like = outputs[0] if row.updates else prod(input_shapes[0]) * input_itemsizes[0]
        moved += 2 * len(states) * like
    return OpWork(flops, moved)


def model_flops(graph: Graph) -> int:
    """FLOPs of one microbatch: matrix products, convolutions and full attention.

    Forward and backward; of a forward graph only the forward. Nothing is counted twice for
    recomputation. Within a window, attention is that to the keys of the window
    (`millrace.models.ops.windows`).
    """
    uncounted = (Phase.BEGIN, Phase.UPDATE, Phase.RECOMPUTE)
    tensors = graph.tensors_by_name
    shares = window_fractions(graph, OPS)
    total = 0
    flops_by_key: dict[object, int] = {}  # ops of equal blocks are equal
    for op in graph.ops:
        if op.phase in uncounted or not op_kind(op.kind).products:
            continue
        inputs = tuple(tensors[name].shape for name in op.inputs)
        outputs = tuple(tensors[name].shape for name in op.outputs)
        key = op.kind, op.labels, inputs, outputs
        if key not in flops_by_key:
            flops_by_key[key] = op_flops(*key, op=op.name)
        total += int(flops_by_key[key] * shares.get(op.name, 1))
    return total
