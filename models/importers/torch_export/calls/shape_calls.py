"""Calls of views, slices and joins."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from millrace.models.importers.torch_export import views
from millrace.models.importers.torch_export.algebra import narrowed
from millrace.models.importers.torch_export.draft import Array, Draft
from millrace.models.importers.torch_export.program_reader import (
    Arguments,
    Handler,
    ProgramReader,
    UnsupportedCallError,
)

_END = 2**62  # a slice's end beyond any dim


def _of_array(rule: Callable[[Draft, Array, Arguments], Any]) -> Handler:
    """Handler of a call whose `self` is an array."""

    def draft(reader: ProgramReader, a: Arguments) -> Any:
        array = a["self"]
        assert isinstance(array, Array)
        return rule(reader.draft, array, a)

    return draft


def _same(draft: Draft, array: Array, a: Arguments) -> Array:
    dtype = a.get("dtype")
    if dtype is not None and not dtype.is_floating_point and not array.tensor.integer:
        raise UnsupportedCallError(f"it turns numbers into {dtype}")
    if dtype is not None and dtype.is_floating_point and array.tensor.integer:
        raise UnsupportedCallError("it turns ids into numbers")
    return array


def _detach(draft: Draft, array: Array, a: Arguments) -> Array:
    if array.tensor.trained:
        raise UnsupportedCallError("it stops a gradient, which a graph cannot")
    return array


def _viewed(draft: Draft, array: Array, sizes: Sequence[Any]) -> Array:
    """View in a shape of which one size may be -1: what is left over."""
    shape = [int(size) for size in sizes]
    if -1 in shape:
        shape[shape.index(-1)] = prod(array.shape) // -prod(shape)
    return views.viewed(draft, array, shape)


def _flatten(draft: Draft, array: Array, a: Arguments) -> Array:
    rank = len(array.dims)
    start, end = a["start_dim"] % rank, a["end_dim"] % rank
    merged = tuple(axis for group in array.dims[start : end + 1] for axis in group)
    return Array(array.tensor, (*array.dims[:start], merged, *array.dims[end + 1 :]))


def _unflatten(draft: Draft, array: Array, a: Arguments) -> Array:
    dim, shape = a["dim"] % len(array.dims), array.shape
    return _viewed(draft, array, (*shape[:dim], *a["sizes"], *shape[dim + 1 :]))


def _movedim(draft: Draft, array: Array, a: Arguments) -> Array:
    rank = len(array.dims)
    places = [
        [x % rank for x in (a[key] if isinstance(a[key], list) else [a[key]])]
        for key in ("source", "destination")
    ]
    order = [dim for dim in range(rank) if dim not in places[0]]
    for to, of in sorted(zip(places[1], places[0], strict=True)):
        order.insert(to, of)
    return views.permuted(array, order)


def _squeeze(draft: Draft, array: Array, a: Arguments) -> Array:
    dim = a.get("dim")
    return views.squeezed(draft, array, dim if dim is None or isinstance(dim, list) else [dim])


def _repeat_interleave(draft: Draft, array: Array, a: Arguments) -> Array:
    if a["dim"] is None or not isinstance(a["repeats"], int):
        raise UnsupportedCallError("its repetitions differ from place to place")
    return views.interleaved(array, a["repeats"], a["dim"])


def _slice(draft: Draft, array: Array, a: Arguments) -> Array:
    end = _END if a["end"] is None else a["end"]
    return views.strided(draft, array, a["dim"], a["start"] or 0, end, a["step"])


def _pieces(draft: Draft, array: Array, dim: int, sizes: int | Sequence[int]) -> list[Array]:
    """Pieces of a dim, of these sizes or (but for the last) of this one."""
    total = array.shape[dim % len(array.dims)]
    if isinstance(sizes, int):
        sizes = [min(sizes, total - start) for start in range(0, total, sizes)]
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    pieces = zip(starts, sizes, strict=True)
    return [narrowed(draft, array, dim, int(start), int(size)) for start, size in pieces]


def _chunk(draft: Draft, array: Array, a: Arguments) -> list[Array]:
    total = array.shape[a["dim"] % len(array.dims)]
    return _pieces(draft, array, a["dim"], -(-total // a["chunks"]))


def _unbind(draft: Draft, array: Array, a: Arguments) -> list[Array]:
    count = array.shape[a["dim"] % len(array.dims)]
    return [views.selected(draft, array, a["dim"], index) for index in range(count)]


def _pad(draft: Draft, array: Array, a: Arguments) -> Array:
    amounts = [int(x) for x in a["pad"]]
    if a.get("mode", "constant") != "constant" or a.get("value"):
        raise UnsupportedCallError("it pads with something else than zeros")
    if min(amounts) < 0:
        raise UnsupportedCallError("it pads by less than nothing")
    for index in range(len(amounts) // 2):
        before, after = amounts[2 * index : 2 * index + 2]
        if before or after:
            array = views.padded(draft, array, len(array.dims) - 1 - index, before, after)
    return array


def _roll(draft: Draft, array: Array, a: Arguments) -> Array:
    if len(a["dims"]) != len(a["shifts"]):
        raise UnsupportedCallError("it rolls across dims")
    for dim, shift in zip(a["dims"], a["shifts"], strict=True):
        size = array.shape[dim]
        start = -int(shift) % size
        if start:
            places = ((start, size - start), (0, start))
            array = views.joined(draft, [narrowed(draft, array, dim, *x) for x in places], dim)
    return array


def _pixel_shuffle(draft: Draft, array: Array, a: Arguments) -> Array:
    factor = int(a["upscale_factor"])
    batch, channels, rows, columns = array.shape
    apart = (batch, channels // factor**2, factor, factor, rows, columns)
    turned = views.permuted(views.viewed(draft, array, apart), (0, 1, 4, 2, 5, 3))
    return views.viewed(draft, turned, (*apart[:2], rows * factor, columns * factor))


def _cat(reader: ProgramReader, a: Arguments) -> Array:
    arrays = [reader.array(part) for part in a["tensors"] if 0 not in part.shape]
    return arrays[0] if len(arrays) == 1 else views.joined(reader.draft, arrays, a["dim"])


def _stack(reader: ProgramReader, a: Arguments) -> Array:
    arrays = [views.unsqueezed(reader.array(part), a["dim"]) for part in a["tensors"]]
    return views.joined(reader.draft, arrays, a["dim"])


# Name of a call to what it makes of a draft, the array `self` and the other arguments.
_OF_ARRAY: dict[str, Callable[[Draft, Array, Arguments], Any]] = {
    **dict.fromkeys(
        ("to", "_to_copy", "alias", "contiguous", "clone", "type_as", "lift_fresh_copy"), _same
    ),
    **dict.fromkeys(
        ("view", "reshape", "_unsafe_view"),
        lambda draft, x, a: _viewed(draft, x, a.get("size", a.get("shape"))),
    ),
    **dict.fromkeys(
        ("t", "numpy_T", "mT", "matrix_H", "adjoint"),
        lambda draft, x, a: x if len(x.dims) < 2 else views.swapped(x, -2, -1),
    ),
    **dict.fromkeys(
        ("split", "split_with_sizes"),
        lambda draft, x, a: _pieces(draft, x, a["dim"], a.get("split_size", a.get("split_sizes"))),
    ),
    **dict.fromkeys(("detach", "detach_"), _detach),
    **dict.fromkeys(("pad", "constant_pad_nd"), _pad),
    "flatten": _flatten,
    "unflatten": _unflatten,
    "permute": lambda draft, x, a: views.permuted(x, a["dims"]),
    "transpose": lambda draft, x, a: views.swapped(x, a["dim0"], a["dim1"]),
    "swapaxes": lambda draft, x, a: views.swapped(x, a["axis0"], a["axis1"]),
    "movedim": _movedim,
    "unsqueeze": lambda draft, x, a: views.unsqueezed(x, a["dim"]),
    "squeeze": _squeeze,
    "expand": lambda draft, x, a: views.expanded(x, [int(size) for size in a["size"]]),
    "expand_as": lambda draft, x, a: views.expanded(x, a["other"].shape),
    "repeat": lambda draft, x, a: views.repeated(x, [int(count) for count in a["repeats"]]),
    "repeat_interleave": _repeat_interleave,
    "slice": _slice,
    "narrow": lambda draft, x, a: narrowed(draft, x, a["dim"], int(a["start"]), int(a["length"])),
    "select": lambda draft, x, a: views.selected(draft, x, a["dim"], int(a["index"])),
    "chunk": _chunk,
    "unbind": _unbind,
    "roll": _roll,
    "pixel_shuffle": _pixel_shuffle,
}
HANDLERS: dict[str, Handler] = {
    **{name: _of_array(rule) for name, rule in _OF_ARRAY.items()},
    **dict.fromkeys(("cat", "concat", "concatenate"), _cat),
    "getitem": lambda reader, a: a["arg0"][a["arg1"]],
    "stack": _stack,
}
