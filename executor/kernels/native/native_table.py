"""The table of kernels in C: a factory per op kind, which gives None for what NumPy computes."""

from collections.abc import Callable

from millrace.executor.kernels.context import Kernel, KernelContext
from millrace.executor.kernels.native import c_attention, c_optimizer, c_pointwise, c_rows
from millrace.executor.kernels.native.c_library import is_available

NativeFactory = Callable[[KernelContext], Kernel | None]

NATIVE: dict[str, NativeFactory] = {
    "accumulate": c_pointwise.accumulate,
    "adamw": c_optimizer.adamw,
    "add": c_pointwise.add,
    "attention": c_attention.attention,
    "attention_grad": c_attention.attention,
    "cross_entropy": c_rows.cross_entropy,
    "cross_entropy_grad": c_rows.cross_entropy_grad,
    "scale": c_pointwise.scale,
    "squared_sum": c_optimizer.squared_sum,
    "sum": c_pointwise.sum_,
    **dict.fromkeys(c_pointwise.PLAIN, c_pointwise.plain),
    **dict.fromkeys(c_pointwise.WITH_FIT, c_pointwise.with_fit),
    **dict.fromkeys(c_rows.NORMS, c_rows.norm),
    **dict.fromkeys(c_rows.NORM_GRADIENTS, c_rows.norm_gradient),
}

_DTYPES = {"float32", "int32"}
_FLOAT64_OUTPUTS = {"squared_sum"}
_FLOAT64_INPUTS = {"adamw"}


def native_kernel(context: KernelContext) -> Kernel | None:
    """Kernel in C of an actor; None where NumPy's is to be taken."""
    factory = NATIVE.get(context.kind)
    if factory is None:
        return None
    inputs = context.inputs[:2] if context.kind in _FLOAT64_INPUTS else context.inputs
    outputs = () if context.kind in _FLOAT64_OUTPUTS else context.outputs
    if any(shard.dtype not in _DTYPES for shard in (*inputs, *outputs)):
        return None
    return factory(context) if is_available() else None
