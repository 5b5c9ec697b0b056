"""Chunks that stay in the cache: elementwise kernels of many passes work on one at a time."""

from collections.abc import Iterator

import numpy as np

from millrace.executor.kernels.context import Array, KernelContext

CHUNK_ELEMENTS = 32768
"""Elements of a chunk: 128 KiB in float32, so that a chunk and its scratch lie in a core's L2.

Twice as many gain little (measured on Zen 4, 1 MiB of L2, in November 2026); half as many cost a
fifth.
"""


def chunks(size: int, length: int = CHUNK_ELEMENTS) -> Iterator[slice]:
    """Cut `size` elements into slices of at most `length`."""
    for start in range(0, size, length):
        yield slice(start, min(start + length, size))


def scratch(count: int, size: int, dtype: str, length: int = CHUNK_ELEMENTS) -> list[Array]:
    """Arrays of one chunk each, `count` of them."""
    return [np.empty(min(size, length), dtype) for _ in range(count)]


def rows_per_chunk(columns: int, rows: int, length: int = CHUNK_ELEMENTS) -> int:
    """Number of rows of `columns` elements that make a chunk: at least one, at most `rows`."""
    return max(1, min(rows, length // max(columns, 1)))


def rows_of(context: KernelContext) -> tuple[int, int, int]:
    """Rows, columns and rows of a chunk of the first input; a row is its last dim."""
    columns = context.inputs[0].shape[-1]
    rows = context.inputs[0].size // max(columns, 1)
    return rows, columns, rows_per_chunk(columns, rows)
