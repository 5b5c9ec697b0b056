"""Kernels that work element by element: add, cast, accumulate, relu, gelu and their gradients.

Those of many passes go chunk by chunk, so that only the first and last pass touch memory.
"""

from collections.abc import Sequence
from math import pi, sqrt

import numpy as np

from executor.kernels.chunks import chunks, scratch
from executor.kernels.context import Array, Kernel, KernelContext
from executor.kernels.dims import layout

_GELU_SCALE = sqrt(2 / pi)  # tanh form of GELU: Hendrycks and Gimpel 2016, section 2
_GELU_CUBIC = 0.044715  # the same


def add(context: KernelContext) -> Kernel:
    """Return the sum of two or more tensors, broadcast by label."""
    found = layout(context)
    (output,) = found.outputs
    split = tuple(found.sizes[label] for label in output)
    forms = []
    for dims in found.inputs:
        apart = tuple(found.sizes[label] for label in dims)
        order = tuple(dims.index(label) for label in output if label in dims)
        spread = tuple(found.sizes[label] if label in dims else 1 for label in output)
        forms.append((apart, order, spread))

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        target = outputs[0].reshape(split)
        terms = [
            array.reshape(apart).transpose(order).reshape(spread)
            for array, (apart, order, spread) in zip(inputs, forms, strict=True)
        ]
        np.add(terms[0], terms[1], out=target)
        for term in terms[2:]:
            np.add(target, term, out=target)

    return kernel


def cast(context: KernelContext) -> Kernel:
    """Return the same values in another dtype."""

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        np.copyto(outputs[0], inputs[0], casting="same_kind")

    return kernel


def accumulate(context: KernelContext) -> Kernel:
    """Return the sum over the firings that share one version of the output."""
    hold = context.output_hold

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        if firing % hold == 0:
            np.copyto(outputs[0], inputs[0], casting="same_kind")
        else:
            np.add(outputs[0], inputs[0], out=outputs[0], casting="same_kind")

    return kernel


def relu(context: KernelContext) -> Kernel:
    """Return max(x, 0)."""

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        np.maximum(inputs[0], 0, out=outputs[0])

    return kernel


def relu_grad(context: KernelContext) -> Kernel:
    """Return dy where x > 0, else 0, of (x, dy)."""
    size = context.outputs[0].size
    (positive,) = scratch(1, size, "bool")

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        x, dy, dx = inputs[0].reshape(-1), inputs[1].reshape(-1), outputs[0].reshape(-1)
        for part in chunks(size):
            mask = positive[: part.stop - part.start]
            np.greater(x[part], 0, out=mask)
            np.multiply(dy[part], mask, out=dx[part])

    return kernel


def _tanh_of_gelu(x: Array, square: Array, out: Array) -> None:
    """Leave x² in `square` and tanh(√(2/π) (x + 0.044715 x³)) in `out`; no power is taken."""
    np.multiply(x, x, out=square)
    np.multiply(square, _GELU_SCALE * _GELU_CUBIC, out=out)
    np.add(out, _GELU_SCALE, out=out)
    np.multiply(out, x, out=out)
    np.tanh(out, out=out)


def gelu(context: KernelContext) -> Kernel:
    """Return GELU in the tanh form that GPT-2 uses."""
    size = context.outputs[0].size
    squares, tanhs = scratch(2, size, context.outputs[0].dtype)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        flat, result = inputs[0].reshape(-1), outputs[0].reshape(-1)
        for part in chunks(size):
            x, y = flat[part], result[part]
            square, tanh = squares[: x.size], tanhs[: x.size]
            _tanh_of_gelu(x, square, tanh)
            np.add(tanh, 1, out=tanh)
            np.multiply(tanh, 0.5, out=tanh)
            np.multiply(tanh, x, out=y)

    return kernel


def gelu_grad(context: KernelContext) -> Kernel:
    """Return dy · gelu'(x) of (x, dy)."""
    size = context.outputs[0].size
    squares, tanhs, slopes = scratch(3, size, context.outputs[0].dtype)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        flat, flat_dy, result = (a.reshape(-1) for a in (inputs[0], inputs[1], outputs[0]))
        for part in chunks(size):
            x, dx = flat[part], result[part]
            square, tanh, slope = squares[: x.size], tanhs[: x.size], slopes[: x.size]
            _tanh_of_gelu(x, square, tanh)
            # gelu' = (1 + tanh) / 2 · (1 + x (1 - tanh) u'), u' = √(2/π) (1 + 3 · 0.044715 x²)
            np.multiply(square, 3 * _GELU_CUBIC * _GELU_SCALE, out=square)
            np.add(square, _GELU_SCALE, out=square)
            np.multiply(square, x, out=square)
            np.subtract(1, tanh, out=slope)
            np.multiply(slope, square, out=slope)
            np.add(slope, 1, out=slope)
            np.add(tanh, 1, out=tanh)
            np.multiply(tanh, 0.5, out=tanh)
            np.multiply(slope, tanh, out=slope)
            np.multiply(slope, flat_dy[part], out=dx)

    return kernel
