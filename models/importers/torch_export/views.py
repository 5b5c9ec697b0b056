"""Views and joins: what a traced program does to dims without arithmetic."""

from collections.abc import Sequence
from math import prod
from typing import Any

from millrace.models.importers.torch_export.algebra import (
    materialize_axes,
    narrowed,
    slots_along,
    summed_axes,
)
from millrace.models.importers.torch_export.draft import (
    Array,
    Draft,
    OperandSlot,
    StepOperand,
    Token,
    fresh,
    slots_of,
    tokens,
)
from millrace.models.importers.torch_export.extents import (
    ShapeError,
    TensorAxis,
    leaves,
    pair_all,
    regroup,
    size_of,
)
from millrace.models.labels import BATCH


def viewed(draft: Draft, array: Array, shape: Sequence[int]) -> Array:
    """Array in another shape.

    Dims are taken apart and joined, and where they do not divide, made one first.

    Parameters
    ----------
    draft : Draft
        Gets a `merge` (and a `broadcast`) where the dims do not divide; a view alone adds nothing.
    array : Array
        Its dims may be split, in every tensor that shares them.
    shape : sequence of int
        Lengths of the new dims, without -1; as many elements as before.

    Raises
    ------
    ShapeError
        The batch would be taken apart, or the number of elements differs.
    """
    axes = [axis for group in array.dims for axis in group]
    try:
        return Array(array.tensor, tuple(regroup(axes, shape)))
    except ShapeError:
        return _merged(draft, array, shape)


def _merged(draft: Draft, array: Array, shape: Sequence[int]) -> Array:
    """Reshape by way of one dim, all but the batch."""
    dims = [group for group in array.dims if group]
    lead = dims[:1] if dims and any(x.role == BATCH for x in leaves(dims[0])) else []
    if lead and (len(leaves(lead[0])) > 1 or shape[0] != lead[0][0].size):
        raise ShapeError("a view takes the batch dim apart")
    array = materialize_axes(draft, array, dims)
    rest = tuple(x for group in dims[len(lead) :] for x in leaves(group))
    merged_axis = fresh(prod(axis.size for axis in rest))
    labels = tokens("_* _" if lead else "_")
    read = StepOperand(array.tensor, slots_of(labels, (*lead, rest)))
    out = slots_of(labels, (*lead, (merged_axis,)))
    tensor = draft.make("merge", (read,), out, ordered=True)
    return Array(tensor, (*lead, *regroup((merged_axis,), shape[len(lead) :])))


def permuted(array: Array, order: Sequence[int]) -> Array:
    """Array with its dims in another order."""
    return Array(array.tensor, tuple(array.dims[dim] for dim in order))


def swapped(array: Array, first: int, second: int) -> Array:
    """Array with two dims exchanged."""
    order = list(range(len(array.dims)))
    order[first], order[second] = order[second], order[first]
    return permuted(array, order)


def unsqueezed(array: Array, dim: int) -> Array:
    """Array with a new dim of size one."""
    position = dim % (len(array.dims) + 1)
    return Array(array.tensor, (*array.dims[:position], (), *array.dims[position:]))


def squeezed(draft: Draft, array: Array, dims: Sequence[int] | None) -> Array:
    """Array without dims of size one: these, or all.

    Parameters
    ----------
    draft : Draft
        Gets a `sum` over axes of size one that the tensor really has.
    array : Array
        As the program sees it.
    dims : sequence of int or None
        Indexes, counted from the end if below zero; one whose size is not one stays. None: all.

    Raises
    ------
    ShapeError
        The batch would go: the program was traced with a single sample.
    """
    rank = len(array.dims)
    asked = set(range(rank)) if dims is None else {dim % rank for dim in dims}
    shape = array.shape
    gone = [position for position in sorted(asked) if shape[position] == 1]
    units = [axis for position in gone for axis in leaves(array.dims[position]) if array.real(axis)]
    if any(axis.role == BATCH for axis in units):
        raise ShapeError("the batch dim is squeezed away; trace with two samples or more")
    summed = summed_axes(draft, array, units) if units else array
    return Array(
        summed.tensor, tuple(g for position, g in enumerate(summed.dims) if position not in gone)
    )


def expanded(array: Array, shape: Sequence[int]) -> Array:
    """Array whose dims of size one are made long, with new ones in front.

    Parameters
    ----------
    array : Array
        Of this rank or a lower one.
    shape : sequence of int
        Lengths of the new dims; -1 leaves one as it is.
    """
    new = len(shape) - len(array.dims)
    dims = ((),) * new + array.dims
    groups = []
    for group, size, want in zip(dims, ((1,) * new + array.shape), shape, strict=True):
        groups.append((fresh(want),) if size == 1 and want not in (-1, 1) else group)
    return Array(array.tensor, tuple(groups))


def repeated(array: Array, times: Sequence[int]) -> Array:
    """Array with its dims said several times over, the repetition outside."""
    new = len(times) - len(array.dims)
    dims = ((),) * new + array.dims
    return Array(
        array.tensor,
        tuple(
            (fresh(count), *group) if count > 1 else group
            for group, count in zip(dims, times, strict=True)
        ),
    )


def interleaved(array: Array, times: int, dim: int) -> Array:
    """Array with every place of a dim said several times, the repetition inside."""
    position = dim % len(array.dims)
    group = (*array.dims[position], fresh(times))
    return Array(array.tensor, (*array.dims[:position], group, *array.dims[position + 1 :]))


def strided(draft: Draft, array: Array, dim: int, start: int, end: int, step: int) -> Array:
    """Slice of an array; with a step, every `step`-th place of a dim that it divides."""
    dim %= len(array.dims)
    size = array.shape[dim]
    start = min(max(start + size if start < 0 else start, 0), size)
    end = min(max(end + size if end < 0 else end, start), size)
    if step == 1:
        return narrowed(draft, array, dim, start, end - start)
    if size % step or start >= step or (end - start + step - 1) // step != size // step:
        raise ShapeError(f"a slice takes every {step}th of {size} places from {start} to {end}")
    shape = array.shape
    apart = viewed(draft, array, (*shape[:dim], size // step, step, *shape[dim + 1 :]))
    return selected(draft, apart, dim + 1, start)


def selected(draft: Draft, array: Array, dim: int, index: int) -> Array:
    """Array at one place of a dim, which goes.

    Parameters
    ----------
    draft : Draft
        Gets a `narrow`, and a `sum` over the dim of size one, where they are needed.
    array : Array
        Of one dim more than the result.
    dim : int
        Index as the program sees dims, counted from the end if below zero.
    index : int
        Place along it, counted from the end if below zero.

    Raises
    ------
    ShapeError
        The dim is the batch, and the tensor has it.
    """
    dim %= len(array.dims)
    piece = narrowed(draft, array, dim, index % array.shape[dim], 1)
    return squeezed(draft, piece, (dim,))


def padded(draft: Draft, array: Array, dim: int, before: int, after: int) -> Array:
    """Array with zeros before and behind a dim."""
    array = materialize_axes(draft, array, (array.dims[dim],))
    group = leaves(array.dims[dim])
    padded_axis = fresh(size_of(group) + before + after)
    token, wide = tokens("_! _!")
    *slots, inside = slots_along(array, group, token)
    place = len(slots)
    if len(group) == 1:  # the dim stays where it was
        place = next(i for i, x in enumerate(array.tensor.leaves()) if x is group[0])
    read, out = (
        (*slots[:place], slot, *slots[place:])
        for slot in (inside, OperandSlot(wide, (padded_axis,)))
    )
    tensor = draft.make(
        "widen", (StepOperand(array.tensor, read),), out, attributes={"start": before}
    )
    return Array(tensor, (*array.dims[:dim], (padded_axis,), *array.dims[dim + 1 :]))


def joined(draft: Draft, arrays: Sequence[Array], dim: int) -> Array:
    """Arrays one behind the other along a dim.

    Parameters
    ----------
    draft : Draft
        Gets the `concat`, and a `broadcast` of each array that is the same where others differ.
    arrays : sequence of Array
        One or more, in order, of one rank and, but for `dim`, of one shape.
    dim : int
        Index of the dim, counted from the end if below zero.

    Raises
    ------
    ShapeError
        Other dims differ in size or are taken apart in two ways, or samples would meet.
    """
    first = arrays[0]
    dim %= len(first.dims)
    others = (zip(first.dims, other.dims, strict=True) for other in arrays[1:])
    pair_all([pair for dims in others for place, pair in enumerate(dims) if place != dim])
    # A dim is real in what comes out where it is in one of the parts: the others are spread.
    rows = [_long_axes(array, dim) for array in arrays]
    labels = {
        place: Token()
        for array, row in zip(arrays, rows, strict=True)
        for place, axis in row.items()
        if array.real(axis)
    }
    parts, slots = [], []
    for array, row in zip(arrays, rows, strict=True):
        real = {place: (axis,) for place, axis in row.items() if place in labels}
        parts.append(materialize_axes(draft, array, (array.dims[dim], *real.values())))
        end = OperandSlot(Token(is_whole=True, single=True), leaves(array.dims[dim]))
        slots.append({x: OperandSlot(labels[x], axes) for x, axes in real.items()} | {dim: end})
    joined_axis = TensorAxis(sum(array.shape[dim] for array in parts))
    have = list(parts[0].tensor.leaves())
    order = sorted(
        slots[0],
        key=lambda place: min((have.index(x) for x in slots[0][place].axes), default=0),
    )
    operands = [
        StepOperand(part.tensor, tuple(row[place] for place in order))
        for part, row in zip(parts, slots, strict=True)
    ]
    end = OperandSlot(Token(is_whole=True, single=True), (joined_axis,))
    out = [end if place == dim else slots[0][place] for place in order]
    dims = (*first.dims[:dim], (joined_axis,), *first.dims[dim + 1 :])
    return Array(draft.make("concat", operands, out, ordered=True), dims)


def _long_axes(array: Array, dim: int) -> dict[Any, TensorAxis]:
    """Leaf axes of the dims but one, without those of size one, by their places."""
    return {
        (place, index): axis
        for place, group in enumerate(array.dims)
        if place != dim
        for index, axis in enumerate(x for x in leaves(group) if x.size > 1 or x.role == BATCH)
    }
