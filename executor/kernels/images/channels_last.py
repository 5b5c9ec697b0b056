"""Channels-last images: convolution and its gradients.

The columns of an image are its values under every tap of the windows: [j i, q p c] for [y, x, c].
A few samples' columns are made at a time, in scratch whose zeros (the padding) are never written;
a window of one place with stride 1 needs none. Products of one group are read from and left in
images as they lie; those of several pass through scratch that has the groups outermost.

Shape legend: as in `convolution.py`.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from millrace.executor.kernels.context import Array, Kernel
from millrace.executor.kernels.images.sizes import ImageSizes
from millrace.executor.kernels.images.windows import WindowTap


class _ChannelsLastColumns:
    """Scratch for the columns [g, b, j, i, q, p, c] of `step` samples."""

    def __init__(self, sizes: ImageSizes) -> None:
        self._sizes = sizes
        self._plain = sizes.pointwise and sizes.g == 1
        shape = (sizes.g, sizes.step, *sizes.output, *sizes.window, sizes.c)
        self._values = np.zeros(0 if self._plain else shape, sizes.dtype)

    def matrix(self, images: Array) -> Array:
        """Array in which to find, or leave, the columns of images, as [g, b j i, q p c]."""
        sizes = self._sizes
        if self._plain:
            return images.reshape(1, -1, sizes.c)
        columns = self._values.reshape(sizes.g, -1, sizes.depth)
        return columns[:, : len(images) * sizes.places]

    def read(self, images: Array) -> Array:
        """Columns of images [b, y, x, g c]."""
        if not self._plain:
            for tap, apart in self._meeting(images):
                np.copyto(self._under(tap, len(images)), apart)
        return self.matrix(images)

    def add_to(self, images: Array) -> None:
        """Add the columns to where they were read from."""
        if not self._plain:
            images.fill(0)
            for tap, apart in self._meeting(images):
                np.add(apart, self._under(tap, len(images)), out=apart)

    def _under(self, tap: WindowTap, samples: int) -> Array:
        """View the columns' values of a tap, as [g, b, j, i, c]."""
        values = self._values[:, :samples, :, :, tap.row, tap.column]
        return values[:, :, *tap.outputs]

    def _meeting(self, images: Array) -> Iterator[tuple[WindowTap, Array]]:
        """Yield every tap with its part of the images, as [g, b, j, i, c]."""
        sizes = self._sizes
        apart = images.reshape(-1, *sizes.image, sizes.g, sizes.c).transpose(3, 0, 1, 2, 4)
        for tap in sizes.taps:
            yield tap, apart[:, :, *tap.inputs]


class _ChannelsLastOutputs:
    """Outputs [b, j, i, g n] as matrices [g, b j i, n], of several groups through scratch."""

    def __init__(self, sizes: ImageSizes) -> None:
        self._sizes = sizes
        shape = (sizes.g, sizes.step * sizes.places, sizes.n)
        self._values = np.empty(shape if sizes.g > 1 else 0, sizes.dtype)

    def matrix(self, outputs: Array) -> Array:
        """Array in which to find, or leave, the outputs."""
        sizes = self._sizes
        if sizes.g == 1:
            return outputs.reshape(1, -1, sizes.n)
        return self._values[:, : len(outputs) * sizes.places]

    def read(self, outputs: Array) -> Array:
        """Values of the outputs."""
        if self._sizes.g > 1:
            np.copyto(self.matrix(outputs), self._apart(outputs))
        return self.matrix(outputs)

    def write(self, outputs: Array) -> None:
        """Hand over what was left in the matrix."""
        if self._sizes.g > 1:
            np.copyto(self._apart(outputs), self.matrix(outputs))

    def _apart(self, outputs: Array) -> Array:
        return outputs.reshape(-1, self._sizes.g, self._sizes.n).transpose(1, 0, 2)


def conv(sizes: ImageSizes) -> Kernel:
    """Kernel of the convolution of (x, w)."""
    columns, places = _ChannelsLastColumns(sizes), _ChannelsLastOutputs(sizes)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        weight = inputs[1].reshape(sizes.g, sizes.n, sizes.depth).transpose(0, 2, 1)
        for part in sizes.parts():
            out = outputs[0][part]
            np.matmul(columns.read(inputs[0][part]), weight, out=places.matrix(out))
            places.write(out)

    return kernel


def conv_grad_input(sizes: ImageSizes) -> Kernel:
    """Kernel of dx from (dy, w): the columns of dx are dy w."""
    columns, places = _ChannelsLastColumns(sizes), _ChannelsLastOutputs(sizes)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        weight = inputs[1].reshape(sizes.g, sizes.n, sizes.depth)
        for part in sizes.parts():
            dx, dy = outputs[0][part], places.read(inputs[0][part])
            # a product over one channel is an outer one, which BLAS takes twenty times as long for
            (np.matmul if sizes.n > 1 else np.multiply)(dy, weight, out=columns.matrix(dx))
            columns.add_to(dx)

    return kernel


def conv_grad_weight(sizes: ImageSizes) -> Kernel:
    """Kernel of dw from (x, dy): dy times the columns of x, added up over samples and places."""
    columns, places = _ChannelsLastColumns(sizes), _ChannelsLastOutputs(sizes)
    product = np.empty((sizes.g, sizes.n, sizes.depth), sizes.dtype)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        total = outputs[0].reshape(product.shape)
        total.fill(0)
        for part in sizes.parts():
            dy = places.read(inputs[1][part]).transpose(0, 2, 1)
            np.matmul(dy, columns.read(inputs[0][part]), out=product)
            np.add(total, product, out=total)

    return kernel
