"""Batch norm by the statistics of a whole microbatch, however it is split, and the gradients.

`sums` and `squares` arrive added up over all ranks, and a channel's count is that of the whole
microbatch. Any dims may lie around the channel's: an array is seen as [outer, channels, inner] and
goes in pieces that stay in the cache.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from millrace.executor.kernels.chunks import CHUNK_ELEMENTS, chunks
from millrace.executor.kernels.context import Array, Kernel, KernelContext
from millrace.executor.kernels.dims import layout

Piece = tuple[slice, slice]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Channels:
    """An array's form, the points of a channel in the whole microbatch, and scratch for a piece."""

    form: tuple[int, int, int]
    count: int
    scratch: Array

    def of(self, array: Array) -> Array:
        """View an array as [outer, channels, inner]."""
        return array.reshape(self.form)

    def pieces(self) -> Iterator[Piece]:
        """Cut [outer, channels] so that a piece stays in the cache."""
        outer, channels, inner = self.form
        columns = max(1, min(channels, CHUNK_ELEMENTS // max(inner, 1)))
        rows = max(1, CHUNK_ELEMENTS // (columns * max(inner, 1)))
        for across in chunks(channels, columns):
            for part in chunks(outer, rows if columns == channels else 1):
                yield part, across

    def room(self, piece: Piece) -> Array:
        """Return scratch for a piece."""
        rows, columns = (part.stop - part.start for part in piece)
        shape = rows, columns, self.form[2]
        return self.scratch[: prod(shape)].reshape(shape)

    def statistics(self, sums: Array, squares: Array, epsilon: float) -> tuple[Array, Array]:
        """Return mean and 1 / standard deviation of every channel, as [channels, 1]."""
        rstd = 1 / np.sqrt(squares / self.count + epsilon)
        return (sums / self.count)[:, None], rstd[:, None]


def _channels(context: KernelContext, sums_at: int, x_at: int = 0) -> _Channels:
    """Read the form off input `x_at` and operand `sums_at` (inputs, then outputs)."""
    found = layout(context)
    (channel,) = (*found.inputs, *found.outputs)[sums_at]
    shards = (*context.inputs, *context.outputs)
    dims = found.inputs[x_at]
    at = dims.index(channel)
    sizes = [found.sizes[label] for label in dims]
    form = prod(sizes[:at]), sizes[at], prod(sizes[at + 1 :])
    whole = prod(shards[x_at].global_shape) // prod(shards[sums_at].global_shape)
    largest = max(min(prod(form), CHUNK_ELEMENTS), form[2])
    return _Channels(form=form, count=whole, scratch=np.empty(largest, shards[x_at].dtype))


def _add_up(values: Array, total: Array) -> None:
    """Add the sum over outer and inner of values [outer, channels, inner] to total [channels]."""
    rows = values[:, :, 0] if values.shape[2] == 1 else np.add.reduce(values, axis=2)
    np.add(total, np.add.reduce(rows, axis=0), out=total)


def channel_sums(context: KernelContext) -> Kernel:
    """Return every channel's sum."""
    found = _channels(context, 1)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        x, total = found.of(inputs[0]), outputs[0]
        total.fill(0)
        for piece in found.pieces():
            _add_up(x[piece], total[piece[1]])

    return kernel


def channel_squares(context: KernelContext) -> Kernel:
    """Return every channel's sum of squared distances from its mean, of (x, sums)."""
    found = _channels(context, 1)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        x, total = found.of(inputs[0]), outputs[0]
        mean = (inputs[1] / found.count)[:, None]
        total.fill(0)
        for piece in found.pieces():
            centred = found.room(piece)
            np.subtract(x[piece], mean[piece[1]], out=centred)
            np.multiply(centred, centred, out=centred)
            _add_up(centred, total[piece[1]])

    return kernel


def batch_norm(context: KernelContext) -> Kernel:
    """Return y of (x, sums, squares, gamma, beta)."""
    found, epsilon = _channels(context, 1), context.number("epsilon", 1e-5)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        x, y = found.of(inputs[0]), found.of(outputs[0])
        mean, rstd = found.statistics(inputs[1], inputs[2], epsilon)
        factor, shift = rstd * inputs[3][:, None], inputs[4][:, None]
        for piece in found.pieces():
            here, across = y[piece], piece[1]
            np.subtract(x[piece], mean[across], out=here)
            np.multiply(here, factor[across], out=here)
            np.add(here, shift[across], out=here)

    return kernel


def batch_norm_grad_sums(context: KernelContext) -> Kernel:
    """Return dgamma = Σ dy · x̂ and dbeta = Σ dy of (dy, x, sums, squares)."""
    found, epsilon = _channels(context, 2), context.number("epsilon", 1e-5)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        dy, x = found.of(inputs[0]), found.of(inputs[1])
        dgamma, dbeta = outputs
        mean, rstd = found.statistics(inputs[2], inputs[3], epsilon)
        dgamma.fill(0)
        dbeta.fill(0)
        for piece in found.pieces():
            product, across = found.room(piece), piece[1]
            np.subtract(x[piece], mean[across], out=product)
            np.multiply(product, dy[piece], out=product)
            _add_up(product, dgamma[across])
            _add_up(dy[piece], dbeta[across])
        np.multiply(dgamma, rstd[:, 0], out=dgamma)

    return kernel


def batch_norm_grad_input(context: KernelContext) -> Kernel:
    """Return dx of (dy, x, sums, squares, gamma, dgamma, dbeta).

    dx = gamma · rstd · (dy − dbeta / count − x̂ · dgamma / count): the statistics move with x
    (Ioffe and Szegedy 2015, section 3).
    """
    found, epsilon = _channels(context, 2), context.number("epsilon", 1e-5)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        dy, x, dx = found.of(inputs[0]), found.of(inputs[1]), found.of(outputs[0])
        mean, rstd = found.statistics(inputs[2], inputs[3], epsilon)
        gamma, dgamma, dbeta = (array[:, None] for array in inputs[4:])
        factor, along, average = gamma * rstd, rstd * dgamma / found.count, dbeta / found.count
        for piece in found.pieces():
            change, across = found.room(piece), piece[1]
            np.subtract(x[piece], mean[across], out=change)
            np.multiply(change, along[across], out=change)
            np.subtract(dy[piece], change, out=change)
            np.subtract(change, average[across], out=change)
            np.multiply(change, factor[across], out=dx[piece])

    return kernel
