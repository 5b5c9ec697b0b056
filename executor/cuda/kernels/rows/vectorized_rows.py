"""Rows in vectors: launches with 16 bytes a thread; R rows (all leading dims), D columns.

Registers begin on a multiple of 64 bytes, so that rows of a whole number of packs begin on one of
16. Kernels of `sources/rows.cuh` cut the packs of other rows themselves.
"""

from math import ceil

import numpy as np

from millrace.executor.cuda.calls import (
    BLOCK_THREADS,
    PACK_BYTES,
    TYPES,
    WARP_THREADS,
    CallTensor,
    Launch,
    Operand,
    Scalar,
    read,
    write,
)
from millrace.executor.cuda.kernels.column_sums import packs_of
from millrace.executor.errors import ExecutorError
from millrace.executor.kernels.context import KernelContext, Shard
from millrace.models.graph import ITEMSIZE

INT_MAX = 2**31 - 1  # also the blocks of a grid's first dim (CUDA programming guide, limits)


def rows_of(shard: Shard) -> tuple[int, int]:
    """Rows and columns of a shard; a row is its last dim."""
    columns = shard.shape[-1]
    return shard.size // max(columns, 1), columns


def pack_of(*shards: Shard) -> int:
    """Elements of a pack such that every row of all `shards` is a number of packs."""
    return packs_of(shards[0].shape[-1], *(shard.dtype for shard in shards))


def read_at(context: KernelContext, number: int) -> CallTensor:
    """Input of an op as plain calls take it."""
    shard = context.inputs[number]
    return CallTensor(read(number), shard.dtype, shard.size)


def write_at(context: KernelContext, number: int) -> CallTensor:
    """Output of an op as plain calls take it."""
    shard = context.outputs[number]
    return CallTensor(write(number), shard.dtype, shard.size)


def templated(function: str, shards: tuple[Shard, ...], *more: int | str) -> str:
    """A function's name with the types of `shards` and what comes behind them as arguments.

    Examples
    --------
    >>> from millrace.executor.kernels.context import whole_shard as whole
    >>> templated("l2_normalize", (whole((4, 8), "bfloat16"), whole((4,), "float32")), 8)
    'l2_normalize<bf16, float, 8>'
    """
    arguments = (*(TYPES[shard.dtype] for shard in shards), *map(str, more))
    return f"{function}<{', '.join(arguments)}>"


def row_threads(columns: int, pack: int) -> int:
    """Threads of a block that has a row: whole warps, at most eight."""
    warps = ceil(columns / (pack * WARP_THREADS))
    return max(1, min(warps, BLOCK_THREADS // WARP_THREADS)) * WARP_THREADS


def by_pack(
    source: str, function: str, rows: int, columns: int, pack: int, *args: Operand | Scalar
) -> Launch:
    """Launch of a kernel with one block per row; its last arguments are `rows` and `columns`.

    A block has as many warps as a row has packs for, at most eight.
    """
    return Launch(
        source,
        function,
        (max(1, min(rows, INT_MAX)), 1, 1),
        (row_threads(columns, pack), 1, 1),
        (*args, np.int64(rows), np.int64(columns)),
    )


def over_rows(source: str, function: str, shard: Shard, *args: Operand | Scalar) -> Launch:
    """Launch of a kernel of whole and cut packs over the rows of `shard`.

    Raises
    ------
    ExecutorError
        A row has more columns than an int counts.
    """
    rows, columns = rows_of(shard)
    if columns > INT_MAX:
        raise ExecutorError(
            f"`{function}` goes over rows of at most {INT_MAX} columns, found {columns}; split "
            f"the last dim"
        )
    return by_pack(source, function, rows, columns, PACK_BYTES // ITEMSIZE[shard.dtype], *args)


def require_one_dtype(context: KernelContext, *shards: Shard) -> None:
    """Refuse operands of several dtypes where a kernel has one type for all of them.

    Raises
    ------
    ExecutorError
        They differ.
    """
    dtypes = {shard.dtype for shard in shards}
    if len(dtypes) > 1:
        raise ExecutorError(
            f"op `{context.kind}` needs these operands in one dtype, found "
            f"{' and '.join(sorted(dtypes))}; put a `cast` before it",
            actor=context.name,
        )
