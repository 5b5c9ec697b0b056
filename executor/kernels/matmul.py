"""matmul: any einsum of two operands, as one matrix product wherever the dims allow it.

Labels fall into four classes: batch (in both operands and the output), left and right (in one
operand and the output) and contracted (in both operands only). Each operand is seen as
(batch…, left, contracted) or (batch…, contracted, right), where left, right and contracted are
several dims merged into one. On contiguous arrays that merge is nearly always a view; where it is
not, the operand is copied to scratch once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np

from millrace.executor.errors import ExecutorError
from millrace.executor.kernels.context import Array, Kernel, KernelContext
from millrace.executor.kernels.dims import Dims, OperandDims, bind_operand_dims
from millrace.executor.kernels.onednn.dnnl_product import matrix_product


@dataclass(frozen=True, slots=True, kw_only=True)
class _View:
    """View of an array as a stack of matrices: split dims, reorder them, merge them.

    `scratch` holds the matrices where the merge is not a view.
    """

    split: tuple[int, ...]
    order: tuple[int, ...]
    merged: tuple[int, ...]
    scratch: Array | None

    def read(self, array: Array) -> Array:
        """Matrices of an array."""
        apart = self.apart(array)
        if self.scratch is None:
            return apart.reshape(self.merged)
        np.copyto(self.scratch.reshape(apart.shape), apart)
        return self.scratch

    def sample(self, dtype: str) -> Array:
        """Matrices in their shape and strides, of no values."""
        return self.read(np.empty(self.split, dtype)) if self.scratch is None else self.scratch

    def apart(self, array: Array) -> Array:
        """Array with the dims of the matrices in order, not yet merged."""
        return array.reshape(self.split).transpose(self.order)


def _view(dims: Dims, groups: tuple[Dims, ...], sizes: dict[str, int], dtype: str) -> _View:
    """Plan the view of an operand with `dims` that merges each of `groups` into one dim."""
    split = tuple(sizes[label] for label in dims)
    order = tuple(dims.index(label) for group in groups for label in group)
    merged = tuple(prod(sizes[label] for label in group) for group in groups)
    sample = np.empty(split, dtype)
    is_view = np.may_share_memory(sample, sample.transpose(order).reshape(merged))
    scratch = None if is_view else np.empty(merged, dtype)
    return _View(split=split, order=order, merged=merged, scratch=scratch)


class ProductClasses(NamedTuple):
    """The labels of a product by class, in an order that needs few copies."""

    batch: Dims
    left: Dims
    contracted: Dims
    right: Dims


def product_classes(context: KernelContext, operand_dims: OperandDims) -> ProductClasses:
    """Labels of an einsum of two operands by class.

    Raises
    ------
    ExecutorError
        The expression has not two operands and one output, repeats a label inside one, or has a
        label that one of the three holds alone.
    """
    if len(operand_dims.inputs) != 2 or len(operand_dims.outputs) != 1:
        raise ExecutorError(
            f"matmul needs two operands, found `{context.labels}`", actor=context.name
        )
    left_operand, right_operand = operand_dims.inputs
    (output,) = operand_dims.outputs
    batch = tuple(x for x in output if x in left_operand and x in right_operand)
    left = tuple(x for x in output if x in left_operand and x not in right_operand)
    right = tuple(x for x in output if x in right_operand and x not in left_operand)
    contracted = tuple(x for x in left_operand if x in right_operand and x not in output)
    classes_of_operands = (
        (batch, left, contracted),
        (batch, right, contracted),
        (batch, left, right),
    )
    for operand, groups in zip((*operand_dims.inputs, output), classes_of_operands, strict=True):
        expected = {label for group in groups for label in group}
        if len(set(operand)) != len(operand) or set(operand) != expected:
            raise ExecutorError(
                f"matmul cannot compute `{context.labels}`: a label is repeated inside an operand "
                f"or held by one operand alone; sum it with an op `sum` first",
                actor=context.name,
            )
    return ProductClasses(batch, left, contracted, right)


def matmul(context: KernelContext) -> Kernel:
    """Kernel of any einsum of two operands.

    Raises
    ------
    ExecutorError
        The expression has not two operands, repeats a label inside one, or has a label that only
        one operand holds and the output does not.
    """
    operand_dims = bind_operand_dims(context)
    batch, left, contracted, right = product_classes(context, operand_dims)
    stack = tuple((label,) for label in batch)
    dtype = context.outputs[0].dtype
    sizes = operand_dims.sizes
    first = _view(
        operand_dims.inputs[0], (*stack, left, contracted), sizes, context.inputs[0].dtype
    )
    second = _view(
        operand_dims.inputs[1], (*stack, contracted, right), sizes, context.inputs[1].dtype
    )
    result = _view(operand_dims.outputs[0], (*stack, left, right), sizes, dtype)
    samples = (view.sample(dtype) for view in (first, second, result))
    product = matrix_product(*samples) or np.matmul

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        left_matrices, right_matrices = first.read(inputs[0]), second.read(inputs[1])
        target = result.apart(outputs[0])
        if result.scratch is None:
            product(left_matrices, right_matrices, target.reshape(result.merged))
        else:
            # the output interleaves dims of the left and of the right operand
            product(left_matrices, right_matrices, result.scratch)
            np.copyto(target, result.scratch.reshape(target.shape))

    return kernel
