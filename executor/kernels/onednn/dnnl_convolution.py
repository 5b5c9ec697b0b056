"""Convolution and its gradients by oneDNN.

Images are read and written as they lie, channels last or first. Weights are brought into the layout
that oneDNN chooses, which takes little beside a convolution, and its gradients back.

Shape legend: as in `images/convolution.py`.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from millrace.executor.kernels.context import Array, Kernel, KernelContext
from millrace.executor.kernels.images.sizes import ImageSizes, sizes_of
from millrace.executor.kernels.onednn.dnnl_library import (
    QUERIES,
    Dnnl,
    DnnlArgument,
    Primitive,
    numbers,
    open_dnnl,
    reorder,
)

_FORWARD_TRAINING, _DIRECT = 64, 1  # dnnl_types.h, oneDNN 3.2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Windows:
    """Strides, dilation and padding of windows, as oneDNN takes them."""

    strides: tuple[int, int]
    dilates: tuple[int, int]
    before: tuple[int, int]
    behind: tuple[int, int]

    def numbers(self) -> list[ctypes.Array[ctypes.c_int64]]:
        """Arguments of a description, in order."""
        return [numbers(pair) for pair in (self.strides, self.dilates, self.before, self.behind)]


def _windows(context: KernelContext, sizes: ImageSizes) -> _Windows:
    def pair(name: str, default: int = 0) -> tuple[int, int]:
        values = [int(context.attributes.get(f"{name}_{dim}", default)) for dim in "yx"]
        return values[0], values[1]

    strides, before, dilation = pair("stride", 1), pair("pad"), pair("dilation", 1)
    behind = [
        max(0, (out - 1) * stride + (side - 1) * apart + 1 - image - pad)
        for out, stride, side, apart, image, pad in zip(
            sizes.output, strides, sizes.window, dilation, sizes.image, before, strict=True
        )
    ]
    return _Windows(
        strides=strides,
        dilates=(dilation[0] - 1, dilation[1] - 1),
        before=before,
        behind=(behind[0], behind[1]),
    )


def _image_layout(
    dnnl: Dnnl, sizes: ImageSizes, channels: int, side: tuple[int, int]
) -> ctypes.c_void_p:
    y, x = side
    if sizes.channels_last:
        strides = (y * x * channels, 1, x * channels, channels)
    else:
        strides = (channels * y * x, y * x, x, 1)
    return dnnl.layout((sizes.b, channels, y, x), strides)


def _weight_shape(sizes: ImageSizes) -> tuple[int, ...]:
    shape = (sizes.n, sizes.c, *sizes.window)
    return (sizes.g, *shape) if sizes.g > 1 else shape


def _weight_strides(sizes: ImageSizes) -> tuple[int, ...]:
    q, p = sizes.window
    if sizes.channels_last:
        strides = (q * p * sizes.c, 1, p * sizes.c, sizes.c)
    else:
        strides = (sizes.c * q * p, q * p, p, 1)
    return (sizes.n * sizes.c * q * p, *strides) if sizes.g > 1 else strides


class _Convolution:
    """Descriptions of a convolution and of its gradients, oneDNN choosing the weights' layout."""

    def __init__(self, context: KernelContext, dnnl: Dnnl) -> None:
        self.sizes, self.dnnl = sizes_of(context), dnnl
        sizes = self.sizes
        self.image = _image_layout(dnnl, sizes, sizes.g * sizes.c, sizes.image)
        self.output = _image_layout(dnnl, sizes, sizes.g * sizes.n, sizes.output)
        self.weight = dnnl.layout(_weight_shape(sizes), _weight_strides(sizes))
        self._any_weight = dnnl.layout(_weight_shape(sizes), None)
        self._windows = _windows(context, sizes).numbers()

    def forward(self) -> ctypes.c_void_p:
        """Description of the convolution."""
        return self._description(
            *("forward", _FORWARD_TRAINING, _DIRECT),
            *(self.image, self._any_weight, None, self.output),
        )

    def grad_input(self) -> ctypes.c_void_p:
        """Description of the gradient of the images."""
        arguments = (_DIRECT, self.image, self._any_weight, self.output)
        return self._description("backward_data", *arguments, hint=self.forward())

    def grad_weight(self) -> ctypes.c_void_p:
        """Description of the gradient of the weights."""
        arguments = (_DIRECT, self.image, self._any_weight, None, self.output)
        return self._description("backward_weights", *arguments, hint=self.forward())

    def _description(
        self, kind: str, *arguments: object, hint: ctypes.c_void_p | None = None
    ) -> ctypes.c_void_p:
        rest = () if hint is None else (hint,)
        return self.dnnl.created(
            f"convolution_{kind}_primitive_desc_create",
            self.dnnl.engine,
            *arguments,
            *self._windows,
            *rest,
            self.dnnl.attributes(),
        )

    def weights(
        self, description: ctypes.c_void_p, argument: DnnlArgument
    ) -> tuple[ctypes.c_void_p, Array | None]:
        """Layout of the weights that a description asks for, and room for them if it is another."""
        layout = self.dnnl.chosen(description, QUERIES[argument])
        if self.dnnl.is_equal(layout, self.weight):
            return layout, None
        return layout, np.empty(self.dnnl.size_bytes(layout), np.uint8)


def conv(context: KernelContext) -> Kernel | None:
    """Kernel of the convolution of (x, w); None without the library."""
    return _of_weight(context, DnnlArgument.SRC, DnnlArgument.DST)


def conv_grad_input(context: KernelContext) -> Kernel | None:
    """Kernel of dx from (dy, w); None without the library."""
    return _of_weight(context, DnnlArgument.DIFF_DST, DnnlArgument.DIFF_SRC)


def _of_weight(context: KernelContext, source: DnnlArgument, target: DnnlArgument) -> Kernel | None:
    """Kernel of what reads images and weights."""
    dnnl = open_dnnl()
    if dnnl is None:
        return None
    convolution = _Convolution(context, dnnl)
    is_forward = source is DnnlArgument.SRC
    description = convolution.forward() if is_forward else convolution.grad_input()
    image, output = convolution.image, convolution.output
    layout, room = convolution.weights(description, DnnlArgument.WEIGHTS)
    layouts = {
        source: image if is_forward else output,
        DnnlArgument.WEIGHTS: layout,
        target: output if is_forward else image,
    }
    bound = {} if room is None else {DnnlArgument.WEIGHTS: room}
    primitive = Primitive(dnnl, description, layouts, bound)
    turn = None
    if room is not None:
        turn = reorder(dnnl, convolution.weight, layout, {DnnlArgument.DST: room})

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        addresses = {source: inputs[0].ctypes.data, target: outputs[0].ctypes.data}
        if turn is None:
            addresses[DnnlArgument.WEIGHTS] = inputs[1].ctypes.data
        else:
            turn.run({DnnlArgument.SRC: inputs[1].ctypes.data})
        primitive.run(addresses)

    return kernel


def conv_grad_weight(context: KernelContext) -> Kernel | None:
    """Kernel of dw from (x, dy); None without the library."""
    dnnl = open_dnnl()
    if dnnl is None:
        return None
    convolution = _Convolution(context, dnnl)
    description = convolution.grad_weight()
    layout, room = convolution.weights(description, DnnlArgument.DIFF_WEIGHTS)
    layouts = {
        DnnlArgument.SRC: convolution.image,
        DnnlArgument.DIFF_DST: convolution.output,
        DnnlArgument.DIFF_WEIGHTS: layout,
    }
    bound = {} if room is None else {DnnlArgument.DIFF_WEIGHTS: room}
    primitive = Primitive(dnnl, description, layouts, bound)
    turn = None
    if room is not None:
        turn = reorder(dnnl, layout, convolution.weight, {DnnlArgument.SRC: room})

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        addresses = {
            DnnlArgument.SRC: inputs[0].ctypes.data,
            DnnlArgument.DIFF_DST: inputs[1].ctypes.data,
        }
        if turn is None:
            addresses[DnnlArgument.DIFF_WEIGHTS] = outputs[0].ctypes.data
        primitive.run(addresses)
        if turn is not None:
            turn.run({DnnlArgument.DST: outputs[0].ctypes.data})

    return kernel
