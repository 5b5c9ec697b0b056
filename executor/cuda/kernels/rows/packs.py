"""Launches that go row by row, 16 bytes of a thread at once; R rows (all leading dims), D columns.

Registers begin on a multiple of 64 bytes, so that rows of a whole number of packs begin on one of
16. Kernels of `sources/rows.cuh` cut the packs of other rows themselves.
"""

from math import ceil

import numpy as np

from executor.cuda.calls import (
    BLOCK_THREADS,
    PACK_BYTES,
    TYPES,
    WARP_THREADS,
    Calls,
    Launch,
    Operand,
    Scalar,
    always,
    workspace,
    write,
)
from executor.errors import ExecutorError
from executor.kernels.context import KernelContext, Shard
from models.graph import ITEMSIZE

BLOCKS_WANTED = 512  # about four blocks for each of the 132 multiprocessors of an H100
SLAB_ROWS_MIN = 32  # four rows for each of a block's 8 warps, so that a slab's sum is worth a store
INT_MAX = 2**31 - 1  # also the blocks of a grid's first dim (CUDA programming guide, limits)


def rows_of(shard: Shard) -> tuple[int, int]:
    """Return the rows and columns of a shard; a row is its last dim."""
    columns = shard.shape[-1]
    return shard.size // max(columns, 1), columns


def pack_of(*shards: Shard) -> int:
    """Return how many elements a pack has where every row of all `shards` is a number of packs."""
    elements = PACK_BYTES // max(ITEMSIZE[shard.dtype] for shard in shards)
    while shards[0].shape[-1] % elements:
        elements //= 2
    return elements


def templated(function: str, shards: tuple[Shard, ...], pack: int | None = None) -> str:
    """Return a function's name with the types of `shards` and a pack's elements as arguments.

    Examples
    --------
    >>> from executor.kernels.context import whole
    >>> templated("rms_norm", (whole((4, 8), "bfloat16"), whole((8,), "float32")), 4)
    'rms_norm<bf16, float, 4>'
    """
    arguments = [TYPES[shard.dtype] for shard in shards]
    return f"{function}<{', '.join(arguments if pack is None else [*arguments, str(pack)])}>"


def by_pack(
    source: str, function: str, rows: int, columns: int, pack: int, *args: Operand | Scalar
) -> Launch:
    """Launch a kernel with one block per row; its last arguments are `rows` and `columns`.

    A block has as many warps as a row has packs for, at most eight.
    """
    warps = max(1, min(ceil(columns / (pack * WARP_THREADS)), BLOCK_THREADS // WARP_THREADS))
    return Launch(
        source,
        function,
        (max(1, min(rows, INT_MAX)), 1, 1),
        (warps * WARP_THREADS, 1, 1),
        (*args, np.int64(rows), np.int64(columns)),
    )


def over_rows(source: str, function: str, shard: Shard, *args: Operand | Scalar) -> Launch:
    """Launch a kernel of whole and cut packs over the rows of `shard`.

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


def summed_over_rows(
    source: str, function: str, context: KernelContext, pack: int, *args: Operand | Scalar
) -> Calls:
    """Sum over rows, per column: `function` writes the sums of slabs of rows, then these add up.

    The slabs follow from the shape alone, so that the order of a sum is the same on every device.
    `function` takes `args`, where the sums go, and the rows of a slab, all rows and columns; it has
    an output per output of the op, which are at most two. What is kept of a row comes last among
    the op's inputs, and its dtype is what is added up in.
    """
    rows, columns = rows_of(context.inputs[0])
    first, last = context.outputs[0], context.inputs[-1]
    tiles = max(1, ceil(columns / (pack * WARP_THREADS)))
    slab_rows = max(SLAB_ROWS_MIN, ceil(rows / ceil(BLOCKS_WANTED / tiles)))
    slabs = max(1, ceil(rows / slab_rows))
    sizes = (np.int64(slab_rows), np.int64(rows), np.int64(columns))
    block = (BLOCK_THREADS, 1, 1)
    partial = Launch(source, function, (tiles, slabs, 1), block, (*args, workspace(), *sizes))
    outputs = len(context.outputs)
    total = Launch(
        source,
        templated("add_slabs", (last, first)),
        (max(1, ceil(columns / WARP_THREADS)), outputs, 1),
        block,
        (workspace(), write(0), write(outputs - 1), np.int64(slabs), np.int64(columns)),
    )
    return always(partial, total, workspace_bytes=outputs * slabs * columns * ITEMSIZE[last.dtype])


def require_one_dtype(context: KernelContext, *shards: Shard) -> None:
    """Refuse operands of several dtypes where a kernel has one type for all of them.

    Raises
    ------
    ExecutorError
        They differ.
    """
    found = {shard.dtype for shard in shards}
    if len(found) > 1:
        raise ExecutorError(
            f"op `{context.kind}` needs these operands in one dtype, found "
            f"{' and '.join(sorted(found))}; put a `cast` before it",
            actor=context.name,
        )
