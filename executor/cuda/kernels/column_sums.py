"""Sums over rows, column by column: of a tensor, and of what kernels of norms leave behind.

Rows are cut into slabs whose sums a second launch adds up (`sources/slabs.cuh`): one order, and
nothing is atomic. What is given is plain, not a context.
"""

from dataclasses import dataclass
from math import ceil

import numpy as np

from millrace.executor.cuda.calls import (
    BLOCK_THREADS,
    PACK_BYTES,
    TYPES,
    WARP_THREADS,
    Argument,
    Calls,
    CallTensor,
    Launch,
    Operand,
    workspace,
)
from millrace.models.graph import ITEMSIZE
from millrace.models.type_inference import at_least_float32

BLOCKS_WANTED = 512  # about four blocks for each of the 132 multiprocessors of an H100
SLAB_ROWS_MIN = 32  # four rows for each of a block's 8 warps, so that a slab's sum is worth a store
NOTHING = workspace()  # stands for an operand that a kernel does not touch


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnSums:
    """Places that sums over rows go to.

    Parameters
    ----------
    outputs
        One or two; each of as many elements as a row.
    rounded
        Dtype that a sum is rounded to before it is written or added; that of the outputs if empty.
    hold
        Firings that share one version of the outputs: the first writes, the others add.
    scratch
        Place of the sums of slabs.
    """

    outputs: tuple[CallTensor, ...]
    rounded: str = ""
    hold: int = 1
    scratch: Operand = NOTHING


def packs_of(columns: int, *dtypes: str) -> int:
    """Elements of a pack such that every row of all operands is a number of packs.

    It is 16 bytes of the narrowest, so that wider ones are moved by several instructions.
    """
    elements = PACK_BYTES // min(ITEMSIZE[dtype] for dtype in dtypes)
    while columns % elements:
        elements //= 2
    return elements


def column_sum(x: CallTensor, sums: ColumnSums, *, columns: int) -> Calls:
    """Calls of the sum over the rows of x, [rows, columns], of floats."""
    pack, wide = packs_of(columns, x.dtype), at_least_float32(x.dtype)
    return summed_in_slabs(
        "sums", f"column_sums<{TYPES[x.dtype]}, {TYPES[wide]}, {pack}>",
        x.size // max(columns, 1), columns, pack, sums, wide, x.operand,
    )  # fmt: skip


def summed_in_slabs(
    source: str,
    function: str,
    rows: int,
    columns: int,
    pack: int,
    sums: ColumnSums,
    wide: str,
    *args: Argument,
) -> Calls:
    """Calls of sums over rows, per column: `function` sums slabs of rows, then these add up.

    The slabs follow from the shape alone, so that the order of a sum is the same on every device.
    `function` takes `args`, where the sums go, and the rows of a slab, all rows and columns.
    """
    tiles = max(1, ceil(columns / (pack * WARP_THREADS)))
    slab_rows = max(SLAB_ROWS_MIN, ceil(rows / ceil(BLOCKS_WANTED / tiles)))
    slabs = max(1, ceil(rows / slab_rows))
    sizes = (np.int64(slab_rows), np.int64(rows), np.int64(columns))
    grid, block = (tiles, slabs, 1), (BLOCK_THREADS, 1, 1)
    partial = Launch(source, function, grid, block, (*args, sums.scratch, *sizes))
    return added_up(sums, wide, slabs, columns, partial)


def added_up(sums: ColumnSums, wide: str, slabs: int, columns: int, partial: Launch) -> Calls:
    """Calls of a launch that leaves the sums of slabs in the scratch, and one that adds them up."""
    count, dtype = len(sums.outputs), sums.outputs[0].dtype
    places = (sums.outputs[0].operand, sums.outputs[-1].operand)
    types = (TYPES[wide], TYPES[sums.rounded or dtype], TYPES[dtype])

    def total(added: bool) -> Launch:
        return Launch(
            partial.source,
            f"add_slabs<{', '.join((*types, str(added).lower()))}>",
            (max(1, ceil(columns / WARP_THREADS)), count, 1),
            (BLOCK_THREADS, 1, 1),
            (sums.scratch, *places, np.int64(slabs), np.int64(columns)),
        )

    return Calls(
        of=lambda firing: (partial, total(firing % sums.hold > 0)),
        workspace_bytes=count * slabs * columns * ITEMSIZE[wide],
    )
