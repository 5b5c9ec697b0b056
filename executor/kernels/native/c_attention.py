"""Attention and its gradient in C, without windows and without a change of scores."""

import ctypes
from collections.abc import Sequence

import numpy as np

from millrace.executor.kernels.attention.geometry import Geometry, geometry
from millrace.executor.kernels.attention.groups import grouped
from millrace.executor.kernels.context import Array, Kernel, KernelContext
from millrace.executor.kernels.native.c_library import function
from millrace.executor.kernels.native.threads import thread_count


def attention(context: KernelContext) -> Kernel | None:
    """Kernel of attention or its gradient; None for the forms that NumPy alone computes."""
    grouped_context = grouped(context)
    query = grouped_context.inputs[0]
    width = function("vector_width")()
    if query.shape[-1] % width or grouped_context.inputs[2].shape[-1] % width:
        return None
    if any(context.attributes.get(name) for name in ("window", "alibi", "cap")):
        return None
    sizes = geometry(grouped_context)
    if any(block.blind for block in sizes.blocks):
        return None
    is_causal = bool(context.attributes.get("causal", True))
    numbers = _numbers(sizes, is_causal)
    scratch = np.empty(function("attention_scratch")(numbers) * thread_count(), np.float32)
    run, scale = function(context.kind), sizes.scale

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        run(
            *(array.ctypes.data for array in (*inputs, *outputs)),
            *(ctypes.addressof(numbers), scale, scratch.ctypes.data),
        )

    return kernel


def _numbers(sizes: Geometry, is_causal: bool) -> ctypes.Array[ctypes.c_long]:
    """Fields of `Geometry` in C."""
    values = (sizes.samples, sizes.queries, sizes.keys, sizes.groups, sizes.repeats)
    offset = sizes.blocks[0].first
    rest = (sizes.head_dim, sizes.value_dim, int(is_causal), offset)
    return (ctypes.c_long * 9)(*values, *rest)
