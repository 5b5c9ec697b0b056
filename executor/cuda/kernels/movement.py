"""Movement of values: calls that compute none, and plain sums.

What lies in one piece is copied as bytes. Else a kernel goes through the dims of input and output
(`strides.py`), moving up to 16 bytes at once where the places of both allow it; where neighbours of
the one lie apart in the other, a tile at a time goes through shared memory.
"""

from itertools import accumulate
from math import gcd, inf, prod
from typing import NamedTuple

import numpy as np

from millrace.executor.cuda.calls import (
    BLOCK_THREADS,
    BLOCKS_MAX,
    TYPES,
    Call,
    Calls,
    Clear,
    CopyCall,
    Launch,
    Operand,
    elementwise,
    read,
    same_calls,
    table,
    write,
)
from millrace.executor.cuda.kernels.strides import Walk, contiguous, index_type, merged, strides_of
from millrace.executor.cuda.kernels.sums import Summands, sums
from millrace.executor.errors import ExecutorError
from millrace.executor.kernels.context import Array, KernelContext
from millrace.executor.kernels.dims import bind_operand_dims
from millrace.models.graph import ITEMSIZE
from millrace.models.labels import parse

SOURCE = "movement"
UNITS = {16: "Bytes16", 8: "double", 4: "float", 2: "bf16"}
"""C++ type that is moved as so many bytes, whatever they mean."""

TILES = {2: 64, 4: 32, 8: 32}
"""Rows and columns, of elements of so many bytes, that a block turns over at once."""

TILED_SIZE_MIN = 8  # dims of fewer elements fill too little of a tile


class StridedPlace(NamedTuple):
    """Place of one side of a move: its first element, and its stride for every dim in elements."""

    operand: Operand
    dtype: str
    start: int
    strides: tuple[int, ...]


class Move(NamedTuple):
    """One call and the tables that it reads."""

    call: Call
    tables: tuple[Array, ...] = ()


def move(
    actor: str, source: StridedPlace, target: StridedPlace, sizes: tuple[int, ...], number: int = 0
) -> Move:
    """Call that writes what one place holds to another, and its tables.

    Parameters
    ----------
    actor
        Its name, for messages.
    source, target
        Places that the values are at, and that they go to.
    sizes
        Sizes of the dims that are gone through, from the outermost to the innermost in the target.
    number
        Tables that the actor's calls have already.
    """
    path = merged(sizes, source.strides, target.strides)
    if source.dtype != target.dtype:
        return _strided(
            actor, path, source, target, (TYPES[source.dtype], TYPES[target.dtype]), number
        )
    width = ITEMSIZE[source.dtype]
    if path.is_flat:
        return Move(
            CopyCall(
                source.operand._replace(offset_bytes=source.start * width),
                target.operand._replace(offset_bytes=target.start * width),
                path.count * width,
            )
        )
    turned = _turned(path)
    if turned is not None:
        return _transposed(actor, path, turned, source, target, number)
    together = _unit_elements(path, source.start, target.start, width)
    return _strided(
        actor,
        _in_units(path, together),
        source._replace(start=source.start // together),
        target._replace(start=target.start // together),
        (UNITS[width * together],) * 2,
        number,
    )


def _strided(
    actor: str,
    path: Walk,
    source: StridedPlace,
    target: StridedPlace,
    units: tuple[str, str],
    number: int,
) -> Move:
    name = f"copy_strided<{', '.join(units)}, {index_type(path.count)}>"
    launch = elementwise(
        SOURCE,
        name,
        path.count,
        source.operand,
        target.operand,
        table(number),
        path.dims,
        np.int64(source.start),
        np.int64(target.start),
    )
    return Move(launch, (path.table(actor),))


def _unit_elements(path: Walk, source_start: int, target_start: int, width: int) -> int:
    """Number of neighbours that can be moved at once: a power of two, of 16 bytes at most."""
    if path.first[-1] != 1 or path.second[-1] != 1:
        return 1
    apart = (path.sizes[-1], *path.first[:-1], *path.second[:-1], source_start, target_start)
    return gcd(16 // width, *apart)


def _in_units(path: Walk, together: int) -> Walk:
    """Walk over units of so many neighbours."""
    return Walk(
        sizes=(*path.sizes[:-1], path.sizes[-1] // together),
        first=(*(step // together for step in path.first[:-1]), path.first[-1]),
        second=(*(step // together for step in path.second[:-1]), path.second[-1]),
    )


def _turned(path: Walk) -> tuple[int, int] | None:
    """Dims along which input and output lie side by side, where these are two."""
    if 1 not in path.first or 1 not in path.second:
        return None
    near, far = path.first.index(1), path.second.index(1)
    if near == far or min(path.sizes[near], path.sizes[far]) < TILED_SIZE_MIN:
        return None
    return near, far


def _transposed(
    actor: str,
    path: Walk,
    turned: tuple[int, int],
    source: StridedPlace,
    target: StridedPlace,
    number: int,
) -> Move:
    near, far = turned
    others = [axis for axis in range(len(path.sizes)) if axis not in turned]
    outer = merged(
        [path.sizes[axis] for axis in others],
        [path.first[axis] for axis in others],
        [path.second[axis] for axis in others],
    )
    rows, columns = path.sizes[far], path.sizes[near]
    width = ITEMSIZE[source.dtype]
    tile = TILES[width]
    tiles = outer.count * -(-rows // tile) * -(-columns // tile)
    launch = Launch(
        SOURCE,
        f"transpose<{UNITS[width]}, {tile}>",
        (max(1, min(tiles, BLOCKS_MAX)), 1, 1),
        (BLOCK_THREADS, 1, 1),
        (
            source.operand,
            target.operand,
            table(number),
            outer.dims,
            np.int64(source.start),
            np.int64(target.start),
            np.int64(path.first[far]),
            np.int64(path.second[near]),
            np.int64(rows),
            np.int64(columns),
            np.int64(outer.count),
        ),
    )
    return Move(launch, (outer.table(actor),))


def rearrange(context: KernelContext) -> Calls:
    """Calls that write the input's values with dims reordered, grouped, taken apart or repeated."""
    dims = bind_operand_dims(context)
    (input_dims,), (output_dims,) = dims.inputs, dims.outputs
    sizes = tuple(dims.sizes[label] for label in output_dims)
    movement = move(
        context.name,
        StridedPlace(
            read(0), context.inputs[0].dtype, 0, strides_of(output_dims, input_dims, dims.sizes)
        ),
        StridedPlace(write(0), context.outputs[0].dtype, 0, contiguous(sizes)),
        sizes,
    )
    return same_calls(movement.call, tables=movement.tables)


def sum_(context: KernelContext) -> Calls:
    """Calls of the sum over the labels that the output does not hold."""
    dims = bind_operand_dims(context)
    (input_dims,), (output_dims,) = dims.inputs, dims.outputs
    if prod(dims.sizes[label] for label in input_dims if label not in output_dims) == 1:
        return rearrange(context)
    dtype = context.inputs[0].dtype
    terms = Summands(
        function="Single", operands=(read(0),) * 2, dims=(input_dims,) * 2, dtypes=(dtype,) * 2
    )
    return sums(context.name, terms, output_dims, dims.sizes, 0, context.outputs[0].dtype)


def _differing_dim(context: KernelContext) -> int:
    """Dim whose label differs between the first input and the output (0 if none)."""
    expression = parse(context.labels)
    pairs = zip(expression.inputs[0], expression.outputs[0], strict=True)
    return next(
        (axis for axis, (label, other_label) in enumerate(pairs) if label != other_label), 0
    )


def narrow(context: KernelContext) -> Calls:
    """Calls that write a part of the input, from `start` on along the dim that differs."""
    axis = _differing_dim(context)
    (x,), (y,) = context.inputs, context.outputs
    strides = contiguous(x.shape)
    start = int(context.attributes["start"]) * strides[axis]
    movement = move(
        context.name,
        StridedPlace(read(0), x.dtype, start, strides),
        StridedPlace(write(0), y.dtype, 0, contiguous(y.shape)),
        y.shape,
    )
    return same_calls(movement.call, tables=movement.tables)


def widen(context: KernelContext) -> Calls:
    """Calls that write the input at `start`, zeros around it: the gradient of `narrow`."""
    axis = _differing_dim(context)
    (x,), (y,) = context.inputs, context.outputs
    if x.dtype != y.dtype:
        raise ExecutorError(
            f"widen keeps its dtype, found {x.dtype} and {y.dtype}: cast the input first",
            actor=context.name,
        )
    width, inner = ITEMSIZE[x.dtype], prod(x.shape[axis + 1 :])
    together = gcd(16 // width, inner)
    count = y.size // together
    return same_calls(
        elementwise(
            SOURCE,
            f"widen<{UNITS[width * together]}, {index_type(count)}>",
            count,
            read(0),
            write(0),
            np.int64(context.attributes["start"]),
            np.int64(x.shape[axis]),
            np.int64(y.shape[axis]),
            np.int64(inner // together),
        )
    )


def concat(context: KernelContext) -> Calls:
    """Calls that write two or more tensors behind each other along the dim whose labels differ."""
    axis = _differing_dim(context)
    y = context.outputs[0]
    strides = contiguous(y.shape)
    stops = list(accumulate(shard.shape[axis] for shard in context.inputs))
    calls: list[Call] = []
    tables: tuple[Array, ...] = ()
    for number, (x, stop) in enumerate(zip(context.inputs, stops, strict=True)):
        movement = move(
            context.name,
            StridedPlace(read(number), x.dtype, 0, contiguous(x.shape)),
            StridedPlace(write(0), y.dtype, (stop - x.shape[axis]) * strides[axis], strides),
            x.shape,
            len(tables),
        )
        calls.append(movement.call)
        tables += movement.tables
    return same_calls(*calls, tables=tables)


class _Overlap(NamedTuple):
    """Part that input and output shards share: its first index in either, and its sizes."""

    input_start: tuple[int, ...]
    output_start: tuple[int, ...]
    sizes: tuple[int, ...]


def _overlap(context: KernelContext) -> _Overlap:
    x, y = context.inputs[0], context.outputs[0]
    starts = [max(pair) for pair in zip(x.offsets, y.offsets, strict=True)]
    stops = [
        min(a + n, b + m) for a, n, b, m in zip(x.offsets, x.shape, y.offsets, y.shape, strict=True)
    ]
    return _Overlap(
        input_start=tuple(start - offset for start, offset in zip(starts, x.offsets, strict=True)),
        output_start=tuple(start - offset for start, offset in zip(starts, y.offsets, strict=True)),
        sizes=tuple(max(0, stop - start) for start, stop in zip(starts, stops, strict=True)),
    )


def _shared(context: KernelContext, overlap: _Overlap) -> Move:
    """Move of the part that input and output shards have in common."""
    x, y = context.inputs[0], context.outputs[0]
    from_strides, to_strides = contiguous(x.shape), contiguous(y.shape)
    start, stop = (
        sum(index * step for index, step in zip(place, strides, strict=True))
        for place, strides in (
            (overlap.input_start, from_strides),
            (overlap.output_start, to_strides),
        )
    )
    return move(
        context.name,
        StridedPlace(read(0), x.dtype, start, from_strides),
        StridedPlace(write(0), y.dtype, stop, to_strides),
        overlap.sizes,
    )


def slice_(context: KernelContext) -> Calls:
    """Calls that write the part of the input that is this rank's shard of the output (B to S).

    Raises
    ------
    ExecutorError
        The output's shard does not lie inside the input's.
    """
    overlap = _overlap(context)
    if overlap.sizes != context.outputs[0].shape:
        raise ExecutorError(
            f"slice: output {context.outputs[0]} is not inside input {context.inputs[0]}",
            actor=context.name,
        )
    movement = _shared(context, overlap)
    return same_calls(movement.call, tables=movement.tables)


def pad(context: KernelContext) -> Calls:
    """Calls that write the input at its place among values that change nothing (B or S to P).

    On an axis that goes from B to P(sum) only the rank at coordinate 0 keeps its values. The
    filling is 0 for P(sum) and minus infinity for P(max), where every rank may keep its values.
    """
    overlap = _overlap(context)
    (before,), (after,) = context.input_sbp, context.output_sbp
    keeps, neutral = True, 0.0
    for old, new, coordinate in zip(before, after, context.coordinate, strict=True):
        if new.reduction == "max":
            neutral = -inf
        elif new.is_partial and not old.is_partial and not old.is_split:
            keeps = keeps and coordinate == 0
    keeps = keeps and prod(overlap.sizes) > 0
    calls: list[Call] = []
    tables: tuple[Array, ...] = ()
    if not keeps or overlap.sizes != context.outputs[0].shape:
        calls.append(filling(context, neutral))
    if keeps:
        movement = _shared(context, overlap)
        calls.append(movement.call)
        tables = movement.tables
    return same_calls(*calls, tables=tables)


def filling(context: KernelContext, value: float) -> Call:
    """Call that writes `value` everywhere in the output."""
    y = context.outputs[0]
    if value == 0:
        return Clear(write(0), y.size * ITEMSIZE[y.dtype])
    name = f"fill<{TYPES[y.dtype]}>"
    return elementwise(SOURCE, name, y.size, write(0), np.float64(value))
