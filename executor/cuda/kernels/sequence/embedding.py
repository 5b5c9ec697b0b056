"""Embedding and its gradient: calls; N ids, V rows of the table here, D columns here."""

from math import ceil

import numpy as np

from millrace.executor.cuda.calls import (
    BLOCK_THREADS,
    WARP_THREADS,
    Calls,
    Clear,
    Launch,
    Operand,
    Scalar,
    aligned,
    by_row,
    elementwise,
    read,
    same_calls,
    types,
    workspace,
    write,
)
from millrace.executor.cuda.kernels.column_sums import packs_of
from millrace.executor.cuda.kernels.strides import index_type
from millrace.executor.kernels.context import KernelContext
from millrace.models.graph import ITEMSIZE
from millrace.models.type_inference import at_least_float32

SOURCE = "embedding"
DIGIT_BITS = 8
DIGITS = 2**DIGIT_BITS  # the constants in capitals are as in `sources/embedding.cu`
PARTS = 4
BLOCK_KEYS = 1024
PIECE = 32


def embedding(context: KernelContext) -> Calls:
    """Calls that write the table's row of every id; zeros where another rank holds the row."""
    ids, table = context.inputs
    rows, columns = table.shape
    dtypes = (table.dtype, context.outputs[0].dtype)
    pack = packs_of(columns, *dtypes)
    count = ids.size * columns // pack
    return same_calls(
        elementwise(
            SOURCE, f"embedding<{types(*dtypes)[1:-1]}, {pack}, {index_type(count)}>", count,
            read(0), read(1), write(0), np.int64(table.offsets[0]), np.int64(rows),
            np.int64(columns),
        )
    )  # fmt: skip


def embedding_grad(context: KernelContext) -> Calls:
    """Calls of the sum, per row of the table, of dy over the positions that hold the row's id.

    Positions are sorted by row, and every run of equal rows is added up in order, in float or
    wider. The row of the id `padding`, if there is one, gets none, nor does one without an id.
    """
    (_, dy), out = context.inputs, context.outputs[0]
    count, (rows, columns) = context.inputs[0].size, out.shape
    wide = at_least_float32(dy.dtype)
    sorting, offset = _sort(context)
    keys, positions = workspace(offset[0]), workspace(offset[1])
    pieces = ceil(count / PIECE)
    partial = workspace(offset[2])
    table_rows, pack = np.int64(rows), packs_of(columns, dy.dtype, out.dtype)
    warps = max(1, min(ceil(columns / pack / WARP_THREADS), BLOCK_THREADS // WARP_THREADS))
    return same_calls(
        Clear(write(0), out.size * ITEMSIZE[out.dtype]),
        *sorting,
        Launch(
            SOURCE,
            f"sum_pieces<{types(dy.dtype, out.dtype)[1:-1]}, {pack}>",
            (max(count, 1), 1, 1),
            (warps * WARP_THREADS, 1, 1),
            (keys, positions, read(1), write(0), partial, table_rows, np.int64(count),
             np.int64(columns)),
        ),
        by_row(
            SOURCE,
            "join_pieces" + types(wide, out.dtype),
            pieces,
            columns,
            keys, partial, write(0), table_rows, np.int64(count),
        ),
        workspace_bytes=offset[2] + 2 * pieces * columns * ITEMSIZE[wide],
    )  # fmt: skip


def _sort(context: KernelContext) -> tuple[list[Launch], tuple[int, int, int]]:
    """Launches that sort the positions by row, and offsets of keys, positions and free bytes.

    A key is a row of the table here, or V for an id without one; every pass sorts by eight of its
    bits, from the lowest, between two halves of the workspace.
    """
    ids, table = context.inputs[0], context.outputs[0]
    count, rows = ids.size, table.shape[0]
    blocks = ceil(count / BLOCK_KEYS)
    array = aligned(4 * count)
    places = workspace(4 * array)
    n = np.int64(count)
    here, there = (0, array), (2 * array, 3 * array)
    launches = [
        elementwise(
            SOURCE, "sort_keys", count,
            read(0), workspace(here[0]), workspace(here[1]), np.int64(table.offsets[0]),
            np.int64(context.attributes.get("padding", -1)), np.int64(rows),
        )
    ]  # fmt: skip
    for low in range(0, rows.bit_length(), DIGIT_BITS):
        shift = np.int32(low)
        keys, positions = workspace(here[0]), workspace(here[1])
        moved = workspace(there[0]), workspace(there[1])
        launches += [
            _digits("count_digits", blocks, keys, places, shift, n),
            _digits("place_digits", 1, places, np.int64(blocks), parts=PARTS),
            _digits("move_by_digit", blocks, keys, positions, places, *moved, shift, n),
        ]
        here, there = there, here
    return launches, (*here, 4 * array + aligned(4 * DIGITS * blocks))


def _digits(function: str, blocks: int, *args: Operand | Scalar, parts: int = 1) -> Launch:
    """Launch of one thread per digit, or of several that share out its work."""
    return Launch(SOURCE, function, (blocks, 1, 1), (parts * DIGITS, 1, 1), args)
