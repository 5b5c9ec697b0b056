"""Arithmetic: sums, products, casts; one pass over memory each, broadcast by label."""

from collections.abc import Sequence
from string import ascii_letters
from typing import NamedTuple

import numpy as np

from millrace.executor.kernels.context import Array, Kernel, KernelContext
from millrace.executor.kernels.dims import Dims, OperandDims, bind_operand_dims


class Spread(NamedTuple):
    """View of an array against an output with more labels: split, transpose, add dims."""

    split: tuple[int, ...]
    order: tuple[int, ...]
    shape: tuple[int, ...]

    def view(self, array: Array) -> Array:
        """Array with a dim (of size one where it lacks it) per label of the output."""
        return array.reshape(self.split).transpose(self.order).reshape(self.shape)


def spread(dims: Dims, output: Dims, sizes: dict[str, int]) -> Spread:
    """Plan the view of an operand with `dims` that broadcasts against `output`."""
    return Spread(
        split=tuple(sizes[label] for label in dims),
        order=tuple(dims.index(label) for label in output if label in dims),
        shape=tuple(sizes[label] if label in dims else 1 for label in output),
    )


def add(context: KernelContext) -> Kernel:
    """Kernel of the sum of two or more tensors, broadcast by label."""
    operand_dims = bind_operand_dims(context)
    (output,) = operand_dims.outputs
    apart = tuple(operand_dims.sizes[label] for label in output)
    forms = [spread(dims, output, operand_dims.sizes) for dims in operand_dims.inputs]

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        target = outputs[0].reshape(apart)
        terms = [form.view(array) for form, array in zip(forms, inputs, strict=True)]
        np.add(terms[0], terms[1], out=target)
        for term in terms[2:]:
            np.add(target, term, out=target)

    return kernel


def mul(context: KernelContext) -> Kernel:
    """Kernel of the product of two tensors, broadcast by label and summed over what is missing."""
    operand_dims = bind_operand_dims(context)
    (output,) = operand_dims.outputs
    apart = tuple(operand_dims.sizes[label] for label in output)
    if any(label not in output for dims in operand_dims.inputs for label in dims):
        return _summed_product(context, operand_dims)
    first, second = (spread(dims, output, operand_dims.sizes) for dims in operand_dims.inputs)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        np.multiply(
            first.view(inputs[0]),
            second.view(inputs[1]),
            out=outputs[0].reshape(apart),
            casting="same_kind",
        )

    return kernel


def _summed_product(context: KernelContext, operand_dims: OperandDims) -> Kernel:
    """Kernel of a product of which some labels are summed; no product is stored."""
    labels = sorted(
        {label for dims in (*operand_dims.inputs, *operand_dims.outputs) for label in dims}
    )
    letters = dict(zip(labels, ascii_letters, strict=False))
    first, second, output = (
        "".join(letters[label] for label in dims)
        for dims in (*operand_dims.inputs, *operand_dims.outputs)
    )
    text = f"{first},{second}->{output}"
    shapes = [
        tuple(operand_dims.sizes[label] for label in dims)
        for dims in (*operand_dims.inputs, *operand_dims.outputs)
    ]

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        np.einsum(
            text,
            inputs[0].reshape(shapes[0]),
            inputs[1].reshape(shapes[1]),
            out=outputs[0].reshape(shapes[2]),
            casting="same_kind",
        )

    return kernel


def scale(context: KernelContext) -> Kernel:
    """Kernel of x times the attribute `factor`."""
    factor = float(context.attributes["factor"])

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        np.multiply(inputs[0], factor, out=outputs[0])

    return kernel


def shift(context: KernelContext) -> Kernel:
    """Kernel of x plus the attribute `value`."""
    value = float(context.attributes["value"])

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        np.add(inputs[0], value, out=outputs[0])

    return kernel


def cast(context: KernelContext) -> Kernel:
    """Kernel of the input's values in another dtype."""

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        np.copyto(outputs[0], inputs[0], casting="same_kind")

    return kernel


def accumulate(context: KernelContext) -> Kernel:
    """Kernel of the sum over the firings that share one version of the output."""
    hold = context.output_hold

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        if firing % hold == 0:
            np.copyto(outputs[0], inputs[0], casting="same_kind")
        else:
            np.add(outputs[0], inputs[0], out=outputs[0], casting="same_kind")

    return kernel
