"""Row kernels in C: factories of norms, of rotary positions and of cross-entropy."""

from collections.abc import Sequence

import numpy as np

from millrace.executor.kernels.chunks import rows_of
from millrace.executor.kernels.context import Array, Kernel, KernelContext
from millrace.executor.kernels.native.c_library import function
from millrace.executor.kernels.sequence.rotary import shape_and_turning

NORMS = ("layer_norm", "rms_norm")
NORM_GRADIENTS = (
    "layer_norm_grad_input",
    "layer_norm_grad_weight",
    "rms_norm_grad_input",
    "rms_norm_grad_weight",
)


def norm(context: KernelContext) -> Kernel:
    """Kernel of a norm of every row, which leaves what its gradient reads."""
    run = function(context.kind)
    rows, columns, _ = rows_of(context)
    epsilon = context.number("epsilon", 1e-5)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        run(*(array.ctypes.data for array in (*inputs, *outputs)), rows, columns, epsilon)

    return kernel


def norm_gradient(context: KernelContext) -> Kernel:
    """Kernel of a norm's gradient by what it reads, or by its weights."""
    run = function(context.kind)
    rows, columns, _ = rows_of(context)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        run(*(array.ctypes.data for array in (*inputs, *outputs)), rows, columns)

    return kernel


def rotary(context: KernelContext) -> Kernel:
    """Kernel of pairs of features, turned by the angle of their position."""
    run = function("rotary")
    shape, turning = shape_and_turning(context)
    cosines, sines = (table.astype(np.float32) for table in turning.tables())
    sizes = (*shape, turning.dims // 2, int(bool(context.attributes["interleaved"])))

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        arrays = (inputs[0], outputs[0], cosines, sines)
        run(*(array.ctypes.data for array in arrays), *sizes)

    return kernel


def cross_entropy(context: KernelContext) -> Kernel:
    """Kernel of loss and logsumexp of every row."""
    run = function("cross_entropy")
    rows, columns, _ = rows_of(context)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        run(*(array.ctypes.data for array in (*inputs, *outputs)), rows, columns)

    return kernel


def cross_entropy_grad(context: KernelContext) -> Kernel:
    """Kernel of softmax(logits) minus the one-hot target; the vocabulary may be split."""
    run = function("cross_entropy_grad")
    rows, columns, _ = rows_of(context)
    first = context.inputs[0].offsets[-1]

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        run(*(array.ctypes.data for array in (*inputs, *outputs)), rows, columns, first)

    return kernel
