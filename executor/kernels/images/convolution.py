"""Convolution and its gradients, as products with the images' columns.

The columns of an image are its values under every tap of the windows: [c q p, j i] for [c, y, x].
A few samples' columns are made at a time, in scratch whose zeros (the padding) are never written;
a window of one place with stride 1 needs none. Images whose channels come last go to
`channels_last.py`.

Shape legend: b samples, g groups, c input and n output channels of a group, y x rows and columns
of the input, j i of the output, q p of a window.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from millrace.executor.kernels.context import Array, Kernel, KernelContext
from millrace.executor.kernels.images import channels_last
from millrace.executor.kernels.images.sizes import ImageSizes, sizes_of
from millrace.executor.kernels.images.windows import WindowTap


class _ChannelsFirstColumns:
    """Scratch for the columns [g, c, q, p, b, j, i] of `step` samples."""

    def __init__(self, sizes: ImageSizes) -> None:
        self._sizes = sizes
        shape = (sizes.g, sizes.c, *sizes.window, sizes.step, *sizes.output)
        self._values = np.zeros(shape, sizes.dtype)

    def matrix(self, samples: int) -> Array:
        """View the columns of the first `samples` as [g, c q p, b j i]."""
        sizes = self._sizes
        columns = self._values.reshape(sizes.g, sizes.depth, -1)
        return columns[:, :, : samples * sizes.places]

    def read(self, images: Array) -> Array:
        """Columns of images [b, g c, y, x]."""
        samples = images.shape[0]
        for tap, apart in self._meeting(images):
            values = self._values[:, :, tap.row, tap.column, :samples]
            np.copyto(values[..., *tap.outputs], apart)
        return self.matrix(samples)

    def add_to(self, images: Array) -> None:
        """Add the columns to where they were read from."""
        samples = images.shape[0]
        for tap, apart in self._meeting(images):
            values = self._values[:, :, tap.row, tap.column, :samples]
            np.add(apart, values[..., *tap.outputs], out=apart)

    def _meeting(self, images: Array) -> Iterator[tuple[WindowTap, Array]]:
        """Yield every tap with its part of the images, as [g, c, b, j, i]."""
        sizes = self._sizes
        apart = images.reshape(-1, sizes.g, sizes.c, *sizes.image).transpose(1, 2, 0, 3, 4)
        for tap in sizes.taps:
            yield tap, apart[..., *tap.inputs]


class _ChannelsFirstOutputs:
    """Outputs [b, g n, j, i] as matrices [g, n, b j i], through scratch for several samples."""

    def __init__(self, sizes: ImageSizes) -> None:
        self._sizes = sizes
        shape = (sizes.g, sizes.n, sizes.step, sizes.places)
        self._values = np.empty(shape if sizes.step > 1 else 0, sizes.dtype)

    def matrix(self, outputs: Array) -> Array:
        """Array in which to find, or leave, the outputs."""
        sizes = self._sizes
        if sizes.step == 1:
            return outputs.reshape(sizes.g, sizes.n, sizes.places)
        merged = self._values.reshape(sizes.g, sizes.n, -1)
        return merged[:, :, : outputs.shape[0] * sizes.places]

    def read(self, outputs: Array) -> Array:
        """Values of the outputs."""
        if self._sizes.step > 1:
            np.copyto(self._here(outputs), self._apart(outputs))
        return self.matrix(outputs)

    def write(self, outputs: Array) -> None:
        """Hand over what was left in the matrix."""
        if self._sizes.step > 1:
            np.copyto(self._apart(outputs), self._here(outputs))

    def _here(self, outputs: Array) -> Array:
        return self._values[:, :, : outputs.shape[0]]

    def _apart(self, outputs: Array) -> Array:
        sizes = self._sizes
        return outputs.reshape(-1, sizes.g, sizes.n, sizes.places).transpose(1, 2, 0, 3)


def conv(context: KernelContext) -> Kernel:
    """Kernel of the convolution of (x, w)."""
    sizes = sizes_of(context)
    if sizes.channels_last:
        return channels_last.conv(sizes)
    if sizes.pointwise:
        return _pointwise(sizes, backward=False)
    columns, places = _ChannelsFirstColumns(sizes), _ChannelsFirstOutputs(sizes)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        weight = inputs[1].reshape(sizes.g, sizes.n, sizes.depth)
        for part in sizes.parts():
            out = outputs[0][part]
            np.matmul(weight, columns.read(inputs[0][part]), out=places.matrix(out))
            places.write(out)

    return kernel


def conv_grad_input(context: KernelContext) -> Kernel:
    """Kernel of dx from (dy, w): the columns of dx are wᵀ dy."""
    sizes = sizes_of(context)
    if sizes.channels_last:
        return channels_last.conv_grad_input(sizes)
    if sizes.pointwise:
        return _pointwise(sizes, backward=True)
    columns, places = _ChannelsFirstColumns(sizes), _ChannelsFirstOutputs(sizes)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        weight = inputs[1].reshape(sizes.g, sizes.n, sizes.depth).transpose(0, 2, 1)
        outputs[0].fill(0)
        for part in sizes.parts():
            dx, dy = outputs[0][part], places.read(inputs[0][part])
            # a product over one channel is an outer one, which BLAS takes twenty times as long for
            (np.matmul if sizes.n > 1 else np.multiply)(weight, dy, out=columns.matrix(len(dx)))
            columns.add_to(dx)

    return kernel


def conv_grad_weight(context: KernelContext) -> Kernel:
    """Kernel of dw from (x, dy): dy times the columns of x, added up over samples and places."""
    sizes = sizes_of(context)
    if sizes.channels_last:
        return channels_last.conv_grad_weight(sizes)
    columns, places = _ChannelsFirstColumns(sizes), _ChannelsFirstOutputs(sizes)
    product = np.empty((sizes.g, sizes.n, sizes.depth), sizes.dtype)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        total = outputs[0].reshape(product.shape)
        total.fill(0)
        for part in sizes.parts():
            columns_of_x = columns.read(inputs[0][part]).transpose(0, 2, 1)
            np.matmul(places.read(inputs[1][part]), columns_of_x, out=product)
            np.add(total, product, out=total)

    return kernel


def _pointwise(sizes: ImageSizes, *, backward: bool) -> Kernel:
    """Kernel of the product of every place with the weight, or with its transpose."""
    in_channels, out_channels = (sizes.n, sizes.c) if backward else (sizes.c, sizes.n)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        weight = inputs[1].reshape(sizes.g, sizes.n, sizes.c)
        np.matmul(
            weight.transpose(0, 2, 1) if backward else weight,
            inputs[0].reshape(sizes.b, sizes.g, in_channels, sizes.places),
            out=outputs[0].reshape(sizes.b, sizes.g, out_channels, sizes.places),
        )

    return kernel
