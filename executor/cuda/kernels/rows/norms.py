"""Launches of layer norm and RMS norm with what stands beside them in a transformer.

What they are given is plain, not a context: the op factories of `layer_norm.py` and `rms_norm.py`
call them, and so does whoever makes one pass over memory of several ops. What several ops would
have stored between them is rounded as they would have stored it, so that values are the same.
"""

from dataclasses import dataclass
from math import ceil

import numpy as np

from executor.cuda.calls import (
    BLOCK_THREADS,
    PACK_BYTES,
    TYPES,
    WARP_THREADS,
    Argument,
    Calls,
    Launch,
    Operand,
    Tensor,
    workspace,
)
from executor.cuda.kernels.rows.teams import SLAB_BLOCKS, team_of
from models.graph import ITEMSIZE
from models.inference import widened

BLOCKS_WANTED = 512  # about four blocks for each of the 132 multiprocessors of an H100
SLAB_ROWS_MIN = 32  # four rows for each of a block's 8 warps, so that a slab's sum is worth a store
NOTHING = workspace()  # in the place of an operand that a kernel does not touch


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """What is added to a norm's input before it, and where the sum goes."""

    other: Operand
    total: Operand


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnSums:
    """Where sums over rows go.

    Parameters
    ----------
    outputs
        One or two; each of as many elements as a row.
    rounded
        Dtype that a sum is rounded to before it is written or added; that of the outputs if empty.
    hold
        Firings that share one version of the outputs: the first writes, the others add.
    scratch
        Where the sums of slabs go.
    """

    outputs: tuple[Tensor, ...]
    rounded: str = ""
    hold: int = 1
    scratch: Operand = NOTHING


def packs_of(columns: int, *dtypes: str) -> int:
    """Return how many elements a pack has where every row of all operands is a number of packs.

    It is 16 bytes of the narrowest, so that wider ones are moved by several instructions.
    """
    elements = PACK_BYTES // min(ITEMSIZE[dtype] for dtype in dtypes)
    while columns % elements:
        elements //= 2
    return elements


def norm(
    x: Tensor,
    gamma: Tensor,
    y: Operand,
    rstd: Tensor,
    *,
    columns: int,
    epsilon: float,
    beta: Operand | None = None,
    mean: Operand | None = None,
    residual: Residual | None = None,
) -> Launch:
    """Return the launch of y and rstd of (x, gamma): layer norm where there is a beta, else RMS.

    Parameters
    ----------
    x, gamma, rstd
        With their dtypes: beta has gamma's, y and a residual x's, the mean that of rstd.
    y, mean
        Where they go.
    columns, epsilon
        Features of a row, and what is added to the variance.
    residual
        The norm is of x + other, which goes to `total`.
    """
    pack = packs_of(columns, x.dtype, gamma.dtype)
    rows = x.size // max(columns, 1)
    team = team_of(rows, columns, pack)
    kind = "rms_norm" if beta is None else "layer_norm"
    types = (TYPES[x.dtype], TYPES[gamma.dtype], TYPES[rstd.dtype])
    flags = (str(pack), *team.arguments, _flag(residual is not None))
    other, total = (residual.other, residual.total) if residual else (x.operand, y)
    weights = (gamma.operand,) if beta is None else (gamma.operand, beta)
    kept = (rstd.operand,) if mean is None else (mean, rstd.operand)
    return team.launch(
        kind, f"{kind}<{', '.join((*types, *flags))}>", rows, columns,
        x.operand, other, *weights, total, y, *kept, np.float64(epsilon),
    )  # fmt: skip


def norm_grad_input(
    dy: Tensor,
    x: Tensor,
    gamma: Tensor,
    rstd: Tensor,
    dx: Operand,
    *,
    columns: int,
    mean: Operand | None = None,
    other: Operand | None = None,
    weights: ColumnSums | None = None,
) -> Calls:
    """Return dx of (dy, x, gamma, rstd): of layer norm where there is a mean, else of RMS norm.

    Parameters
    ----------
    dy, x, gamma, rstd
        With their dtypes: dx and `other` have dy's, the mean that of rstd.
    other
        What is added to dx, as the gradient of what goes around a norm is.
    weights
        Where the gradients of gamma (and of beta) go: then dy and x are read once for all three.
        Where rows are longer than registers hold, a pass of its own adds these up.
    """
    pack = packs_of(columns, dy.dtype, x.dtype, gamma.dtype)
    rows = x.size // max(columns, 1)
    team = team_of(rows, columns, pack)
    kind = "rms_norm" if mean is None else "layer_norm"
    # Two sums for every feature that a thread has: four packs of them are more than it can keep.
    together = weights is not None and (team.by_warp or team.packs == 2)
    dtypes = (dy.dtype, x.dtype, gamma.dtype, rstd.dtype)
    flags = (str(pack), *team.arguments, _flag(other is not None), _flag(together))
    kept = (rstd.operand,) if mean is None else (mean, rstd.operand)
    sums = weights.scratch if weights is not None and together else NOTHING
    launch = team.launch(
        kind,
        f"{kind}_grad_input<{', '.join((*(TYPES[one] for one in dtypes), *flags))}>",
        rows, columns,
        dy.operand, x.operand, gamma.operand, *kept, dx if other is None else other, dx, sums,
        **({"blocks_max": SLAB_BLOCKS} if together else {}),
    )  # fmt: skip
    if weights is None:
        return Calls(of=lambda firing: (launch,))
    if not together:
        rest = norm_grad_weight(dy, x, rstd, weights, columns=columns, mean=mean)
        return Calls(
            of=lambda firing: (*rest.of(firing), launch), workspace_bytes=rest.workspace_bytes
        )
    return added_up(weights, widened(rstd.dtype), launch.grid[0], columns, launch)


def norm_grad_weight(
    dy: Tensor,
    x: Tensor,
    rstd: Tensor,
    weights: ColumnSums,
    *,
    columns: int,
    mean: Operand | None = None,
) -> Calls:
    """Return the gradients of gamma, and with a mean of beta: sums over rows."""
    pack = packs_of(columns, dy.dtype, x.dtype)
    kind = "rms_norm" if mean is None else "layer_norm"
    types = (TYPES[dy.dtype], TYPES[x.dtype], TYPES[rstd.dtype], str(pack))
    kept = (rstd.operand,) if mean is None else (mean, rstd.operand)
    return summed_in_slabs(
        kind, f"{kind}_grad_weight<{', '.join(types)}>", x.size // max(columns, 1), columns, pack,
        weights, widened(rstd.dtype), dy.operand, x.operand, *kept,
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
    """Sum over rows, per column: `function` writes the sums of slabs of rows, then these add up.

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
    """Return a launch that leaves the sums of slabs in the scratch, and one that adds them up."""
    count, dtype = len(sums.outputs), sums.outputs[0].dtype
    places = (sums.outputs[0].operand, sums.outputs[-1].operand)
    types = (TYPES[wide], TYPES[sums.rounded or dtype], TYPES[dtype])

    def total(added: bool) -> Launch:
        return Launch(
            partial.source,
            f"add_slabs<{', '.join((*types, _flag(added)))}>",
            (max(1, ceil(columns / WARP_THREADS)), count, 1),
            (BLOCK_THREADS, 1, 1),
            (sums.scratch, *places, np.int64(slabs), np.int64(columns)),
        )

    return Calls(
        of=lambda firing: (partial, total(firing % sums.hold > 0)),
        workspace_bytes=count * slabs * columns * ITEMSIZE[wide],
    )


def _flag(on: bool) -> str:
    return str(on).lower()
