"""Views and joins: what a traced program does to dims without arithmetic."""

from collections.abc import Mapping, Sequence
from math import prod

from millrace.models.importers.torch_export.algebra import narrowed, spread, summed_axes
from millrace.models.importers.torch_export.draft import Array, Draft, Operand, Slot, Token, fresh
from millrace.models.importers.torch_export.extents import (
    Axis,
    ShapeError,
    leaves,
    paired,
    regroup,
    size_of,
)


def viewed(draft: Draft, array: Array, shape: Sequence[int]) -> Array:
    """Reshape: dims are taken apart and joined, and where they do not divide, made one first."""
    axes = [axis for group in array.dims for axis in group]
    try:
        return Array(array.tensor, tuple(regroup(axes, shape)))
    except ShapeError:
        return _merged(draft, array, shape)


def _merged(draft: Draft, array: Array, shape: Sequence[int]) -> Array:
    """Reshape by way of one dim, all but the batch."""
    dims = [group for group in array.dims if group]
    lead = dims[0] if dims and any(x.role == "b" for x in leaves(dims[0])) else ()
    if len(leaves(lead)) > 1 or (lead and shape[0] != lead[0].size):
        raise ShapeError("a view takes the batch dim apart")
    array = spread(draft, array, dims)
    rest = tuple(x for group in dims[1 if lead else 0 :] for x in leaves(group))
    one = fresh(prod(axis.size for axis in rest))
    batch = Token()
    head = [Slot(batch, lead)] if lead else []
    read = Operand(array.tensor, (*head, Slot(Token(single=True), rest)))
    token = read.slots[-1].token
    tensor = draft.make("merge", (read,), [*head, Slot(token, (one,))], ordered=True)
    groups = regroup((one,), shape[1 if lead else 0 :])
    return Array(tensor, (*((lead,) if lead else ()), *groups))


def permuted(array: Array, order: Sequence[int]) -> Array:
    """Dims in another order."""
    return Array(array.tensor, tuple(array.dims[at] for at in order))


def swapped(array: Array, first: int, second: int) -> Array:
    """Two dims exchanged."""
    order = list(range(len(array.dims)))
    order[first], order[second] = order[second], order[first]
    return permuted(array, order)


def unsqueezed(array: Array, dim: int) -> Array:
    """A new dim of size one."""
    at = dim % (len(array.dims) + 1)
    return Array(array.tensor, (*array.dims[:at], (), *array.dims[at:]))


def squeezed(draft: Draft, array: Array, dims: Sequence[int] | None) -> Array:
    """Dims of size one left out: these, or all."""
    rank = len(array.dims)
    asked = set(range(rank)) if dims is None else {dim % rank for dim in dims}
    shape = array.shape
    gone = [at for at in sorted(asked) if shape[at] == 1]
    units = [axis for at in gone for axis in leaves(array.dims[at]) if array.real(axis)]
    if any(axis.role == "b" for axis in units):
        raise ShapeError("the batch dim is squeezed away; trace with two samples or more")
    found = summed_axes(draft, array, units) if units else array
    return Array(found.tensor, tuple(g for at, g in enumerate(found.dims) if at not in gone))


def expanded(array: Array, shape: Sequence[int]) -> Array:
    """Dims of size one made long, and new ones in front."""
    new = len(shape) - len(array.dims)
    dims = ((),) * new + array.dims
    groups = []
    for group, size, want in zip(dims, ((1,) * new + array.shape), shape, strict=True):
        groups.append((fresh(want),) if size == 1 and want not in (-1, 1) else group)
    return Array(array.tensor, tuple(groups))


def repeated(array: Array, times: Sequence[int]) -> Array:
    """Dims said several times over, the repetition outside."""
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
    """Every place of a dim said several times, the repetition inside."""
    at = dim % len(array.dims)
    group = (*array.dims[at], fresh(times))
    return Array(array.tensor, (*array.dims[:at], group, *array.dims[at + 1 :]))


def strided(draft: Draft, array: Array, dim: int, start: int, end: int, step: int) -> Array:
    """A slice; one with a step takes every `step`-th place of a dim that it divides."""
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
    """One place of a dim, which goes."""
    dim %= len(array.dims)
    found = narrowed(draft, array, dim, index % array.shape[dim], 1)
    return squeezed(draft, found, (dim,))


def padded(draft: Draft, array: Array, dim: int, before: int, after: int) -> Array:
    """Zeros before and behind a dim."""
    array = spread(draft, array, (array.dims[dim],))
    group = leaves(array.dims[dim])
    made = fresh(size_of(group) + before + after)
    inside = {id(axis) for axis in group}
    token, wide = (Token(whole=True, single=True) for _ in range(2))
    slots = [Slot(Token(), (x,)) for x in array.tensor.leaves() if id(x) not in inside]
    read = Operand(array.tensor, (*slots, Slot(token, group)))
    out = [*slots, Slot(wide, (made,))]
    if len(group) == 1:  # the dim stays where it was
        at = next(i for i, x in enumerate(array.tensor.leaves()) if x is group[0])
        read = Operand(array.tensor, (*slots[:at], read.slots[-1], *slots[at:]))
        out = [*slots[:at], out[-1], *slots[at:]]
    tensor = draft.make("widen", (read,), out, attributes={"start": before})
    return Array(tensor, (*array.dims[:dim], (made,), *array.dims[dim + 1 :]))


def joined(draft: Draft, arrays: Sequence[Array], dim: int) -> Array:
    """Concatenate along a dim."""
    first = arrays[0]
    dim %= len(first.dims)
    for _ in range(2):
        for other in arrays[1:]:
            for at, (mine, yours) in enumerate(zip(first.dims, other.dims, strict=True)):
                if at != dim:
                    paired(mine, yours)
    # A dim is real in what comes out where it is in one of the parts: the others are spread.
    places = _real_places(arrays, dim)
    parts = [_with_places(draft, array, places, dim) for array in arrays]
    tokens = {place: Token() for place in places}
    made = Axis(sum(array.shape[dim] for array in parts))
    owner = parts[0]
    slots = [_slots(array, dim, tokens) for array in parts]
    have = [id(axis) for axis in owner.tensor.leaves()]
    order = sorted(
        slots[0], key=lambda at: min((have.index(id(x)) for x in slots[0][at].axes), default=0)
    )
    operands = [
        Operand(array.tensor, tuple(found[at] for at in order))
        for array, found in zip(parts, slots, strict=True)
    ]
    end = Slot(Token(whole=True, single=True), (made,))
    out = [end if at == (dim, 0) else slots[0][at] for at in order]
    dims = (*owner.dims[:dim], (made,), *owner.dims[dim + 1 :])
    return Array(draft.make("concat", operands, out, ordered=True), dims)


def _slots(
    array: Array, dim: int, tokens: Mapping[tuple[int, int], Token]
) -> dict[tuple[int, int], Slot]:
    """The slot of each place; the dim along which is joined stands once."""
    found = {
        (at, i): Slot(tokens[at, i], (axis,))
        for at, group in enumerate(array.dims)
        for i, axis in enumerate(_long(group))
        if (at, i) in tokens
    }
    end = Token(whole=True, single=True)
    return found | {(dim, 0): Slot(end, leaves(array.dims[dim]))}


def _long(group: Sequence[Axis]) -> list[Axis]:
    return [axis for axis in leaves(group) if axis.size > 1 or axis.role == "b"]


def _real_places(arrays: Sequence[Array], dim: int) -> set[tuple[int, int]]:
    return {
        (at, i)
        for array in arrays
        for at, group in enumerate(array.dims)
        if at != dim
        for i, axis in enumerate(_long(group))
        if array.real(axis)
    }


def _with_places(draft: Draft, array: Array, places: set[tuple[int, int]], dim: int) -> Array:
    wanted = [
        (axis,)
        for at, group in enumerate(array.dims)
        for i, axis in enumerate(_long(group))
        if at == dim or (at, i) in places
    ]
    return spread(draft, array, wanted)
