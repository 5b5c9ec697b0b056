"""Elementwise kernels: their factories by op kind."""

from millrace.executor.cuda.kernels.context import CallsFactory
from millrace.executor.cuda.kernels.elementwise import arithmetic, dropout, pointwise

ELEMENTWISE: dict[str, CallsFactory] = pointwise.POINTWISE | {
    "accumulate": arithmetic.accumulate,
    "add": arithmetic.add,
    "cast": arithmetic.cast,
    "dropout": dropout.dropout,
    "mul": arithmetic.mul,
    "prelu": pointwise.prelu,
    "prelu_grad": pointwise.prelu_grad,
    "quantise": arithmetic.cast,
    "scale": arithmetic.scale,
    "shift": arithmetic.shift,
    **dict.fromkeys(("swiglu", "clamped_swiglu"), pointwise.swiglu),
    **dict.fromkeys(("swiglu_grad", "clamped_swiglu_grad"), pointwise.swiglu_grad),
}
