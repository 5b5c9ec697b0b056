"""Pooling: the largest or the mean of every window, and the gradients.

Planes (one channel of one sample each; all channels of one sample where they come last) go in
chunks that stay in the cache, tap by tap. Shape legend: y x rows and columns of the input, j i of
the output.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from millrace.executor.kernels.chunks import chunks, rows_per_chunk
from millrace.executor.kernels.context import Array, Kernel, KernelContext, Shard
from millrace.executor.kernels.images.order import rows_of_pooling
from millrace.executor.kernels.images.windows import WindowTap, taps


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planes:
    """Planes: how many, how many of them at a time, their sizes, and the taps of a window.

    A pixel has `channels` values: the channels where they come last, else one.
    """

    count: int
    step: int
    channels: int
    image_size: tuple[int, int]
    output_size: tuple[int, int]
    window: int
    taps: tuple[WindowTap, ...]
    dtype: str

    def images(self, array: Array) -> Array:
        """View an array of the input's size as [planes, y, x, channels]."""
        return array.reshape(self.count, *self.image_size, self.channels)

    def pooled(self, array: Array) -> Array:
        """View an array of the output's size as [planes, j, i, channels]."""
        return array.reshape(self.count, *self.output_size, self.channels)

    def scratch(self, dtype: str) -> Array:
        """Room for the outputs of a chunk of planes."""
        return np.empty((self.step, *self.output_size, self.channels), dtype)

    @property
    def is_global(self) -> bool:
        """True when the one window of a plane is the plane."""
        return prod(self.output_size) == 1 and self.window == prod(self.image_size) == len(
            self.taps
        )


def _planes(context: KernelContext, image: Shard, output: Shard) -> _Planes:
    size = int(context.attributes["size_y"]), int(context.attributes["size_x"])
    rows = rows_of_pooling(context)
    count, channels = prod(image.shape[:rows]), prod(image.shape[rows + 2 :])
    given, places = ((shard.shape[rows], shard.shape[rows + 1]) for shard in (image, output))
    return _Planes(
        count=count,
        step=rows_per_chunk(prod(given) * channels, count),
        channels=channels,
        image_size=given,
        output_size=places,
        window=prod(size),
        taps=tuple(taps(context, size, given, places)),
        dtype=image.dtype,
    )


def _largest(planes: _Planes, x: Array, out: Array) -> None:
    """Leave the largest of every window of x [planes, y, x, channels]; minus infinity pads."""
    out.fill(-np.inf)
    for tap in planes.taps:
        here = out[:, *tap.outputs]
        np.maximum(here, x[:, *tap.inputs], out=here)


def max_pool(context: KernelContext) -> Kernel:
    """Kernel of the largest of every window."""
    planes = _planes(context, context.inputs[0], context.outputs[0])

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        x, y = planes.images(inputs[0]), planes.pooled(outputs[0])
        for part in chunks(planes.count, planes.step):
            _largest(planes, x[part], y[part])

    return kernel


def max_pool_grad(context: KernelContext) -> Kernel:
    """Kernel of dx from (x, dy): dy goes to the first of a window's largest, row by row."""
    planes = _planes(context, context.inputs[0], context.inputs[1])
    largest, changes = planes.scratch(planes.dtype), planes.scratch(planes.dtype)
    hits, waits = planes.scratch("bool"), planes.scratch("bool")

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        images, slopes = planes.images(inputs[0]), planes.pooled(inputs[1])
        for part in chunks(planes.count, planes.step):
            x, dy, dx = images[part], slopes[part], planes.images(outputs[0])[part]
            best, waiting = largest[: x.shape[0]], waits[: x.shape[0]]
            _largest(planes, x, best)
            waiting.fill(True)
            dx.fill(0)
            for tap in planes.taps:
                region = (slice(x.shape[0]), *tap.outputs)
                hit, change, still = hits[region], changes[region], waiting[region]
                np.equal(x[:, *tap.inputs], best[region], out=hit)
                np.logical_and(hit, still, out=hit)
                np.greater(still, hit, out=still)
                np.multiply(dy[region], hit, out=change)
                target = dx[:, *tap.inputs]
                np.add(target, change, out=target)

    return kernel


def avg_pool(context: KernelContext) -> Kernel:
    """Kernel of the mean of every window, its padding counted as zeros."""
    planes = _planes(context, context.inputs[0], context.outputs[0])

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        x, y = planes.images(inputs[0]), planes.pooled(outputs[0])
        if planes.is_global:
            np.add.reduce(x, axis=(1, 2), keepdims=True, out=y)
            np.multiply(y, 1 / planes.window, out=y)
            return
        for part in chunks(planes.count, planes.step):
            given, out = x[part], y[part]
            out.fill(0)
            for tap in planes.taps:
                here = out[:, *tap.outputs]
                np.add(here, given[:, *tap.inputs], out=here)
            np.multiply(out, 1 / planes.window, out=out)

    return kernel


def avg_pool_grad(context: KernelContext) -> Kernel:
    """Kernel of dx from dy: every window's share at each of its places."""
    planes = _planes(context, context.outputs[0], context.inputs[0])
    shares = planes.scratch(planes.dtype)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        dy, dx = planes.pooled(inputs[0]), planes.images(outputs[0])
        for part in chunks(planes.count, planes.step):
            share, dx_part = shares[: part.stop - part.start], dx[part]
            np.multiply(dy[part], 1 / planes.window, out=share)
            if planes.is_global:
                np.copyto(dx_part, share)
                continue
            dx_part.fill(0)
            for tap in planes.taps:
                here = dx_part[:, *tap.inputs]
                np.add(here, share[:, *tap.outputs], out=here)

    return kernel
