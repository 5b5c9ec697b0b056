"""Factories of norms and of cross-entropy, row by row."""

from collections.abc import Sequence

from millrace.executor.kernels.chunks import rows_of
from millrace.executor.kernels.context import Array, Kernel, KernelContext
from millrace.executor.kernels.native.c_library import function

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
