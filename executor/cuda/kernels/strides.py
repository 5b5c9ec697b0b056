"""Strides: where the element of a flat index lies in two operands of other labels or order.

What kernels get is a table of a few numbers, `sources/strides.cuh`. Neighbouring dims are merged
where both operands allow it, so that most tables have one dim or two, and a kernel divides as
seldom as that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from millrace.executor.errors import ExecutorError
from millrace.executor.kernels.context import Array
from millrace.executor.kernels.dims import Dims

DIMS_MAX = 8  # as in sources/strides.cuh
INDEX_32_BITS = 2**31  # elements from which on an index takes 64 bits

Strides = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """Dims that are gone through from the outermost to the innermost, and strides of two operands.

    Parameters
    ----------
    sizes
        Sizes of the dims; at least one, and none of size one but where all are.
    first, second
        Elements between neighbours of every dim, in both operands; 0 where an operand lacks it.
    """

    sizes: tuple[int, ...]
    first: Strides
    second: Strides

    @property
    def count(self) -> int:
        """Number of elements."""
        return prod(self.sizes)

    @property
    def dims(self) -> np.int32:
        """Number of dims, as kernels take it."""
        return np.int32(len(self.sizes))

    @property
    def is_flat(self) -> bool:
        """True if both operands lie as the elements are numbered."""
        return self.first == self.second == contiguous(self.sizes)

    def table(self, actor: str) -> Array:
        """Table of a kernel: sizes and both strides, [3, DIMS_MAX].

        Raises
        ------
        ExecutorError
            More dims are left than a table has room for.
        """
        if len(self.sizes) > DIMS_MAX:
            raise ExecutorError(
                f"a GPU kernel goes through at most {DIMS_MAX} dims that do not lie side by side, "
                f"found {len(self.sizes)} ({self.sizes}): split the op into two",
                actor=actor,
            )
        rows = np.zeros((3, DIMS_MAX), np.int64)
        for row, numbers in zip(rows, (self.sizes, self.first, self.second), strict=True):
            row[: len(numbers)] = numbers
        return rows


def contiguous(sizes: Sequence[int]) -> Strides:
    """Strides of a tensor of these sizes whose elements lie one after the other."""
    return tuple(prod(sizes[axis + 1 :]) for axis in range(len(sizes)))


def strides_of(order: Dims, operand: Dims, sizes: Mapping[str, int]) -> Strides:
    """An operand's stride for every label of `order`, 0 for a label that it lacks."""
    stride_by_label = dict(
        zip(operand, contiguous([sizes[label] for label in operand]), strict=True)
    )
    return tuple(stride_by_label.get(label, 0) for label in order)


def walk(order: Dims, first: Dims, second: Dims, sizes: Mapping[str, int]) -> Walk:
    """Walk through the labels of `order` in two operands.

    Examples
    --------
    >>> walk(("b", "t", "n"), ("b", "t", "n"), ("n",), {"b": 2, "t": 3, "n": 5})
    Walk(sizes=(6, 5), first=(5, 1), second=(0, 1))
    """
    return merged(
        [sizes[label] for label in order],
        strides_of(order, first, sizes),
        strides_of(order, second, sizes),
    )


def merged(sizes: Sequence[int], first: Sequence[int], second: Sequence[int]) -> Walk:
    """Walk without dims of size one, neighbours made one dim where both operands allow it."""
    dims: list[tuple[int, int, int]] = []
    for size, step, other_step in zip(sizes, first, second, strict=True):
        if size == 1:
            continue
        if dims and dims[-1][1:] == (size * step, size * other_step):
            size *= dims.pop()[0]
        dims.append((size, step, other_step))
    merged_dims = dims or [(1, 1, 1)]
    return Walk(
        sizes=tuple(size for size, _, _ in merged_dims),
        first=tuple(step for _, step, _ in merged_dims),
        second=tuple(other_step for _, _, other_step in merged_dims),
    )


def index_type(*counts: int) -> str:
    """C++ type in which a kernel divides numbers up to these."""
    return "unsigned" if max(counts) < INDEX_32_BITS else "i64"
