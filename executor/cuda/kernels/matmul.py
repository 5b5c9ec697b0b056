"""Matmul: calls of any einsum of two operands, as products of the vendor's library where it can.

Labels fall into four classes: batch (in both operands and the output), left and right (in one
operand and the output) and contracted (in both operands only). Labels of a class that lie in the
same order everywhere, without gaps, merge into one of one stride. Where left, contracted and right
are one label each and the dtypes suit, there is one product per index of the batch labels that do
not merge with the longest; else a kernel of ours goes by tables of offsets.
"""

from collections.abc import Mapping, Sequence
from itertools import product as indices
from math import ceil, prod
from typing import NamedTuple

import numpy as np

from millrace.executor.cuda.calls import (
    Calls,
    Launch,
    Matrices,
    Operand,
    ProductCall,
    read,
    same_calls,
    table,
    types,
    write,
)
from millrace.executor.errors import ExecutorError
from millrace.executor.kernels.context import Array, KernelContext, RunState, Shard
from millrace.executor.kernels.dims import Dims, bind_operand_dims
from millrace.executor.kernels.matmul import ProductClasses, product_classes
from millrace.models.fp8 import ARITHMETIC, NARROW
from millrace.models.graph import ITEMSIZE

SOURCE = "contract"
TILE = 64  # rows and columns of d that a block of `contract` makes
THREADS = 256
PRODUCTS_MAX = 64  # products of one firing; more are slower than one launch of `contract`
GRID_MAX = 2**31 - 1  # blocks along x (CUDA C++ Programming Guide, compute capabilities)
DIM_MAX = 2**31 - 1  # cublasLt.h: usually, rows and columns that an int32 expresses

# Dtypes of operands and result that the vendor's library multiplies (cublasLtMatmul's table).
LIBRARY = {
    ("float64", "float64"),
    ("float32", "float32"),
    ("bfloat16", "bfloat16"),
    ("bfloat16", "float32"),
    ("float16", "float16"),
    ("float16", "float32"),
}
_ARITHMETIC = {"float64": "fp64", "bfloat16": "bf16", "float16": "fp16"}

Strides = Mapping[str, int]
"""Stride of every label in one operand, in elements."""


def matmul(context: KernelContext) -> Calls:
    """Calls of any einsum of two operands.

    Raises
    ------
    ExecutorError
        The product is one in 8 bits; or the expression has not two operands, repeats a label inside
        one, or has a label that only one operand holds and the output does not.
    """
    products = library_products(context)
    return same_calls(*products) if products else _contract(context)


def library_products(context: KernelContext) -> tuple[ProductCall, ...]:
    """Products of the library that make an einsum; none where it cannot.

    Raises
    ------
    ExecutorError
        As `matmul`.
    """
    if context.attributes.get(ARITHMETIC) in NARROW:
        raise ExecutorError(
            f"a product in {context.attributes[ARITHMETIC]} has no CUDA kernel; plan with "
            f"`--precision bf16`",
            actor=context.name,
        )
    return _products(context, *_classified(context))


def library_multiplies(operands: str, result: str) -> bool:
    """True if the library multiplies operands of one dtype into a result of another."""
    return (operands, result) in LIBRARY


def _classified(
    context: KernelContext,
) -> tuple[ProductClasses, Mapping[str, int], Sequence[Strides]]:
    """Labels by class, their sizes, and their strides in every operand."""
    einsum = bind_operand_dims(context)
    classes = product_classes(context, einsum)
    shards = (*context.inputs, *context.outputs)
    strides = [
        _strides(dims, einsum.sizes, shard)
        for dims, shard in zip((*einsum.inputs, *einsum.outputs), shards, strict=True)
    ]
    return classes, einsum.sizes, strides


def arithmetic_of(dtype: str, run: RunState) -> str:
    """Arithmetic of products of operands of `dtype` (`ProductCall.arithmetic`)."""
    return run.arithmetic if dtype == "float32" else _ARITHMETIC[dtype]


class _Merged(NamedTuple):
    """Labels merged into one, and its stride in every operand that has it."""

    size: int
    strides: tuple[int, ...]


class _Side(NamedTuple):
    """Matrices of [rows, columns] inside an operand, one for every index of the batch labels."""

    operand: Operand
    dtype: str
    shape: tuple[int, int]
    strides: tuple[int, int]
    batch_strides: tuple[int, ...]

    @property
    def transposed(self) -> "_Side":
        """Side over the same memory with rows and columns exchanged."""
        return self._replace(shape=self.shape[::-1], strides=self.strides[::-1])

    @property
    def steps(self) -> tuple[int, int]:
        """Strides of rows and columns; that of a single one is free: the library wants a 1."""
        (rows, columns), (of_row, of_column) = self.shape, self.strides
        if columns == 1:
            return max(of_row, 1), 1
        if rows == 1:
            return columns if of_column == 1 else 1, of_column
        return of_row, of_column

    def matrices(self, outer: Sequence[int]) -> Matrices:
        """Matrices at these indices of all batch labels but the last."""
        offset = sum(
            index * stride for index, stride in zip(outer, self.batch_strides, strict=False)
        )
        operand = self.operand._replace(offset_bytes=offset * ITEMSIZE[self.dtype])
        return Matrices(operand, self.dtype, *self.steps, self.batch_strides[-1])


def _strides(dims: Dims, sizes: Mapping[str, int], shard: Shard) -> dict[str, int]:
    """Strides of an operand that is contiguous, but for a pitch of its rows."""
    strides = {
        label: prod(sizes[inner] for inner in dims[axis + 1 :]) for axis, label in enumerate(dims)
    }
    if shard.pitch:
        row = shard.shape[-1]
        return {
            label: stride // row * shard.pitch if stride >= row and stride % row == 0 else stride
            for label, stride in strides.items()
        }
    return strides


def _merged(labels: Dims, sizes: Mapping[str, int], *operands: Strides) -> list[_Merged]:
    """Labels of one class, merged wherever they follow each other in every operand.

    Only the order from the longest stride to the shortest can merge.
    """
    merged_labels: list[_Merged] = []
    long = [label for label in labels if sizes[label] != 1]
    for label in sorted(long, key=lambda label: -operands[0][label]):
        size, strides = sizes[label], tuple(strides[label] for strides in operands)
        if merged_labels and merged_labels[-1].strides == tuple(
            size * stride for stride in strides
        ):
            size *= merged_labels.pop().size
        merged_labels.append(_Merged(size, strides))
    return merged_labels


def _products(
    context: KernelContext,
    classes: ProductClasses,
    sizes: Mapping[str, int],
    strides: Sequence[Strides],
) -> tuple[ProductCall, ...]:
    """Products that make the einsum; none where the library cannot."""
    a, b, d = strides
    dtype, other_dtype, result_dtype = (
        shard.dtype for shard in (*context.inputs, *context.outputs)
    )
    if dtype != other_dtype or (dtype, result_dtype) not in LIBRARY:
        return ()
    left = _merged(classes.left, sizes, a, d) or [_Merged(1, (0, 0))]
    contracted = _merged(classes.contracted, sizes, a, b) or [_Merged(1, (0, 0))]
    right = _merged(classes.right, sizes, b, d) or [_Merged(1, (0, 0))]
    batch = _merged(classes.batch, sizes, a, b, d) or [_Merged(1, (0, 0, 0))]
    batch.sort(key=lambda merged: merged.size)  # The sort is stable; the longest comes last.
    *outer, inner = batch
    if max(len(left), len(contracted), len(right)) > 1 or (
        prod(merged.size for merged in outer) > PRODUCTS_MAX
    ):
        return ()
    m, k, n = left[0], contracted[0], right[0]
    stacks = list(zip(*(merged.strides for merged in batch), strict=True))
    left_side = _Side(read(0), dtype, (m.size, k.size), (m.strides[0], k.strides[0]), stacks[0])
    right_side = _Side(read(1), dtype, (k.size, n.size), (k.strides[1], n.strides[0]), stacks[1])
    target = _Side(
        write(0), result_dtype, (m.size, n.size), (m.strides[1], n.strides[1]), stacks[2]
    )
    if target.steps[1] != 1:  # The transposed product has contiguous rows.
        left_side, right_side = right_side.transposed, left_side.transposed
        target = target.transposed
    fits = 1 in left_side.steps and 1 in right_side.steps and target.steps[1] == 1
    if not fits or max(m.size, k.size, n.size, inner.size) > DIM_MAX:
        return ()
    return tuple(
        ProductCall(
            left_side.matrices(index),
            right_side.matrices(index),
            target.matrices(index),
            m=target.shape[0],
            n=target.shape[1],
            k=k.size,
            batch=inner.size,
            arithmetic=arithmetic_of(dtype, context.run),
        )
        for index in indices(*(range(merged.size) for merged in outer))
    )


def _contract(context: KernelContext) -> Calls:
    """Calls of one launch of our own kernel, whose blocks make tiles of the output."""
    classes, sizes, strides = _classified(context)
    batch, left, contracted, right = classes
    a, b, d = strides
    first, second = 0, 1
    if any(d[label] == 1 and sizes[label] > 1 for label in left):
        # The product is transposed, so that neighbouring threads write neighbours.
        left, right, a, b, first, second = right, left, b, a, 1, 0
    counts = [prod(sizes[label] for label in labels) for labels in (batch, left, contracted, right)]
    tables = [
        _offsets(labels, sizes, operand)
        for operand, groups in (
            (a, (batch, left, contracted)),
            (b, (batch, contracted, right)),
            (d, (batch, left, right)),
        )
        for labels in groups
    ]
    along = [any(operand[x] == 1 and sizes[x] > 1 for x in contracted) for operand in (a, b)]
    tiles = counts[0] * ceil(counts[1] / TILE) * ceil(counts[3] / TILE)
    launch = Launch(
        SOURCE,
        "contract"
        + types(
            *(context.inputs[number].dtype for number in (first, second)), context.outputs[0].dtype
        ),
        (min(tiles, GRID_MAX), 1, 1),
        (THREADS, 1, 1),
        (
            read(first), read(second), write(0), *(table(number) for number in range(len(tables))),
            *(np.int32(flag) for flag in along), *(np.int64(count) for count in counts),
        ),
    )  # fmt: skip
    return same_calls(launch, tables=tuple(tables))


def _offsets(labels: Dims, sizes: Mapping[str, int], strides: Strides) -> Array:
    """Offset of every index of the labels, the last one fastest, in elements."""
    offsets = np.zeros(1, np.int64)
    for label in labels:
        steps = np.arange(sizes[label], dtype=np.int64) * strides[label]
        offsets = np.add.outer(offsets, steps).reshape(-1)
    return offsets
