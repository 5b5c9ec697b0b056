"""Calls of views, slices and joins."""

from typing import Any

from millrace.models.importers.torch_export import views
from millrace.models.importers.torch_export.algebra import narrowed
from millrace.models.importers.torch_export.draft import Array
from millrace.models.importers.torch_export.program_reader import (
    Arguments,
    Handler,
    ProgramReader,
    UnsupportedCallError,
)

_END = 2**62  # a slice's end beyond any dim


def _same(reader: ProgramReader, a: Arguments) -> Array:
    dtype = a.get("dtype")
    if dtype is not None and not dtype.is_floating_point and not a["self"].tensor.integer:
        raise UnsupportedCallError(f"it turns numbers into {dtype}")
    if dtype is not None and dtype.is_floating_point and a["self"].tensor.integer:
        raise UnsupportedCallError("it turns ids into numbers")
    return _array(a["self"])


def _array(value: Any) -> Array:
    assert isinstance(value, Array)
    return value


def _detach(reader: ProgramReader, a: Arguments) -> Array:
    array = _array(a["self"])
    if array.tensor.trained:
        raise UnsupportedCallError("it stops a gradient, which a graph cannot")
    return array


def _shape(value: Any, array: Array) -> list[int]:
    shape = [int(size) for size in value]
    if -1 in shape:
        rest = 1
        for size in shape:
            rest *= size if size != -1 else 1
        total = 1
        for size in array.shape:
            total *= size
        shape[shape.index(-1)] = total // rest
    return shape


def _view(reader: ProgramReader, a: Arguments) -> Array:
    array = _array(a["self"])
    return views.viewed(reader.draft, array, _shape(a.get("size", a.get("shape")), array))


def _flatten(reader: ProgramReader, a: Arguments) -> Array:
    array = _array(a["self"])
    rank = len(array.dims)
    start, end = a["start_dim"] % rank, a["end_dim"] % rank
    merged = tuple(axis for group in array.dims[start : end + 1] for axis in group)
    return Array(array.tensor, (*array.dims[:start], merged, *array.dims[end + 1 :]))


def _unflatten(reader: ProgramReader, a: Arguments) -> Array:
    array = _array(a["self"])
    dim = a["dim"] % len(array.dims)
    shape = array.shape
    sizes = [int(size) for size in a["sizes"]]
    new_shape = [*shape[:dim], *sizes, *shape[dim + 1 :]]
    return views.viewed(reader.draft, array, _shape(new_shape, array))


def _permute(reader: ProgramReader, a: Arguments) -> Array:
    array = _array(a["self"])
    return views.permuted(array, [dim % len(array.dims) for dim in a["dims"]])


def _transpose(reader: ProgramReader, a: Arguments) -> Array:
    return views.swapped(_array(a["self"]), a["dim0"], a["dim1"])


def _swapaxes(reader: ProgramReader, a: Arguments) -> Array:
    return views.swapped(_array(a["self"]), a["axis0"], a["axis1"])


def _t(reader: ProgramReader, a: Arguments) -> Array:
    array = _array(a["self"])
    return array if len(array.dims) < 2 else views.swapped(array, -2, -1)


def _movedim(reader: ProgramReader, a: Arguments) -> Array:
    array = _array(a["self"])
    rank = len(array.dims)
    places = [
        [x % rank for x in (a[key] if isinstance(a[key], list) else [a[key]])]
        for key in ("source", "destination")
    ]
    order = [dim for dim in range(rank) if dim not in places[0]]
    for to, of in sorted(zip(places[1], places[0], strict=True)):
        order.insert(to, of)
    return views.permuted(array, order)


def _unsqueeze(reader: ProgramReader, a: Arguments) -> Array:
    return views.unsqueezed(_array(a["self"]), a["dim"])


def _squeeze(reader: ProgramReader, a: Arguments) -> Array:
    dim = a.get("dim")
    dims = dim if dim is None or isinstance(dim, list) else [dim]
    return views.squeezed(reader.draft, _array(a["self"]), dims)


def _expand(reader: ProgramReader, a: Arguments) -> Array:
    return views.expanded(_array(a["self"]), [int(size) for size in a["size"]])


def _expand_as(reader: ProgramReader, a: Arguments) -> Array:
    return views.expanded(_array(a["self"]), a["other"].shape)


def _repeat(reader: ProgramReader, a: Arguments) -> Array:
    return views.repeated(_array(a["self"]), [int(count) for count in a["repeats"]])


def _repeat_interleave(reader: ProgramReader, a: Arguments) -> Array:
    if a["dim"] is None or not isinstance(a["repeats"], int):
        raise UnsupportedCallError("its repetitions differ from place to place")
    return views.interleaved(_array(a["self"]), a["repeats"], a["dim"])


def _slice(reader: ProgramReader, a: Arguments) -> Array:
    start, end = a["start"] or 0, _END if a["end"] is None else a["end"]
    return views.strided(reader.draft, _array(a["self"]), a["dim"], start, end, a["step"])


def _narrow(reader: ProgramReader, a: Arguments) -> Array:
    return narrowed(reader.draft, _array(a["self"]), a["dim"], int(a["start"]), int(a["length"]))


def _select(reader: ProgramReader, a: Arguments) -> Array:
    return views.selected(reader.draft, _array(a["self"]), a["dim"], int(a["index"]))


def _pieces(reader: ProgramReader, array: Array, dim: int, sizes: list[int]) -> list[Array]:
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    return [
        narrowed(reader.draft, array, dim, start, size)
        for start, size in zip(starts, sizes, strict=True)
    ]


def _split(reader: ProgramReader, a: Arguments) -> list[Array]:
    array, dim = _array(a["self"]), a["dim"]
    sizes = a.get("split_size", a.get("split_sizes"))
    if isinstance(sizes, int):
        total = array.shape[dim % len(array.dims)]
        sizes = [min(sizes, total - start) for start in range(0, total, sizes)]
    return _pieces(reader, array, dim, [int(size) for size in sizes])


def _chunk(reader: ProgramReader, a: Arguments) -> list[Array]:
    array, dim = _array(a["self"]), a["dim"]
    total = array.shape[dim % len(array.dims)]
    size = -(-total // a["chunks"])
    return _pieces(
        reader, array, dim, [min(size, total - start) for start in range(0, total, size)]
    )


def _unbind(reader: ProgramReader, a: Arguments) -> list[Array]:
    array = _array(a["self"])
    count = array.shape[a["dim"] % len(array.dims)]
    return [views.selected(reader.draft, array, a["dim"], index) for index in range(count)]


def _getitem(reader: ProgramReader, a: Arguments) -> Any:
    return a["arg0"][a["arg1"]]


def _cat(reader: ProgramReader, a: Arguments) -> Array:
    parts = [x for x in a["tensors"] if 0 not in x.shape]
    arrays = [reader.array(part) for part in parts]
    return arrays[0] if len(arrays) == 1 else views.joined(reader.draft, arrays, a["dim"])


def _pad(reader: ProgramReader, a: Arguments) -> Array:
    array, amounts = _array(a["self"]), [int(x) for x in a["pad"]]
    if a.get("mode", "constant") != "constant" or a.get("value"):
        raise UnsupportedCallError("it pads with something else than zeros")
    if min(amounts) < 0:
        raise UnsupportedCallError("it pads by less than nothing")
    for index in range(len(amounts) // 2):
        before, after = amounts[2 * index : 2 * index + 2]
        if before or after:
            array = views.padded(reader.draft, array, len(array.dims) - 1 - index, before, after)
    return array


def _roll(reader: ProgramReader, a: Arguments) -> Array:
    array = _array(a["self"])
    if len(a["dims"]) != len(a["shifts"]):
        raise UnsupportedCallError("it rolls across dims")
    for dim, shift in zip(a["dims"], a["shifts"], strict=True):
        size = array.shape[dim]
        start = -int(shift) % size
        if start:
            parts = [
                narrowed(reader.draft, array, dim, start, size - start),
                narrowed(reader.draft, array, dim, 0, start),
            ]
            array = views.joined(reader.draft, parts, dim)
    return array


def _pixel_shuffle(reader: ProgramReader, a: Arguments) -> Array:
    array, factor = _array(a["self"]), int(a["upscale_factor"])
    batch, channels, rows, columns = array.shape
    out_channels = channels // factor**2
    apart = views.viewed(reader.draft, array, (batch, out_channels, factor, factor, rows, columns))
    turned = views.permuted(apart, (0, 1, 4, 2, 5, 3))
    return views.viewed(
        reader.draft, turned, (batch, out_channels, rows * factor, columns * factor)
    )


def _stack(reader: ProgramReader, a: Arguments) -> Array:
    arrays = [reader.array(part) for part in a["tensors"]]
    arrays = [views.unsqueezed(array, a["dim"]) for array in arrays]
    return views.joined(reader.draft, arrays, a["dim"])


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(
        ("to", "_to_copy", "alias", "contiguous", "clone", "type_as", "lift_fresh_copy"), _same
    ),
    **dict.fromkeys(("view", "reshape", "_unsafe_view"), _view),
    **dict.fromkeys(("t", "numpy_T", "mT", "matrix_H", "adjoint"), _t),
    **dict.fromkeys(("cat", "concat", "concatenate"), _cat),
    **dict.fromkeys(("split", "split_with_sizes"), _split),
    **dict.fromkeys(("detach", "detach_"), _detach),
    "flatten": _flatten,
    "unflatten": _unflatten,
    "permute": _permute,
    "transpose": _transpose,
    "swapaxes": _swapaxes,
    "movedim": _movedim,
    "unsqueeze": _unsqueeze,
    "squeeze": _squeeze,
    "expand": _expand,
    "expand_as": _expand_as,
    "repeat": _repeat,
    "repeat_interleave": _repeat_interleave,
    "slice": _slice,
    "narrow": _narrow,
    "select": _select,
    "chunk": _chunk,
    "unbind": _unbind,
    "getitem": _getitem,
    "stack": _stack,
    "roll": _roll,
    "pixel_shuffle": _pixel_shuffle,
    "pad": _pad,
    "constant_pad_nd": _pad,
}
