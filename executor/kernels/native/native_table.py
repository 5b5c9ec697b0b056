"""The table of kernels in C and by oneDNN: a factory per op kind.

A factory gives None for what NumPy computes.
"""

from collections.abc import Callable

from millrace.executor.kernels.context import Kernel, KernelContext
from millrace.executor.kernels.native import (
    c_attention,
    c_images,
    c_optimizer,
    c_pointwise,
    c_recurrence,
    c_rows,
)
from millrace.executor.kernels.native.c_library import is_available
from millrace.executor.kernels.onednn import dnnl_convolution

NativeFactory = Callable[[KernelContext], Kernel | None]

NATIVE: dict[str, NativeFactory] = {
    "accumulate": c_pointwise.accumulate,
    "adamw": c_optimizer.adamw,
    "add": c_pointwise.add,
    "attention": c_attention.attention,
    "attention_grad": c_attention.attention,
    "cross_entropy": c_rows.cross_entropy,
    "cross_entropy_grad": c_rows.cross_entropy_grad,
    "rotary": c_rows.rotary,
    "scale": c_pointwise.scale,
    "squared_sum": c_optimizer.squared_sum,
    "sum": c_pointwise.sum_,
    "max_pool": c_images.max_pool,
    "max_pool_grad": c_images.max_pool,
    **dict.fromkeys(c_images.BATCH_NORMS, c_images.batch_norm),
    **dict.fromkeys(c_pointwise.PLAIN, c_pointwise.plain),
    **dict.fromkeys(c_pointwise.WITH_FIT, c_pointwise.with_fit),
    **dict.fromkeys(c_recurrence.KINDS, c_recurrence.recurrence),
    **dict.fromkeys(c_rows.NORMS, c_rows.norm),
    **dict.fromkeys(c_rows.NORM_GRADIENTS, c_rows.norm_gradient),
}

BY_LIBRARY: dict[str, NativeFactory] = {
    "conv": dnnl_convolution.conv,
    "conv_grad_input": dnnl_convolution.conv_grad_input,
    "conv_grad_weight": dnnl_convolution.conv_grad_weight,
}

_DTYPES = {"float32", "int32"}
_FLOAT64_OUTPUTS = {"squared_sum"}
_FLOAT64_INPUTS = {"adamw"}


def native_kernel(context: KernelContext) -> Kernel | None:
    """Kernel in C of an actor; None where NumPy's is to be taken."""
    by_library = BY_LIBRARY.get(context.kind)
    factory = by_library or NATIVE.get(context.kind)
    if factory is None:
        return None
    inputs = context.inputs[:2] if context.kind in _FLOAT64_INPUTS else context.inputs
    outputs = () if context.kind in _FLOAT64_OUTPUTS else context.outputs
    if any(shard.dtype not in _DTYPES for shard in (*inputs, *outputs)):
        return None
    return factory(context) if by_library is not None or is_available() else None
