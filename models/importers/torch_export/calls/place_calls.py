"""Calls that read or write listed places of a dim: what writes through views become."""

from collections.abc import Sequence
from math import prod
from typing import Any

from millrace.models.importers.torch_export import views
from millrace.models.importers.torch_export.algebra import narrowed
from millrace.models.importers.torch_export.calls.elementwise_calls import where
from millrace.models.importers.torch_export.calls.mixture_calls import chosen_weights
from millrace.models.importers.torch_export.calls.product_calls import embedding
from millrace.models.importers.torch_export.draft import Array
from millrace.models.importers.torch_export.program_reader import (
    Arguments,
    Handler,
    ProgramReader,
    UnsupportedCallError,
)
from millrace.models.labels import BATCH

_PIECES_MAX = 64  # joined to one tensor; a graph of more is no longer read by anyone


def _fill(reader: ProgramReader, a: Arguments) -> Any:
    """Value spread over the shape of what is overwritten."""
    import torch

    value, shape = a["value"], a["self"].shape
    if isinstance(value, Array):
        return views.expanded(value, shape)
    number = reader.number(value)
    kinds = (int, bool) if not hasattr(value, "dtype") else ()
    dtype = None if isinstance(value, kinds) or number is None else torch.float32
    dtype = value.dtype if hasattr(value, "dtype") else dtype
    return torch.full(shape, value.item() if hasattr(value, "item") else value, dtype=dtype)


def _copy(reader: ProgramReader, a: Arguments) -> Any:
    """Values in the shape of what is overwritten."""
    given, target = a["src"], a["self"]
    if not isinstance(given, Array):
        return given.expand(target.shape)
    if given.tensor.integer != _integer(target):
        raise UnsupportedCallError("it turns ids into numbers, or numbers into ids")
    return views.expanded(given, target.shape)


def _integer(value: Any) -> bool:
    if isinstance(value, Array):
        return value.tensor.integer
    return not value.dtype.is_floating_point


def _slice_scatter(reader: ProgramReader, a: Arguments) -> Array:
    base, given = reader.array(a["self"]), reader.array(a["src"])
    dim, size = a["dim"] % len(base.dims), base.shape[a["dim"]]
    start, end = (
        min(max(bound + size if bound < 0 else bound, 0), size)
        for bound in (a["start"] or 0, size if a["end"] is None else a["end"])
    )
    return _written(reader, base, given, dim, (start, max(end, start), a["step"]))


def _select_scatter(reader: ProgramReader, a: Arguments) -> Array:
    base, given = reader.array(a["self"]), reader.array(a["src"])
    dim = a["dim"] % len(base.dims)
    start = int(a["index"]) % base.shape[dim]
    given = views.unsqueezed(given, dim)
    return _written(reader, base, given, dim, (start, start + 1, 1))


def _written(
    reader: ProgramReader, base: Array, given: Array, dim: int, places: tuple[int, int, int]
) -> Array:
    """Array `base` with other values at the places (start, end, step) of a dim."""
    start, end, step = places
    shape = base.shape
    if base.tensor.integer != given.tensor.integer:
        raise UnsupportedCallError("it turns ids into numbers, or numbers into ids")
    if start >= end:
        return base
    if any(axis.role == BATCH for axis in (*base.dims[dim], *given.dims[dim])):
        if (start, end, step) == (0, shape[dim], 1):
            return given
        raise UnsupportedCallError("it writes into some of the samples")
    if step > 1:
        if shape[dim] % step or start >= step or given.shape[dim] != shape[dim] // step:
            raise UnsupportedCallError(f"it writes every {step}th of {shape[dim]} places")
        apart = (*shape[:dim], shape[dim] // step, step, *shape[dim + 1 :])
        base = views.viewed(reader.draft, base, apart)
        given = views.unsqueezed(given, dim + 1)
        written = _written(reader, base, given, dim + 1, (start, start + 1, 1))
        return views.viewed(reader.draft, written, shape)
    parts = [given]
    if start:
        parts.insert(0, narrowed(reader.draft, base, dim, 0, start))
    if end < shape[dim]:
        parts.append(narrowed(reader.draft, base, dim, end, shape[dim] - end))
    return parts[0] if len(parts) == 1 else views.joined(reader.draft, parts, dim)


def _index_put(reader: ProgramReader, a: Arguments) -> Array:
    """Constants at constant places; other writes have no counterpart in a graph."""
    import torch

    base, indices, given = a["self"], a["indices"], a["values"]
    if all(index is not None and not isinstance(index, Array) for index in indices) and not any(
        index.numel() if index.dtype is not torch.bool else index.any() for index in indices
    ):
        return reader.array(base)
    if len(indices) == 1 and isinstance(indices[0], Array) and not a["accumulate"]:
        mask, number = indices[0], reader.number(given)
        if not mask.tensor.integer and mask.shape == tuple(base.shape) and number is not None:
            return where(reader, {"condition": mask, "self": number, "other": base})
    if any(isinstance(operand, Array) for operand in (*indices, given)) or a["accumulate"]:
        raise UnsupportedCallError("what is written, or where, depends on the inputs")
    places = tuple(slice(None) if index is None else index for index in indices)
    mask = torch.zeros(base.shape, dtype=torch.bool)
    values = torch.zeros(base.shape, dtype=given.dtype)
    mask[places], values[places] = True, given
    return where(reader, {"condition": mask, "self": values, "other": base})


def _index(reader: ProgramReader, a: Arguments) -> Array:
    """Rows of a table by ids, or listed places of a dim (of several that follow each other)."""
    table, indices = a["self"], a["indices"]
    dim = next(i for i, index in enumerate(indices) if index is not None)
    listed = [index for index in indices[dim:] if index is not None]
    data = any(isinstance(index, Array) for index in listed)
    chosen = chosen_weights(reader, table, listed[0]) if len(indices) == 1 else None
    if chosen is not None:
        return chosen
    if len(indices) == 1 and isinstance(table, Array) and len(table.dims) == 2:
        sample = any(axis.role == BATCH for axis in table.tensor.leaves())
        ids = listed[0]
        are_ids = ids.tensor.integer if isinstance(ids, Array) else ids.dtype.itemsize > 1
        if are_ids and not sample:
            return embedding(reader, {"weight": table, "indices": ids})
    if data or not isinstance(table, Array) or len(listed) != len(indices) - dim:
        raise UnsupportedCallError("expected rows of a table by ids, or constant places of a dim")
    return _gathered_places(reader, table, dim, listed)


def _gathered_places(
    reader: ProgramReader, table: Array, dim: int, indices: Sequence[Any]
) -> Array:
    """Listed places of dims from `dim` on, which become the dims of the list."""
    import torch

    if len(indices) == 1 and indices[0].dtype is torch.bool:
        indices = indices[0].nonzero(as_tuple=True)
    shape, count = table.shape, len(indices)
    if any(axis.role == BATCH for group in table.dims[dim : dim + count] for axis in group):
        raise UnsupportedCallError("it chooses among samples")
    sizes = shape[dim : dim + count]
    indices = torch.broadcast_tensors(*indices)
    strides = [prod(sizes[i + 1 :]) for i in range(count)]
    places = torch.stack(
        [index % size * stride for index, size, stride in zip(indices, sizes, strides, strict=True)]
    ).sum(0)
    flat = places.reshape(-1).tolist()
    array = table
    if count > 1:
        array = views.viewed(
            reader.draft, array, (*shape[:dim], prod(sizes), *shape[dim + count :])
        )
    runs = _runs(flat)
    if len(runs) > _PIECES_MAX or not runs:
        raise UnsupportedCallError(
            f"it takes {len(runs)} pieces of a dim; {_PIECES_MAX} can be joined"
        )
    parts = [narrowed(reader.draft, array, dim, start, size) for start, size in runs]
    taken = parts[0] if len(parts) == 1 else views.joined(reader.draft, parts, dim)
    wanted = (*shape[:dim], *places.shape, *shape[dim + count :])
    return taken if taken.shape == wanted else views.viewed(reader.draft, taken, wanted)


def _runs(places: Sequence[int]) -> list[tuple[int, int]]:
    """Longest runs of places that follow each other, as (start, size)."""
    runs: list[tuple[int, int]] = []
    for place in places:
        if runs and place == sum(runs[-1]):
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((place, 1))
    return runs


def _index_select(reader: ProgramReader, a: Arguments) -> Array:
    before = [None] * (a["dim"] % len(a["self"].shape))
    return _index(reader, {"self": a["self"], "indices": [*before, a["index"]]})


HANDLERS: dict[str, Handler] = {
    "fill": _fill,
    "copy": _copy,
    "slice_scatter": _slice_scatter,
    "select_scatter": _select_scatter,
    "index_put": _index_put,
    "index": _index,
    "index_select": _index_select,
}
