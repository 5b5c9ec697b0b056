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
        Of every dim; at least one, and none of size one but where all are.
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
        """True when both operands lie as the elements are numbered."""
        return self.first == self.second == contiguous(self.sizes)

    def table(self, actor: str) -> Array:
        """Return the table of a kernel: sizes and both strides.

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
        found = np.zeros((3, DIMS_MAX), np.int64)
        for row, numbers in zip(found, (self.sizes, self.first, self.second), strict=True):
            row[: len(numbers)] = numbers
        return found


def contiguous(sizes: Sequence[int]) -> Strides:
    """Return the strides of a tensor of these sizes whose elements lie one after the other."""
    return tuple(prod(sizes[at + 1 :]) for at in range(len(sizes)))


def strides_of(order: Dims, operand: Dims, sizes: Mapping[str, int]) -> Strides:
    """Return an operand's stride for every label of `order`, 0 for a label that it lacks."""
    own = dict(zip(operand, contiguous([sizes[label] for label in operand]), strict=True))
    return tuple(own.get(label, 0) for label in order)


def walk(order: Dims, first: Dims, second: Dims, sizes: Mapping[str, int]) -> Walk:
    """Go through the labels of `order` in two operands.

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
    """Leave out dims of size one and make one dim of neighbours where both operands allow it."""
    dims: list[tuple[int, int, int]] = []
    for size, one, other in zip(sizes, first, second, strict=True):
        if size == 1:
            continue
        if dims and dims[-1][1:] == (size * one, size * other):
            size *= dims.pop()[0]
        dims.append((size, one, other))
    found = dims or [(1, 1, 1)]
    return Walk(
        sizes=tuple(size for size, _, _ in found),
        first=tuple(one for _, one, _ in found),
        second=tuple(other for _, _, other in found),
    )


def index_type(*counts: int) -> str:
    """Return the C++ type in which a kernel divides numbers up to these."""
    return "unsigned" if max(counts) < INDEX_32_BITS else "i64"
