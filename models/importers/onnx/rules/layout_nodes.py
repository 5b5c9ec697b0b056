"""Layout nodes: rules of shapes, pieces, joins, lookups and reductions."""

from dataclasses import replace
from itertools import pairwise
from math import prod

import numpy as np

from millrace.models.errors import ModelError
from millrace.models.importers.onnx.folding import axes_of, axis_of, new_shape, slices, split_sizes
from millrace.models.importers.onnx.labelling import restricted
from millrace.models.importers.onnx.lowering import OnnxLowering
from millrace.models.importers.onnx.onnx_file import OnnxNode
from millrace.models.importers.onnx.rules.fused_nodes import cut_piece
from millrace.models.importers.onnx.rules.pointwise_nodes import scaled
from millrace.models.importers.onnx.values import (
    Array,
    Dim,
    Traced,
    UnsupportedNodeError,
    common_dims,
    factors_of,
    has_batch,
    reshaped,
    size_of,
    unified,
    varying,
)


def _value(low: OnnxLowering, node: OnnxNode, index: int = 0) -> Traced:
    """Value of an input as it is, a parameter once a step."""
    input_value = low.value(node, index)
    return input_value if isinstance(input_value, Traced) else low.traced(node, index)


def identity(low: OnnxLowering, node: OnnxNode) -> Traced:
    """Return the input unchanged."""
    return _value(low, node)


def reshape(low: OnnxLowering, node: OnnxNode) -> Traced:
    """Group dims and take them apart."""
    value = _value(low, node)
    asked = [int(size) for size in np.ravel(low.constant(node, 1))]
    return seen_in(low, node, value, new_shape(node, value.shape, asked))


def seen_in(low: OnnxLowering, node: OnnxNode, value: Traced, shape: tuple[int, ...]) -> Traced:
    """See a tensor in another shape; laid out anew where its factors do not allow that."""
    try:
        return reshaped(value, shape, low.fresh)
    except UnsupportedNodeError:
        plain = _in_one_piece(low, node, value)
        return reshaped(plain, shape, low.fresh)


def _in_one_piece(low: OnnxLowering, node: OnnxNode, value: Traced) -> Traced:
    """Merge all dims behind the batch into one factor."""
    if not value.dims or has_batch(factors_of(value.dims[1:])):
        raise UnsupportedNodeError("cuts across dims that do not divide")
    first = int(has_batch(value.dims[0]))
    if first and len(value.dims[0]) > 1:
        raise UnsupportedNodeError("cuts across the batch")
    rest = factors_of(value.dims[first:])
    laid = low.laid_out(value, (*value.dims[:first], rest), low.name(node))
    merged = low.fresh(size_of(rest))
    dims = (*laid.operand[:first], (merged,))
    return replace(laid, operand=dims, dims=dims)


def flatten(low: OnnxLowering, node: OnnxNode) -> Traced:
    """See a tensor as a matrix."""
    value = _value(low, node)
    axis = node.integer("axis", 1)
    if not -len(value.dims) <= axis <= len(value.dims):
        raise ModelError(f"{node.title}: axis {axis} of a tensor of {len(value.dims)} dims")
    axis = axis if axis >= 0 else axis + len(value.dims)
    shape = value.shape
    return seen_in(low, node, value, (prod(shape[:axis]), prod(shape[axis:])))


def transpose(low: OnnxLowering, node: OnnxNode) -> Traced:
    """Permute dims."""
    value = _value(low, node)
    order = node.integers("perm") or tuple(reversed(range(len(value.dims))))
    if sorted(order) != list(range(len(value.dims))):
        raise ModelError(f"{node.title}: perm {order} of a tensor of {len(value.dims)} dims")
    return value.seen_as(value.dims[axis] for axis in order)


def unsqueeze(low: OnnxLowering, node: OnnxNode) -> Traced:
    """Add dims of size one."""
    value = _value(low, node)
    axes = axes_of(node, _axes_input(low, node))
    if axes is None:
        raise ModelError(f"{node.title} lacks its axes; the file is malformed")
    rank = len(value.dims) + len(axes)
    places = {axis_of(node, axis, rank) for axis in axes}
    remaining = iter(value.dims)
    if len(places) != len(axes):
        raise ModelError(f"{node.title} names an axis twice")
    return value.seen_as(() if axis in places else next(remaining) for axis in range(rank))


def squeeze(low: OnnxLowering, node: OnnxNode) -> Traced:
    """Take dims of size one away."""
    value = _value(low, node)
    axes = axes_of(node, _axes_input(low, node))
    if axes is None:
        axes = [axis for axis, size in enumerate(value.shape) if size == 1]
    gone = {axis_of(node, axis, len(value.dims)) for axis in axes}
    for axis in gone:
        if value.shape[axis] != 1:
            raise ModelError(f"{node.title}: dim {axis} has size {value.shape[axis]}, not 1")
        if has_batch(value.dims[axis]):
            raise UnsupportedNodeError("takes the batch away")
    return value.seen_as(dim for axis, dim in enumerate(value.dims) if axis not in gone)


def _axes_input(low: OnnxLowering, node: OnnxNode) -> tuple[Array | None, ...]:
    return (None, low.optional(node, 1))


def expand(low: OnnxLowering, node: OnnxNode) -> Traced:
    """Broadcast; the op that does it is added where it cannot be avoided."""
    value = _value(low, node)
    asked = [int(size) for size in np.ravel(low.constant(node, 1))]
    try:
        shape = np.broadcast_shapes(value.shape, asked)
    except ValueError:
        raise ModelError(f"{node.title}: {value.shape} does not fit shape {asked}") from None
    dims: list[Dim] = [()] * (len(shape) - len(value.dims)) + list(value.dims)
    return value.seen_as(
        (low.fresh(size),) if size > 1 and size_of(dim) == 1 else dim
        for size, dim in zip(shape, dims, strict=True)
    )


def tile(low: OnnxLowering, node: OnnxNode) -> Traced:
    """Repeat dims: what is repeated is broadcast along a new factor outside of the dim's own."""
    value = _value(low, node)
    repeats = [int(n) for n in np.ravel(low.constant(node, 1))]
    if len(repeats) != len(value.dims) or min(repeats, default=1) < 1:
        raise ModelError(f"{node.title}: {repeats} repeats of a tensor of {len(value.dims)} dims")
    if any(n > 1 and has_batch(dim) for n, dim in zip(repeats, value.dims, strict=True)):
        raise UnsupportedNodeError("repeats the batch")
    return value.seen_as(
        (low.fresh(n), *dim) if n > 1 else dim for n, dim in zip(repeats, value.dims, strict=True)
    )


def concat(low: OnnxLowering, node: OnnxNode) -> Traced:
    """Join tensors along one dim."""
    inputs = [low.traced(node, index) for index in range(len(node.inputs))]
    if len(inputs) == 1:
        return inputs[0]
    ranks = {len(value.dims) for value in inputs}
    if len(ranks) != 1:
        raise ModelError(f"{node.title} joins tensors of {sorted(ranks)} dims")
    (rank,) = ranks
    axis = axis_of(node, node.integer("axis"), rank)
    sizes = [low.value(node, index).shape[axis] for index in range(len(inputs))]
    columns = [[(index, dim) for index in range(len(inputs))] for dim in range(rank) if dim != axis]
    alone = [[(index, axis)] for index in range(len(inputs))]
    values = unified(inputs, [*columns, *alone], low.fresh)
    if any(has_batch(value.dims[axis]) for value in values):
        raise UnsupportedNodeError("joins along the batch")
    name = low.name(node)
    dims = list(common_dims(values, columns))
    dims.insert(axis, ())
    pieces = [
        _along(low, value, dims, axis, size, f"{name}.{index}")
        for index, (value, size) in enumerate(zip(values, sizes, strict=True))
    ]
    dims[axis] = (low.fresh(sum(size_of(piece.dims[axis]) for piece in pieces)),)
    operand = tuple(dim for dim in dims if dim)
    whole_factors = [dims[axis][0], *(piece.dims[axis][0] for piece in pieces)]
    return low.emit("concat", name, pieces, (operand,), dims=dims, whole_factors=whole_factors)


def _along(
    low: OnnxLowering, value: Traced, dims: list[Dim], axis: int, size: int, name: str
) -> Traced:
    """Lay a tensor out as seen, with one factor of its own, of this size, in dim `axis`.

    Of a constant that does not vary along it, that dim was left out.
    """
    factors = value.dims[axis]
    asked = list(dims)
    asked[axis] = factors or (low.fresh(size),)
    laid = low.laid_out(value.seen_as(asked), tuple(dim for dim in asked if dim), name)
    return one_factor(low, laid, axis)


def one_factor(low: OnnxLowering, laid: Traced, axis: int) -> Traced:
    """Give a dim that is a dim of the tensor too a single factor."""
    dim = laid.dims[axis]
    if len(dim) == 1 and dim[0].name.startswith("x"):
        return laid
    merged: Dim = (low.fresh(size_of(dim)),)

    def put(dims: tuple[Dim, ...]) -> tuple[Dim, ...]:
        return tuple(merged if seen_dim == dim else seen_dim for seen_dim in dims)

    return replace(laid, operand=put(laid.operand), dims=put(laid.dims))


def narrowed(
    low: OnnxLowering, name: str, value: Traced, axis: int, start: int, size: int
) -> Traced:
    """Return `size` entries from `start` on along one dim."""
    if size == value.shape[axis]:
        return value
    if has_batch(value.dims[axis]):
        raise UnsupportedNodeError("takes a part of the batch")
    piece = cut_piece(low, name, value, axis, start, size)
    if piece is not None:
        return piece
    laid = value
    if value.dims[axis] not in value.operand or value.operand_factors != value.seen:
        laid = low.as_seen(value, name)
    laid = one_factor(low, laid, axis)
    (old,) = laid.dims[axis]
    new = low.fresh(size)
    operand = tuple((new,) if dim == (old,) else dim for dim in laid.operand)
    dims = tuple((new,) if dim == (old,) else dim for dim in laid.dims)
    attributes = {"start": start}
    taken = low.emit(
        "narrow",
        name,
        (laid,),
        (operand,),
        dims=dims,
        whole_factors=(old, new),
        attributes=attributes,
    )
    return replace(taken, ids=value.ids)


def slice_(low: OnnxLowering, node: OnnxNode) -> Traced:
    """Take a range of steps of one along each dim named."""
    value = _value(low, node)
    bounds = [low.optional(node, index) for index in range(1, 5)]
    for axis, start, end, step in slices(node, len(value.dims), bounds):
        size = value.shape[axis]
        first, last, _ = slice(start, end, step).indices(size) if step else (0, 0, 0)
        if step != 1:
            raise UnsupportedNodeError(f"takes every {step}th entry")
        if last <= first:
            raise UnsupportedNodeError("takes nothing")
        value = narrowed(low, low.name(node), value, axis, first, last - first)
    return value


def split(low: OnnxLowering, node: OnnxNode) -> tuple[Traced, ...]:
    """Take a dim apart into pieces."""
    value = low.used(_value(low, node))
    axis = axis_of(node, node.integer("axis", 0), len(value.dims))
    sizes = split_sizes(node, value.shape[axis], low.optional(node, 1))
    if len(sizes) > 1:  # all pieces share one layout
        value = low.as_seen(value, low.name(node))
    starts = np.cumsum([0, *sizes[:-1]]).tolist()
    return tuple(
        narrowed(low, low.name(node, str(index)), value, axis, start, size)
        for index, (start, size) in enumerate(zip(starts, sizes, strict=True))
    )


def split_to_sequence(low: OnnxLowering, node: OnnxNode) -> Traced:
    """Return the input unchanged; `sequence_at` takes the pieces."""
    return low.used(_value(low, node))


def _sequence(low: OnnxLowering, node: OnnxNode, value: Traced) -> tuple[int, list[int]]:
    """Axis and sizes of the pieces of a sequence."""
    axis = axis_of(node, node.integer("axis", 0), len(value.dims))
    total, given = value.shape[axis], low.optional(node, 1)
    if given is not None and given.ndim:
        return axis, split_sizes(node, total, given, len(given))
    size = 1 if given is None else max(1, int(given))
    return axis, [min(size, total - start) for start in range(0, total, size)]


def sequence_at(low: OnnxLowering, node: OnnxNode) -> Traced:
    """Take one piece of a dim."""
    split = low.producer(node.inputs[0], "SplitToSequence")
    if split is None or not split.integer("keepdims", 1):
        raise UnsupportedNodeError("reads a sequence that is no split")
    value = low.value(node, 0)
    assert isinstance(value, Traced), "the split was lowered"
    axis, sizes = _sequence(low, split, value)
    index = axis_of(node, int(np.ravel(low.constant(node, 1))[0]), len(sizes))
    return narrowed(low, low.name(node), value, axis, sum(sizes[:index]), sizes[index])


def gather(low: OnnxLowering, node: OnnxNode) -> Traced:
    """Look rows up by ids, or take known entries along a dim."""
    table = _value(low, node)
    axis = axis_of(node, node.integer("axis", 0), len(table.dims))
    indices = low.value(node, 1)
    if isinstance(indices, Traced):
        if axis != 0 or not indices.ids:
            raise UnsupportedNodeError("looks up along another axis than the first, or by no ids")
        return _embedded(low, node, table, indices)
    entries = np.where(indices.array < 0, indices.array + table.shape[axis], indices.array)
    if not entries.size or entries.min() < 0 or entries.max() >= table.shape[axis]:
        raise ModelError(f"{node.title}: an index lies outside of the {table.shape[axis]} entries")
    varied = varying(entries)  # what does not vary is looked up once and broadcast
    flat = varied.ravel().tolist()
    name = low.name(node)
    if varied.size == max(varied.shape, default=1) and all(b - a == 1 for a, b in pairwise(flat)):
        taken = narrowed(low, name, table, axis, flat[0], len(flat))
        index_dims = [taken.dims[axis] if size > 1 else () for size in varied.shape]
        if varied.size == 1 and entries.size == 1 and entries.ndim:
            index_dims[-1] = taken.dims[axis]
        dims = [*taken.dims[:axis], *index_dims, *taken.dims[axis + 1 :]]
    else:
        ids = low.used(low.tensor(varied, f"{name}.ids"))
        first = table.seen_as((table.dims[axis], *table.dims[:axis], *table.dims[axis + 1 :]))
        taken = _embedded(low, node, first, ids)
        index_dims, rest = list(taken.dims[: varied.ndim]), taken.dims[varied.ndim :]
        dims = [*rest[:axis], *index_dims, *rest[axis:]]
    for position, (size, all_of_them) in enumerate(zip(varied.shape, entries.shape, strict=True)):
        if size < all_of_them:
            dims[axis + position] = (low.fresh(all_of_them),)
    return taken.seen_as(dims)


def _embedded(low: OnnxLowering, node: OnnxNode, table: Traced, ids: Traced) -> Traced:
    ids = low.dropped(ids)
    if not table.dims[0] or has_batch(table.operand_factors):
        raise UnsupportedNodeError("looks up rows of what is no table")
    if not ids.seen <= ids.operand_factors:
        raise UnsupportedNodeError("looks up by broadcast ids")
    rows = low.used(table)
    rows = low.as_seen(rows.renewed(low.fresh), low.name(node))
    features = rows.dims[1:]
    operand = (*ids.operand, *(dim for dim in features if dim))
    names = {rows.dims[0][0]: "v"}
    dims = (*ids.dims, *features)
    return low.emit("embedding", low.name(node), (ids, rows), (operand,), dims=dims, names=names)


def reduced(low: OnnxLowering, node: OnnxNode) -> Traced:
    """Sum (or mean) over dims."""
    value = low.floating(node, 0)
    axes = axes_of(node, _axes_input(low, node))
    if not axes:
        if node.integer("noop_with_empty_axes", 0):
            return value
        axes = list(range(len(value.dims)))
    gone = {axis_of(node, axis, len(value.dims)) for axis in axes}
    keep = bool(node.integer("keepdims", 1))
    return summed(low, node, value, gone, keep, mean=node.kind == "ReduceMean")


def summed(
    low: OnnxLowering, node: OnnxNode, value: Traced, gone: set[int], keep: bool, *, mean: bool
) -> Traced:
    """Sum over the dims `gone`, which stay with size one where `keep` says so."""
    dims = [() if axis in gone else dim for axis, dim in enumerate(value.dims)]
    left = frozenset(factors_of(dims))
    if has_batch(value.operand_factors - left):
        raise UnsupportedNodeError("reduces over the batch")
    count = prod(value.shape[axis] for axis in gone)
    repeated = prod(
        f.size for axis in gone for f in value.dims[axis] if f not in value.operand_factors
    )
    kept_dims = tuple(dim for axis, dim in enumerate(dims) if keep or axis not in gone)
    total = value.seen_as(kept_dims)
    if value.operand_factors - left:
        operand = restricted(value.operand, left)
        total = low.emit("sum", low.name(node), (value,), (operand,), dims=kept_dims)
    factor = repeated / count if mean else float(repeated)
    return scaled(low, low.name(node, "mean"), total, factor)
