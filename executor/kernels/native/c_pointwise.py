"""Pointwise kernels in C: factories of functions of every element, of sums and of copies."""

from collections.abc import Sequence
from math import prod

import numpy as np

from millrace.executor.kernels.context import Array, Kernel, KernelContext
from millrace.executor.kernels.dims import bind_operand_dims
from millrace.executor.kernels.elementwise.functions import erf_fit
from millrace.executor.kernels.native.c_library import function

PLAIN = (
    "gelu",
    "gelu_grad",
    "relu",
    "relu_grad",
    "silu",
    "silu_grad",
    "swiglu",
    "swiglu_grad",
)
WITH_FIT = ("gelu_erf", "gelu_erf_grad")


def plain(context: KernelContext) -> Kernel:
    """Kernel of the function in C that has the op's name, of arrays of one size."""
    run, size = function(context.kind), context.outputs[0].size

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        run(*(array.ctypes.data for array in (*inputs, *outputs)), size)

    return kernel


def with_fit(context: KernelContext) -> Kernel:
    """Kernel of GELU in its exact form, or of its gradient."""
    run, size = function(context.kind), context.outputs[0].size
    fit = np.array(erf_fit("float32"), np.float32)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        run(*(array.ctypes.data for array in (*inputs, *outputs)), size, fit.ctypes.data)

    return kernel


def scale(context: KernelContext) -> Kernel:
    """Kernel of x times the attribute `factor`."""
    run, size = function("scale"), context.outputs[0].size
    factor = context.number("factor", 1.0)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        run(inputs[0].ctypes.data, outputs[0].ctypes.data, size, factor)

    return kernel


def add(context: KernelContext) -> Kernel | None:
    """Kernel of a sum of tensors of one order, the last of which may be a row for all rows.

    None for other orders.
    """
    dims = bind_operand_dims(context)
    (output,) = dims.outputs
    first, *others = dims.inputs
    *alike, last = others
    columns = prod(dims.sizes[label] for label in last)
    is_row = last != output
    ends_so = not last or output[-len(last) :] == last
    if first != output or any(operand != output for operand in alike) or not ends_so:
        return None
    size = context.outputs[0].size
    run, run_row = function("add"), function("add_row")
    rows = size // max(columns, 1)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        target = outputs[0].ctypes.data
        total = inputs[0].ctypes.data
        for term in inputs[1:-1]:
            run(total, term.ctypes.data, target, size)
            total = target
        if is_row:
            run_row(total, inputs[-1].ctypes.data, target, rows, columns)
        else:
            run(total, inputs[-1].ctypes.data, target, size)

    return kernel


def accumulate(context: KernelContext) -> Kernel:
    """Kernel of the sum over the firings that share one version of the output."""
    hold, size = context.output_hold, context.outputs[0].size
    run_add, run_copy = function("add"), function("copy")

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        source, target = inputs[0].ctypes.data, outputs[0].ctypes.data
        if firing % hold == 0:
            run_copy(source, target, size)
        else:
            run_add(target, source, target, size)

    return kernel


def sum_(context: KernelContext) -> Kernel | None:
    """Kernel of a sum over all dims but the last ones; None for other sums."""
    dims = bind_operand_dims(context)
    (source,), (target,) = dims.inputs, dims.outputs
    if not target or source[-len(target) :] != target:
        return None
    columns = context.outputs[0].size
    rows = context.inputs[0].size // max(columns, 1)
    run = function("sum_rows")

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        run(inputs[0].ctypes.data, outputs[0].ctypes.data, rows, columns)

    return kernel
