"""Chunks: many tensors of different sizes cut into pieces of one length, one for each block.

What a kernel of `sources/multi_tensor.cu` is given are addresses by value, the columns of a table
of tensors one after the other, and a table of constants with a row per chunk.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import ceil

import numpy as np

from millrace.executor.cuda.calls import (
    BLOCK_THREADS,
    POINTERS_MAX,
    TYPES,
    Argument,
    CallTensor,
    Launch,
    Operand,
    Pointers,
)
from millrace.executor.errors import ExecutorError
from millrace.executor.kernels.context import Array

SOURCE = "multi_tensor"
CHUNK_MAX = 2**14  # elements: 16 packs of four for each of a block's 256 threads
CHUNK_MIN = 2**11
BLOCKS_WANTED = (
    1056  # 8 of 256 threads fill one of an H100's 132 multiprocessors (data sheet, 2022)
)
TENSORS = (8, 32)  # tensors of a launch, where these do; else as many as there is room for


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorGroup:
    """Tensors that one launch works on.

    Parameters
    ----------
    columns
        Operands of every kind (`w`, `gradient`, …), one of each tensor.
    dtypes
        Dtypes of the columns.
    sizes
        Elements of every tensor.
    length
        Elements of a chunk, a multiple of 64, so that chunks begin where packs do.
    """

    columns: tuple[tuple[Operand, ...], ...]
    dtypes: tuple[str, ...]
    sizes: tuple[int, ...]
    length: int

    @property
    def room(self) -> int:
        """Tensors that the struct of pointers has room for."""
        most = POINTERS_MAX // len(self.columns)
        return next(room for room in (*TENSORS, most) if room >= len(self.sizes))

    @property
    def pointers(self) -> Pointers:
        """All columns, each filled up with its first operand, which is not read again."""
        filling = self.room - len(self.sizes)
        return Pointers(
            tuple(
                operand for column in self.columns for operand in (*column, *column[:1] * filling)
            )
        )

    @property
    def chunks_of_tensors(self) -> tuple[int, ...]:
        """Number of chunks of every tensor."""
        return tuple(ceil(size / self.length) for size in self.sizes)

    @property
    def chunks(self) -> Array:
        """Tensor, first element and elements of every chunk."""
        rows = [
            (tensor, start, min(self.length, size - start))
            for tensor, size in enumerate(self.sizes)
            for start in range(0, size, self.length)
        ]
        return np.array(rows, np.int64).reshape(-1, 3)

    def launch(self, function: str, types: Sequence[str], *args: Argument) -> Launch:
        """Launch of a function with a block for every chunk.

        Its template arguments are C++ types, then the room for tensors; its first argument are the
        pointers.
        """
        blocks = sum(self.chunks_of_tensors)
        name = f"{function}<{', '.join((*types, str(self.room)))}>"
        grid, block = (blocks, 1, 1), (BLOCK_THREADS, 1, 1)
        return Launch(SOURCE, name, grid, block, (self.pointers, *args))


def groups(kind: str, rows: Sequence[Sequence[CallTensor]]) -> Iterator[TensorGroup]:
    """Yield groups of tensors of the same dtypes, each of as many as a launch takes.

    Parameters
    ----------
    kind
        Kind of op, for messages.
    rows
        The operands of every tensor, column by column.

    Raises
    ------
    ExecutorError
        Operands of one row differ in size.
    """
    for row in rows:
        if len({tensor.size for tensor in row}) > 1:
            raise ExecutorError(
                f"{kind} of many tensors needs operands of one size, found "
                f"{', '.join(str(tensor.size) for tensor in row)} ({row[0].operand})"
            )
    by_dtypes = sorted(rows, key=_dtypes)
    for dtypes, alike in groupby(by_dtypes, key=_dtypes):
        members = list(alike)
        most = POINTERS_MAX // len(dtypes)
        for first in range(0, len(members), most):
            some = members[first : first + most]
            sizes = tuple(row[0].size for row in some)
            yield TensorGroup(
                columns=tuple(
                    tuple(tensor.operand for tensor in column) for column in zip(*some, strict=True)
                ),
                dtypes=dtypes,
                sizes=sizes,
                length=_length(sum(sizes)),
            )


def _dtypes(row: Sequence[CallTensor]) -> tuple[str, ...]:
    return tuple(tensor.dtype for tensor in row)


def _length(elements: int) -> int:
    """Elements of a chunk where all tensors have `elements`; it follows from the sizes alone."""
    wanted = ceil(elements / BLOCKS_WANTED / CHUNK_MIN) * CHUNK_MIN
    return max(CHUNK_MIN, min(wanted, CHUNK_MAX))


def types_of(*dtypes: str) -> tuple[str, ...]:
    """C++ types of dtypes.

    Examples
    --------
    >>> types_of("float32", "bfloat16")
    ('float', 'bf16')
    """
    return tuple(TYPES[dtype] for dtype in dtypes)


class LaunchBuilder:
    """Calls and tables as they are put together, group by group."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []
        self.tables: list[Array] = []

    def table(self, array: Array) -> Operand:
        """Add a table; return the operand that reads it."""
        self.tables.append(array)
        return Operand("table", len(self.tables) - 1)

    def add(self, group: TensorGroup, function: str, types: Sequence[str], *args: Argument) -> None:
        """Add the launch of a group, if it has elements; its second argument is the chunks."""
        if any(group.sizes):
            chunks = self.table(group.chunks)
            self.launches.append(group.launch(function, types, chunks, *args))
