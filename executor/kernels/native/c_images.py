"""Image kernels in C: factories of batch norm and pooling where channels come last."""

import ctypes
from collections.abc import Sequence
from math import prod

import numpy as np

from millrace.executor.kernels.context import Array, Kernel, KernelContext
from millrace.executor.kernels.dims import bind_operand_dims
from millrace.executor.kernels.images.order import rows_of_pooling
from millrace.executor.kernels.native.c_library import function

# By kind: which operand holds a value per channel, which one has all dims, and whether there is
# an epsilon; a count goes to all but the plain sums.
BATCH_NORMS = {
    "channel_sums": (1, 0, False),
    "channel_squares": (1, 0, False),
    "batch_norm": (1, 0, True),
    "batch_norm_grad_sums": (2, 1, True),
    "batch_norm_grad_input": (2, 1, True),
}


def batch_norm(context: KernelContext) -> Kernel | None:
    """Kernel of a part of batch norm; None where dims lie behind the channels."""
    sums_at, x_at, has_epsilon = BATCH_NORMS[context.kind]
    operand_dims = bind_operand_dims(context)
    (channel,) = (*operand_dims.inputs, *operand_dims.outputs)[sums_at]
    dims = operand_dims.inputs[x_at]
    if dims[-1] != channel:
        return None
    shards = (*context.inputs, *context.outputs)
    channels = operand_dims.sizes[channel]
    rows = shards[x_at].size // max(channels, 1)
    numbers: list[float] = []
    if context.kind != "channel_sums":
        numbers.append(prod(shards[x_at].global_shape) // prod(shards[sums_at].global_shape))
    if has_epsilon:
        numbers.append(context.number("epsilon", 1e-5))
    room = np.empty(function("sums_room")(channels), np.float32)
    run = function(context.kind)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        addresses = (array.ctypes.data for array in (*inputs, *outputs))
        run(*addresses, rows, channels, room.ctypes.data, *numbers)

    return kernel


def max_pool(context: KernelContext) -> Kernel | None:
    """Kernel of the largest of every window, or of its gradient; None for other orders of dims."""
    image, pooled = context.inputs[0], context.outputs[0]
    if context.kind == "max_pool_grad":
        pooled = context.inputs[1]
    attributes = context.attributes
    is_dilated = any(attributes.get(f"dilation_{dim}", 1) != 1 for dim in "yx")
    if rows_of_pooling(context) != 1 or is_dilated:
        return None
    names = ("size_y", "size_x", "stride_y", "stride_x", "pad_y", "pad_x")
    sizes = (image.shape[0], image.shape[3], *image.shape[1:3], *pooled.shape[1:3])
    pooling = (ctypes.c_long * 12)(*sizes, *(int(attributes[name]) for name in names))
    run = function(context.kind)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        addresses = (array.ctypes.data for array in (*inputs, *outputs))
        run(*addresses, ctypes.addressof(pooling))

    return kernel
