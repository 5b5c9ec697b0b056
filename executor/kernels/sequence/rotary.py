"""Rotary positions: pairs of features turned by an angle that grows with the position.

Seen as [outer, T, inner, D]: T positions here, D features of which the first `dims` turn. A pair is
(i, i + dims / 2), or (2 i, 2 i + 1) where `interleaved`; either stays where it was. The gradient
is the turn back (`inverse`).

Notes
-----
Su et al., "RoFormer", 2021, section 3.2.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from millrace.executor.errors import ExecutorError
from millrace.executor.kernels.chunks import CHUNK_ELEMENTS, chunks
from millrace.executor.kernels.context import Array, Kernel, KernelContext
from millrace.executor.kernels.dims import bind_operand_dims
from millrace.models.labels import SEQUENCE, parse
from millrace.models.rotary import rotary_frequencies

Block = tuple[slice, slice]
Turn = Callable[[Array, Array, slice], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RotaryAngles:
    """Parameters of the angles; ops that agree in them share one copy of the tables."""

    frequencies: tuple[float, ...]
    amplitude: float
    first: int
    count: int
    dtype: str
    is_inverse: bool

    @property
    def dims(self) -> int:
        """Number of features that turn."""
        return 2 * len(self.frequencies)

    def tables(self) -> tuple[Array, Array]:
        """Cosines and sines [T, 1, pairs] in float64."""
        angles = np.outer(np.arange(self.first, self.first + self.count), self.frequencies)
        sign = -1 if self.is_inverse else 1
        cos, sin = self.amplitude * np.cos(angles), sign * self.amplitude * np.sin(angles)
        return cos[:, None], sin[:, None]


@lru_cache(maxsize=32)
def _half_tables(turning: RotaryAngles) -> tuple[Array, Array]:
    """Tables (cos, cos) [T, 1, D] and (−sin, sin) [T, 1, 2, pairs]."""
    cos, sin = turning.tables()
    cosines, sines = np.concatenate((cos, cos), -1), np.stack((-sin, sin), -2)
    return cosines.astype(turning.dtype), sines.astype(turning.dtype)


@lru_cache(maxsize=32)
def _complex_table(turning: RotaryAngles) -> Array:
    """Table of cos + i sin [T, 1, pairs]."""
    cos, sin = turning.tables()
    return (cos + 1j * sin).astype("complex64" if turning.dtype == "float32" else "complex128")


def _shape(context: KernelContext) -> tuple[tuple[int, int, int, int], int]:
    """Shape [outer, T, inner, D] of the shard and the position of its first element."""
    operand_dims = bind_operand_dims(context)
    labels = operand_dims.inputs[0]
    if SEQUENCE not in labels[:-1]:
        raise ExecutorError(
            f"rotary needs label `{SEQUENCE}` before the features, found `{context.labels}`",
            actor=context.name,
        )
    sizes = [operand_dims.sizes[label] for label in labels]
    position = labels.index(SEQUENCE)
    first = 0
    for dim, offset in zip(parse(context.labels).inputs[0], context.inputs[0].offsets, strict=True):
        if dim[0] == SEQUENCE:
            first = offset // prod(operand_dims.sizes[label] for label in dim[1:])
    return (
        prod(sizes[:position]),
        sizes[position],
        prod(sizes[position + 1 : -1]),
        sizes[-1],
    ), first


def shape_and_turning(
    context: KernelContext,
) -> tuple[tuple[int, int, int, int], RotaryAngles]:
    """Shape [outer, T, inner, D] of the shard, and the turning of its features.

    Raises
    ------
    ExecutorError
        The features that turn are no pairs, or there is no label of positions.
    """
    shape, first = _shape(context)
    dims = int(context.attributes["dims"])
    if dims % 2 or not 0 < dims <= shape[-1]:
        raise ExecutorError(
            f"rotary turns {dims} of {shape[-1]} features: expected an even number, at most all",
            actor=context.name,
        )
    return shape, RotaryAngles(
        frequencies=rotary_frequencies(context.attributes),
        amplitude=context.number("amplitude", 1.0),
        first=first,
        count=shape[1],
        dtype=context.inputs[0].dtype,
        is_inverse=bool(context.attributes["inverse"]),
    )


def _blocks(shape: tuple[int, int, int, int]) -> Iterator[Block]:
    """Cut [outer, T, …] into blocks that stay in the cache."""
    outer, count, *rest = shape
    row = prod(rest)
    positions = max(1, min(count, CHUNK_ELEMENTS // max(row, 1)))
    together = max(1, min(outer, CHUNK_ELEMENTS // max(positions * row, 1)))
    for samples in chunks(outer, together):
        for part in chunks(count, positions):
            yield samples, part


def rotary(context: KernelContext) -> Kernel:
    """Kernel of every pair (x, y) as (x cos − y sin, y cos + x sin), times `amplitude`.

    The angles per position are those of `millrace.models.rotary`; `amplitude` is 1 if left out.

    Raises
    ------
    ExecutorError
        As `shape_and_turning`.
    """
    shape, turning = shape_and_turning(context)
    dims = turning.dims
    blocks = list(_blocks(shape))
    if context.attributes["interleaved"]:
        turn = _neighbours(turning)
    else:
        samples, part = blocks[0]
        rows = (samples.stop - samples.start) * (part.stop - part.start) * shape[2]
        turn = _halves(turning, rows * dims)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        x, y = inputs[0].reshape(shape), outputs[0].reshape(shape)
        for block in blocks:
            turn(x[block][..., :dims], y[block][..., :dims], block[1])
            if dims < shape[-1]:
                y[block][..., dims:] = x[block][..., dims:]

    return kernel


def _halves(turning: RotaryAngles, size: int) -> Turn:
    """Function that turns pairs (i, i + half): x · (cos, cos) + (second, first) · (−sin, sin)."""
    cosines, sines = _half_tables(turning)
    buffer = np.empty(size, turning.dtype)

    def turn(x: Array, y: Array, part: slice) -> None:
        halves = (*x.shape[:-1], 2, x.shape[-1] // 2)
        spare = buffer[: x.size]
        np.multiply(x.reshape(halves)[..., ::-1, :], sines[part], out=spare.reshape(halves))
        np.multiply(x, cosines[part], out=y)
        np.add(y, spare.reshape(x.shape), out=y)

    return turn


def _neighbours(turning: RotaryAngles) -> Turn:
    """Function that turns pairs (2 i, 2 i + 1): as products of complex numbers."""
    turns = _complex_table(turning)

    def turn(x: Array, y: Array, part: slice) -> None:
        np.multiply(x.view(turns.dtype), turns[part], out=y.view(turns.dtype))

    return turn
