"""Embedding: rows of a table by token id, and its gradient.

A table split by rows (label v) holds ids from its offset on; ids of other ranks give zero rows,
which the sum over ranks fills. N ids, V rows of the table here, D columns here.
"""

from collections.abc import Sequence

import numpy as np

from millrace.executor.kernels.context import Array, Kernel, KernelContext


def embedding(context: KernelContext) -> Kernel:
    """Kernel of the table's row of every id; zeros where another rank holds the row."""
    table_shard = context.inputs[1]
    rows, columns = table_shard.shape
    first = table_shard.offsets[0]
    is_split = rows != table_shard.global_shape[0]
    count = context.inputs[0].size

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        ids, table = inputs[0].reshape(count), inputs[1]
        out = outputs[0].reshape(count, columns)
        local = ids - first if is_split else ids
        # every id was checked when it was read, so clipping only serves rows that are zeroed below
        np.take(table, local, axis=0, out=out, mode="clip")
        if is_split:
            out[(local < 0) | (local >= rows)] = 0

    return kernel


def embedding_grad(context: KernelContext) -> Kernel:
    """Kernel of the sum of dy over the positions that hold an id, for every row of the table.

    Positions are sorted by id and every run of equal ids is summed at once: `np.add.at` takes
    twice as long. The row of the id `padding`, if there is one, gets none.
    """
    table_shard = context.outputs[0]
    rows, columns = table_shard.shape
    first = table_shard.offsets[0]
    padding = int(context.attributes.get("padding", -1)) - first
    count = context.inputs[0].size
    gathered = np.empty((count, columns), table_shard.dtype)
    sums = np.empty((min(count, rows), columns), table_shard.dtype)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        ids, dy = inputs[0].reshape(count) - first, inputs[1].reshape(count, columns)
        out = outputs[0]
        out.fill(0)
        order = np.argsort(ids, kind="stable")
        ids = ids[order]
        start, stop = np.searchsorted(ids, (0, rows))
        order, ids = order[start:stop], ids[start:stop]
        if not ids.size:
            return
        here = gathered[: ids.size]
        np.take(dy, order, axis=0, out=here, mode="clip")
        runs = np.flatnonzero(np.concatenate(([True], ids[1:] != ids[:-1])))
        out[ids[runs]] = np.add.reduceat(here, runs, axis=0, out=sums[: runs.size])
        if 0 <= padding < rows:
            out[padding] = 0

    return kernel
