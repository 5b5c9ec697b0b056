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
from millrace.executor.kernels.dims import bind_operand_dims

Piece = tuple[slice, slice]


@dataclass(frozen=True, slots=True, kw_only=True)
class _HostChannels:
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
        """Scratch for a piece."""
        rows, columns = (part.stop - part.start for part in piece)
        shape = rows, columns, self.form[2]
        return self.scratch[: prod(shape)].reshape(shape)

    def statistics(self, sums: Array, squares: Array, epsilon: float) -> tuple[Array, Array]:
        """Mean and 1 / standard deviation of every channel, as [channels, 1]."""
        rstd = 1 / np.sqrt(squares / self.count + epsilon)
        return (sums / self.count)[:, None], rstd[:, None]


def _channels(context: KernelContext, sums_at: int, x_at: int = 0) -> _HostChannels:
    """Read the form off input `x_at` and operand `sums_at` (inputs, then outputs)."""
    operand_dims = bind_operand_dims(context)
    (channel,) = (*operand_dims.inputs, *operand_dims.outputs)[sums_at]
    shards = (*context.inputs, *context.outputs)
    dims = operand_dims.inputs[x_at]
    position = dims.index(channel)
    sizes = [operand_dims.sizes[label] for label in dims]
    form = prod(sizes[:position]), sizes[position], prod(sizes[position + 1 :])
    count = prod(shards[x_at].global_shape) // prod(shards[sums_at].global_shape)
    largest = max(min(prod(form), CHUNK_ELEMENTS), form[2])
    return _HostChannels(form=form, count=count, scratch=np.empty(largest, shards[x_at].dtype))


def _add_up(values: Array, total: Array) -> None:
    """Add the sum over outer and inner of values [outer, channels, inner] to total [channels]."""
    rows = values[:, :, 0] if values.shape[2] == 1 else np.add.reduce(values, axis=2)
    np.add(total, np.add.reduce(rows, axis=0), out=total)


def channel_sums(context: KernelContext) -> Kernel:
    """Kernel of every channel's sum."""
    channels = _channels(context, 1)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        x, total = channels.of(inputs[0]), outputs[0]
        total.fill(0)
        for piece in channels.pieces():
            _add_up(x[piece], total[piece[1]])

    return kernel


def channel_squares(context: KernelContext) -> Kernel:
    """Kernel of every channel's sum of squared distances from its mean, from (x, sums)."""
    channels = _channels(context, 1)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        x, total = channels.of(inputs[0]), outputs[0]
        mean = (inputs[1] / channels.count)[:, None]
        total.fill(0)
        for piece in channels.pieces():
            centred = channels.room(piece)
            np.subtract(x[piece], mean[piece[1]], out=centred)
            np.multiply(centred, centred, out=centred)
            _add_up(centred, total[piece[1]])

    return kernel


def batch_norm(context: KernelContext) -> Kernel:
    """Kernel of y from (x, sums, squares, gamma, beta)."""
    channels, epsilon = _channels(context, 1), context.number("epsilon", 1e-5)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        x, y = channels.of(inputs[0]), channels.of(outputs[0])
        mean, rstd = channels.statistics(inputs[1], inputs[2], epsilon)
        factor, shift = rstd * inputs[3][:, None], inputs[4][:, None]
        for piece in channels.pieces():
            here, across = y[piece], piece[1]
            np.subtract(x[piece], mean[across], out=here)
            np.multiply(here, factor[across], out=here)
            np.add(here, shift[across], out=here)

    return kernel


def batch_norm_grad_sums(context: KernelContext) -> Kernel:
    """Kernel of dgamma = Σ dy · x̂ and dbeta = Σ dy from (dy, x, sums, squares)."""
    channels, epsilon = _channels(context, 2), context.number("epsilon", 1e-5)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        dy, x = channels.of(inputs[0]), channels.of(inputs[1])
        dgamma, dbeta = outputs
        mean, rstd = channels.statistics(inputs[2], inputs[3], epsilon)
        dgamma.fill(0)
        dbeta.fill(0)
        for piece in channels.pieces():
            product, across = channels.room(piece), piece[1]
            np.subtract(x[piece], mean[across], out=product)
            np.multiply(product, dy[piece], out=product)
            _add_up(product, dgamma[across])
            _add_up(dy[piece], dbeta[across])
        np.multiply(dgamma, rstd[:, 0], out=dgamma)

    return kernel


def batch_norm_grad_input(context: KernelContext) -> Kernel:
    """Kernel of dx from (dy, x, sums, squares, gamma, dgamma, dbeta).

    dx = gamma · rstd · (dy − dbeta / count − x̂ · dgamma / count): the statistics move with x
    (Ioffe and Szegedy 2015, section 3).
    """
    channels, epsilon = _channels(context, 2), context.number("epsilon", 1e-5)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        dy, x, dx = channels.of(inputs[0]), channels.of(inputs[1]), channels.of(outputs[0])
        mean, rstd = channels.statistics(inputs[2], inputs[3], epsilon)
        gamma, dgamma, dbeta = (array[:, None] for array in inputs[4:])
        factor, along, average = (
            gamma * rstd,
            rstd * dgamma / channels.count,
            dbeta / channels.count,
        )
        for piece in channels.pieces():
            change, across = channels.room(piece), piece[1]
            np.subtract(x[piece], mean[across], out=change)
            np.multiply(change, along[across], out=change)
            np.subtract(dy[piece], change, out=change)
            np.subtract(change, average[across], out=change)
            np.multiply(change, factor[across], out=dx[piece])

    return kernel
