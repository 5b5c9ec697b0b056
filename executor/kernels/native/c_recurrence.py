"""Recurrence in C: factories of the state-space scan, the delta rule and their gradients."""

import ctypes
from collections.abc import Sequence
from math import ceil

import numpy as np

from millrace.executor.kernels.context import Array, Kernel, KernelContext
from millrace.executor.kernels.native.c_library import function
from millrace.executor.kernels.sequence.recurrence import recurrence_sizes

KINDS = ("state_space_scan", "state_space_scan_grad", "delta_rule", "delta_rule_grad")


def recurrence(context: KernelContext) -> Kernel:
    """Kernel of a recurrence or its gradient, whose heads share out the processor's threads."""
    sizes = recurrence_sizes(context)
    is_gradient = context.kind.endswith("_grad")
    area = sizes.key_dim * sizes.value_dim
    room = sizes.repeats * (area + sizes.value_dim)
    if is_gradient:
        chunks = ceil(sizes.tokens / sizes.chunk)
        room = (chunks + sizes.chunk + 3) * area + 2 * sizes.value_dim
    scratch = np.empty(sizes.samples * sizes.groups * room, np.float32)
    numbers = (ctypes.c_long * 8)(
        *(sizes.samples, sizes.tokens, sizes.groups, sizes.repeats),
        *(sizes.key_dim, sizes.value_dim, int(sizes.by_row), sizes.chunk),
    )
    run = function("recurrence_grad" if is_gradient else "recurrence")
    reads = len(context.inputs) - int(is_gradient)
    lacks = [] if sizes.corrects else [None]  # beta, and its gradient

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        reading, writing = ([array.ctypes.data for array in side] for side in (inputs, outputs))
        places = [
            *reading[:reads],
            *lacks,
            *reading[reads:],
            *writing,
            *(lacks if is_gradient else []),
        ]
        run(*places, ctypes.addressof(numbers), scratch.ctypes.data)

    return kernel
