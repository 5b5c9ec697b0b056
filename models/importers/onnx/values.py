"""Values of an ONNX graph's tensors while it is imported, and the algebra of their dims.

A tensor that depends on data or on a parameter is `Traced`: it lies in a tensor of our graph whose
dims carry *factors* (a label and its size), and ONNX's own dims are sequences of the same factors.
Transpose, Reshape, Squeeze, Unsqueeze and Expand change only how ONNX sees the tensor (`dims`); an
op that needs another layout of the tensor itself (`operand`) adds a `rearrange` then. A factor that
`dims` holds and `operand` does not is a broadcast still to be made; one that `operand` holds and
`dims` does not has size one.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from millrace.models.labels import BATCH, SEQUENCE

Array = NDArray[Any]


class UnsupportedNodeError(Exception):
    """A node asks for something without a counterpart; the message says what, not where."""


class LabelFactor(NamedTuple):
    """A label with its size; two factors are the same when both are equal."""

    name: str
    size: int


Dim = tuple[LabelFactor, ...]
Dims = tuple[Dim, ...]
Fresh = Callable[[int], LabelFactor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """A tensor of our graph and how ONNX sees it.

    Attributes
    ----------
    tensor : str
        Its name in our graph.
    operand : tuple of Dim
        Factors of the tensor's own dims.
    dims : tuple of Dim
        Factors of the dims as ONNX has them; empty for a dim of size one.
    ids : bool
        Integers (ids), not floating numbers.
    """

    tensor: str
    operand: Dims
    dims: Dims
    ids: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape as ONNX has it."""
        return tuple(size_of(dim) for dim in self.dims)

    @property
    def operand_factors(self) -> frozenset[LabelFactor]:
        """Factors of the tensor itself."""
        return frozenset(factors_of(self.operand))

    @property
    def seen(self) -> frozenset[LabelFactor]:
        """Factors of the dims as ONNX has them."""
        return frozenset(factors_of(self.dims))

    def seen_as(self, dims: Iterable[Dim]) -> "Traced":
        """Return the same tensor with other dims for ONNX."""
        return replace(self, dims=tuple(dims))

    def replaced(self, pieces: Mapping[LabelFactor, Dim]) -> "Traced":
        """Return the same tensor with factors renamed or taken apart."""
        return replace(
            self,
            operand=tuple(_replaced(dim, pieces) for dim in self.operand),
            dims=tuple(_replaced(dim, pieces) for dim in self.dims),
        )

    def renewed(self, fresh: Fresh) -> "Traced":
        """Return the same tensor with a new factor in place of each."""
        return self.replaced({f: (fresh(f.size),) for f in factors_of((*self.operand, *self.dims))})


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A tensor whose values are known: a folded computation or an untrained initializer."""

    array: Array

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return self.array.shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """A tensor that could not be followed, and all that stood in the way."""

    problems: frozenset[str]


Value = Traced | Constant | Unknown


def size_of(dim: Dim) -> int:
    """Size of a dim: the product of its factors'."""
    return prod(factor.size for factor in dim)


def factors_of(dims: Iterable[Dim]) -> Dim:
    """Factors of several dims, in order."""
    return tuple(factor for dim in dims for factor in dim)


def has_batch(factors: Iterable[LabelFactor]) -> bool:
    """True if the batch is among some factors."""
    return any(factor.name == BATCH for factor in factors)


def _replaced(dim: Dim, pieces: Mapping[LabelFactor, Dim]) -> Dim:
    return tuple(piece for factor in dim for piece in pieces.get(factor, (factor,)))


def reshaped(value: Traced, shape: Sequence[int], fresh: Fresh) -> Traced:
    """Tensor seen in another shape of as many elements.

    Factors are grouped, or taken apart into an outer and an inner one.

    Parameters
    ----------
    value : Traced
        The tensor; it stays where it is, only factors are divided.
    shape : sequence of int
        Lengths of the dims as ONNX shall see them, without 0 and -1.
    fresh : callable
        Makes a factor of a size that no tensor has yet.

    Raises
    ------
    UnsupportedNodeError
        The batch would be taken apart or away, a dim would begin inside one and end inside another,
        or the number of elements differs.
    """
    queue = list(factors_of(value.dims))
    dims: list[Dim] = []
    for size in shape:
        group: list[LabelFactor] = []
        needed = size
        if size == 1 and queue and queue[0].size == 1:
            group.append(queue.pop(0))
        while needed > 1:
            if not queue:
                raise UnsupportedNodeError(
                    f"{value.shape} has not as many elements as {tuple(shape)}"
                )
            first = queue.pop(0)
            if needed % first.size and first.size % needed == 0:
                outer, inner = _apart(first, needed, fresh)
                value = value.replaced({first: (outer, inner)})
                queue.insert(0, inner)
                first = outer
            elif needed % first.size:
                raise UnsupportedNodeError(
                    f"shape {value.shape} to {tuple(shape)} cuts across dims that do not divide"
                )
            group.append(first)
            needed //= first.size
        dims.append(tuple(group))
    if size_of(tuple(queue)) > 1:
        raise UnsupportedNodeError(f"{value.shape} has more elements than {tuple(shape)}")
    if queue and not dims and has_batch(queue):
        raise UnsupportedNodeError("the batch is taken away")
    if queue and dims:
        dims[-1] = (*dims[-1], *queue)
    return value.seen_as(dims)


def _apart(factor: LabelFactor, outer: int, fresh: Fresh) -> Dim:
    if factor.name == BATCH:
        raise UnsupportedNodeError(f"the batch of {factor.size} is taken apart")
    return fresh(outer), fresh(factor.size // outer)


Column = Sequence[tuple[int, int]]


def unified(
    values: Sequence[Traced], columns: Sequence[Column], fresh: Fresh
) -> tuple[Traced, ...]:
    """Rename factors so that dims in one column have the same ones and other dims others.

    Parameters
    ----------
    values : sequence of Traced
        The inputs of one op.
    columns : sequence
        Each a list of (index of the value, index of its dim) that are the same dim to the op; every
        dim of every value occurs in one. A dim of size one among larger ones becomes empty.
    fresh : callable
        Makes a factor of a size that no tensor has yet.

    Raises
    ------
    UnsupportedNodeError
        Sizes differ, dims cannot be divided into common factors, or the batch would be taken apart
        or occur twice.
    """
    apart = [value.renewed(fresh) for value in values]
    origins: dict[LabelFactor, LabelFactor] = {}
    for new, old in zip(apart, values, strict=True):
        origins |= zip(factors_of(new.operand), factors_of(old.operand), strict=True)
        origins |= zip(factors_of(new.dims), factors_of(old.dims), strict=True)
    maps: list[dict[LabelFactor, Dim]] = [{} for _ in values]
    used: set[str] = set()
    for column in columns:
        _without_ones(apart, column, origins)
        common = _common(apart, maps, column, fresh)
        _named(maps, column, common, origins, used)
    renamed = [value.replaced(pieces) for value, pieces in zip(apart, maps, strict=True)]
    if any(
        has_batch(origins[f] for f in value.operand_factors if f in origins) for value in renamed
    ):
        raise UnsupportedNodeError("the batch is lost or occurs twice among its dims")
    return tuple(renamed)


def _without_ones(
    apart: list[Traced], column: Column, origins: Mapping[LabelFactor, LabelFactor]
) -> None:
    """Empty the dims of size one that meet larger ones."""
    sizes = {size_of(apart[position].dims[dim]) for position, dim in column}
    if len(sizes) > 2 or (len(sizes) == 2 and 1 not in sizes):
        raise UnsupportedNodeError(f"dims of sizes {sorted(sizes)} meet")
    if len(sizes) < 2:
        return
    for position, dim in column:
        dims = apart[position].dims
        if size_of(dims[dim]) == 1:
            if has_batch(origins[factor] for factor in dims[dim]):
                raise UnsupportedNodeError("a batch of one is spread over a larger dim")
            apart[position] = apart[position].seen_as((*dims[:dim], (), *dims[dim + 1 :]))


def _common(
    apart: list[Traced], maps: list[dict[LabelFactor, Dim]], column: Column, fresh: Fresh
) -> Dim:
    """Fill in, for the dims of one column, the common pieces of their factors."""
    common: Dim = ()
    done: list[int] = []
    for position, index in column:
        dim = apart[position].dims[index]
        if not dim:
            continue
        if not common:
            common = tuple(fresh(factor.size) for factor in dim)
            maps[position].update({f: (piece,) for f, piece in zip(dim, common, strict=True)})
        else:
            of_common, of_dim = _refined(common, dim, fresh)
            for earlier in done:
                for factor, pieces in maps[earlier].items():
                    maps[earlier][factor] = _replaced(pieces, of_common)
            maps[position].update(of_dim)
            common = _replaced(common, of_common)
        done.append(position)
    return common


def _refined(
    left: Dim, right: Dim, fresh: Fresh
) -> tuple[dict[LabelFactor, Dim], dict[LabelFactor, Dim]]:
    """Divide two dims of one size into the same pieces."""
    maps: tuple[dict[LabelFactor, Dim], dict[LabelFactor, Dim]] = (
        dict.fromkeys(left, ()),
        dict.fromkeys(right, ()),
    )
    queues = [[(f, f.size) for f in left], [(f, f.size) for f in right]]
    while queues[0] and queues[1]:
        (first, a), (second, b) = queues[0].pop(0), queues[1].pop(0)
        if a % b and b % a:
            raise UnsupportedNodeError(f"dims of factors {a} and {b} have no common pieces")
        piece = fresh(min(a, b))
        maps[0][first] += (piece,)
        maps[1][second] += (piece,)
        if a > b:
            queues[0].insert(0, (first, a // b))
        elif b > a:
            queues[1].insert(0, (second, b // a))
    for side, queue in enumerate(queues):
        for factor, size in queue:  # factors of size one at the end of one side
            piece = fresh(size)
            maps[side][factor] += (piece,)
            last = (right, left)[side][-1]
            maps[1 - side][last] += (piece,)
    return maps


def _named(
    maps: list[dict[LabelFactor, Dim]],
    column: Column,
    common: Dim,
    origins: Mapping[LabelFactor, LabelFactor],
    used: set[str],
) -> None:
    """Give the pieces of a column the names that the values had for them, where still free."""
    names: dict[LabelFactor, Dim] = {}
    for piece in common:
        candidates = [
            origins[factor]
            for position, _ in column
            for factor, pieces in maps[position].items()
            if pieces == (piece,)
        ]
        ranked = sorted(candidates, key=lambda f: (f.name != BATCH, f.name != SEQUENCE))
        chosen = next((factor for factor in ranked if factor.name not in used), piece)
        if has_batch(candidates) and chosen.name != BATCH:
            raise UnsupportedNodeError("every sample meets every other (the batch occurs twice)")
        used.add(chosen.name)
        names[piece] = (chosen,)
    for position in {position for position, _ in column}:
        for factor, pieces in maps[position].items():
            larger = [piece for piece in pieces if piece.size > 1]
            if len(larger) > 1 and origins[factor].name == BATCH:
                raise UnsupportedNodeError(f"the batch of {factor.size} is taken apart")
            maps[position][factor] = _replaced(pieces, names)


def broadcast_columns(ranks: Sequence[int]) -> list[Column]:
    """Columns of dims that ONNX aligns at the right."""
    highest = max(ranks)
    return [
        [
            (position, place - highest + rank)
            for position, rank in enumerate(ranks)
            if place >= highest - rank
        ]
        for place in range(highest)
    ]


def common_dims(values: Sequence[Traced], columns: Sequence[Column]) -> Dims:
    """Factors of each column, as the first of the values that has some has them.

    Parameters
    ----------
    values
        Operands of one op.
    columns
        Axes of theirs that stand under one another.
    """
    return tuple(
        next((dim for position, index in column if (dim := values[position].dims[index])), ())
        for column in columns
    )


def varying(array: Array) -> Array:
    """Return the array with every dim of equal slices brought to size one."""
    for axis, size in enumerate(array.shape):
        if size > 1:
            first = np.take(array, [0], axis)
            if np.array_equal(np.broadcast_to(first, array.shape), array):
                array = first
    return array
