"""Optimizer kernels in C: factories of sums of squares and AdamW."""

from collections.abc import Sequence
from math import sqrt

from millrace.executor.kernels.context import Array, Kernel, KernelContext
from millrace.executor.kernels.native.c_library import function
from millrace.executor.kernels.optimizer import OptimizerState, gradient_scale


def squared_sum(context: KernelContext) -> Kernel:
    """Kernel of the sum of squares, added up in float64."""
    run, size = function("squared_sum"), context.inputs[0].size

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0][...] = run(inputs[0].ctypes.data, size)

    return kernel


def adamw(context: KernelContext) -> Kernel:
    """Kernel of the next value of a variable, from (w, gradient sum, totals, learning rate)."""
    run, state = function("adamw"), OptimizerState(context)
    beta1, beta2 = context.number("beta1", 0.9), context.number("beta2", 0.95)
    epsilon, decay = context.number("epsilon", 1e-8), context.number("weight_decay", 0.0)
    clip_norm = context.number("clip_norm", 0.0)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        context.run.record_totals(firing, inputs[2])
        scale, rate = gradient_scale(inputs[2], clip_norm), float(inputs[3])
        steps = context.run.first_step + firing + 1
        correction = sqrt(1 - beta2**steps)
        pace = rate * correction / (1 - beta1**steps)
        addresses = [array.ctypes.data for array in (inputs[0], inputs[1], outputs[0])]
        for piece, moments in state.pieces():
            w, gradient, target = (address + piece.start * 4 for address in addresses)
            first, second = (moment.ctypes.data for moment in moments)
            run(
                *(w, gradient, first, second, target, piece.stop - piece.start),
                *(scale, beta1, beta2, epsilon * correction, pace, 1 - rate * decay),
            )

    return kernel
