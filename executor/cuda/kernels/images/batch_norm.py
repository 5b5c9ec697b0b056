"""Batch norm by the statistics of a whole microbatch: its calls and those of its gradients.

`sums` and `squares` arrive added up over all ranks, and a channel's count is that of the whole
microbatch. Any dims may lie around the channel's: an array is [outer, channels, inner].
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import NamedTuple

import numpy as np

from millrace.executor.cuda.calls import (
    BLOCK_THREADS,
    TYPES,
    Calls,
    Launch,
    Operand,
    Scalar,
    elementwise,
    read,
    same_calls,
    types,
    workspace,
    write,
)
from millrace.executor.kernels.context import KernelContext
from millrace.executor.kernels.dims import bind_operand_dims
from millrace.models.graph import ITEMSIZE

SOURCE = "batch_norm"
NOTHING = "Nothing"
BLOCKS = 528
"""Blocks that fill a device: four on each of 132 multiprocessors (H100 SXM data sheet, 2022)."""
SLAB_POINTS = 2048
"""Least points of a channel's slab: eight for each thread of its block."""
PIECE_BYTES = 16
LANES = 32
"""Most pieces side by side in a block: 512 neighbouring bytes."""
THREAD_ROWS = 8
"""Least rows of a thread that adds up, or norms, pieces."""
SHORT = 32
"""Consecutive points of a channel under which neighbouring threads take neighbouring channels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _DeviceChannels:
    """An array's form, and the points of a channel in the whole microbatch."""

    outer: int
    channels: int
    inner: int
    points: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.outer * self.channels * self.inner

    def piece_grid(self, dtype: str) -> "_PieceGrid | None":
        """Pieces of 16 bytes and the threads over them; None where channels do not come last."""
        width = PIECE_BYTES // ITEMSIZE[dtype]
        if self.inner != 1 or self.channels % width:
            return None
        lanes = min(self.channels // width, LANES)
        return _PieceGrid(
            width, lanes, ceil(self.channels // width / lanes), BLOCK_THREADS // lanes
        )


class _PieceGrid(NamedTuple):
    """Channels of a piece; pieces side by side in a block, blocks side by side; rows of a block."""

    width: int
    lanes: int
    tiles: int
    rows: int


def _channels(context: KernelContext, sums_at: int, x_at: int = 0) -> _DeviceChannels:
    """Form of input `x_at` with the channels of operand `sums_at` (inputs, then outputs)."""
    dims = bind_operand_dims(context)
    (channel,) = (*dims.inputs, *dims.outputs)[sums_at]
    shards = (*context.inputs, *context.outputs)
    x_dims = dims.inputs[x_at]
    axis = x_dims.index(channel)
    sizes = [dims.sizes[label] for label in x_dims]
    return _DeviceChannels(
        outer=prod(sizes[:axis]),
        channels=sizes[axis],
        inner=prod(sizes[axis + 1 :]),
        points=prod(shards[x_at].global_shape) // prod(shards[sums_at].global_shape),
    )


def _itemsize(dtype: str) -> int:
    """Bytes of a number in which sums of this dtype are kept."""
    return 8 if dtype == "float64" else 4


def _sums(
    form: _DeviceChannels,
    terms: str,
    dtypes: tuple[str, str],
    operands: tuple[Operand, Operand, Operand],
) -> tuple[Launch, int]:
    """Launch that leaves a channel's sums slab by slab, and number of slabs.

    Parameters
    ----------
    terms
        Terms that are added up: a struct of the source.
    dtypes
        Dtypes of x, and of the channels' sums.
    operands
        x, dy, and the channels' sums of x; where the terms do not ask for one, any.
    """
    if pieces := form.piece_grid(dtypes[0]):
        return _sums_of_pieces(form, pieces, terms, dtypes, operands)
    short = form.inner < SHORT
    tiles = ceil(form.channels / 32) if short else form.channels
    length = form.outer if short else form.outer * form.inner
    most = form.outer * form.inner // SLAB_POINTS
    step = ceil(length / max(1, min(ceil(BLOCKS / tiles), most)))
    slabs = ceil(length / step)
    chosen = ", ".join((terms, *(TYPES[dtype] for dtype in dtypes)))
    launch = Launch(
        SOURCE,
        f"{'sums_across' if short else 'sums_along'}<{chosen}>",
        (tiles * slabs, 1, 1),
        (BLOCK_THREADS, 1, 1),
        (
            *operands, workspace(), np.float64(form.points), np.int64(form.outer),
            np.int64(form.channels), np.int64(form.inner), np.int64(step),
        ),
    )  # fmt: skip
    return launch, slabs


def _sums_of_pieces(
    form: _DeviceChannels,
    pieces: _PieceGrid,
    terms: str,
    dtypes: tuple[str, str],
    operands: tuple[Operand, Operand, Operand],
) -> tuple[Launch, int]:
    """Launch and number of slabs of `_sums`, where channels come last."""
    most = form.outer // (pieces.rows * THREAD_ROWS)
    step = ceil(form.outer / max(1, min(ceil(BLOCKS / pieces.tiles), most)))
    slabs = ceil(form.outer / step)
    chosen = ", ".join((terms, *(TYPES[dtype] for dtype in dtypes), str(pieces.width)))
    launch = Launch(
        SOURCE, f"sums_of_pieces<{chosen}>", (pieces.tiles * slabs, 1, 1), (BLOCK_THREADS, 1, 1),
        (
            *operands, workspace(), np.float64(form.points), np.int64(form.outer),
            np.int64(form.channels), np.int32(pieces.lanes), np.int64(step),
        ),
    )  # fmt: skip
    return launch, slabs


def _join(function: str, channels: int, *args: Operand | Scalar) -> Launch:
    """Launch that adds up the slabs, 32 channels a block."""
    blocks = (max(1, ceil(channels / 32)), 1, 1)
    return Launch(
        SOURCE, function, blocks, (BLOCK_THREADS, 1, 1), (*args, np.int64(channels))
    )  # fmt: skip


def _apply(
    form: _DeviceChannels, kind: str, dtypes: tuple[str, str], *operands: Operand, then: str = ""
) -> Launch:
    """Launch that goes over an array by its channels' factors.

    `then`: what follows on an element, a struct of the source, where the kernel takes one.
    """
    pieces = form.piece_grid(dtypes[0])
    chosen = types(*dtypes)[:-1] + (f", {then}" if then else "")
    if pieces is None:
        return elementwise(
            SOURCE, f"{kind}{chosen}>", form.size, *operands, np.int64(form.channels),
            np.int64(form.inner),
        )  # fmt: skip
    down = max(1, min(form.outer // (pieces.rows * THREAD_ROWS), ceil(4 * BLOCKS / pieces.tiles)))
    return Launch(
        SOURCE,
        f"{kind}_of_pieces{chosen}, {pieces.width}>",
        (pieces.tiles, down, 1),
        (BLOCK_THREADS, 1, 1),
        (*operands, np.int64(form.outer), np.int64(form.channels), np.int32(pieces.lanes)),
    )


def channel_sums(context: KernelContext) -> Calls:
    """Calls of every channel's sum."""
    return _channel_totals(context, "Value", read(0))


def channel_squares(context: KernelContext) -> Calls:
    """Calls of every channel's sum of squared distances from its mean, of (x, sums)."""
    return _channel_totals(context, "SquaredDistance", read(1))


def _channel_totals(context: KernelContext, terms: str, sums: Operand) -> Calls:
    form, dtype = _channels(context, 1), context.outputs[0].dtype
    dtypes = context.inputs[0].dtype, dtype if terms == "Value" else context.inputs[1].dtype
    add, slabs = _sums(form, terms, dtypes, (read(0), read(0), sums))
    join = _join("join_sums" + types(dtype), form.channels, workspace(), write(0), np.int64(slabs))
    return same_calls(add, join, workspace_bytes=slabs * form.channels * _itemsize(dtype))


class NormEpilogue(NamedTuple):
    """Operations on an element of y before it is written.

    Attributes
    ----------
    other
        Tensor that is added, of y's shape and dtype.
    relu
        y is brought to 0 or more.
    pre_relu
        Place to which the value before relu is written too.
    """

    other: Operand | None = None
    relu: bool = False
    pre_relu: Operand | None = None

    @property
    def struct(self) -> str:
        """Its name in the source."""
        chosen = self.other is not None, self.relu, self.pre_relu is not None
        return (
            f"After<{', '.join(str(flag).lower() for flag in chosen)}>" if any(chosen) else NOTHING
        )


def batch_norm(context: KernelContext) -> Calls:
    """Calls of y of (x, sums, squares, gamma, beta)."""
    return normed(context, [read(number) for number in range(5)], write(0), NormEpilogue())


def normed(
    context: KernelContext, given: Sequence[Operand], y: Operand, after: NormEpilogue
) -> Calls:
    """Calls of a batch norm with what follows on y.

    Parameters
    ----------
    context
        The batch norm's own.
    given
        Places of x, sums, squares, gamma and beta.
    y
        Place to which the last result is written.
    after
        Operations that follow.
    """
    form, epsilon = _channels(context, 1), context.number("epsilon", 1e-5)
    x, sums, _, gamma, _ = context.inputs
    factors = elementwise(
        SOURCE, "forward_factors" + types(sums.dtype, gamma.dtype), form.channels,
        *given[1:], workspace(), np.float64(form.points), np.float64(epsilon),
    )  # fmt: skip
    dtypes = x.dtype, sums.dtype
    # Where nothing is added or kept, the kernel touches neither operand.
    beside = after.other or given[0], after.pre_relu or y
    operands = given[0], workspace(), *beside, y
    apply = _apply(form, "batch_norm", dtypes, *operands, then=after.struct)
    return same_calls(factors, apply, workspace_bytes=3 * form.channels * _itemsize(sums.dtype))


def batch_norm_grad_sums(context: KernelContext) -> Calls:
    """Calls of dgamma = Σ dy · x̂ and dbeta = Σ dy of (dy, x, sums, squares)."""
    form, epsilon = _channels(context, 2), context.number("epsilon", 1e-5)
    x, sums = context.inputs[1:3]
    add, slabs = _sums(form, "Slopes", (x.dtype, sums.dtype), (read(1), read(0), read(2)))
    join = _join(
        "join_slopes" + types(sums.dtype, context.outputs[0].dtype), form.channels,
        workspace(), read(3), write(0), write(1), np.float64(form.points), np.float64(epsilon),
        np.int64(slabs),
    )  # fmt: skip
    return same_calls(add, join, workspace_bytes=2 * slabs * form.channels * _itemsize(sums.dtype))


def batch_norm_grad_input(context: KernelContext) -> Calls:
    """Calls of dx of (dy, x, sums, squares, gamma, dgamma, dbeta).

    dx = gamma · rstd · (dy − dbeta / count − x̂ · dgamma / count): the statistics move with x
    (Ioffe and Szegedy 2015, section 3).
    """
    form, epsilon = _channels(context, 2), context.number("epsilon", 1e-5)
    x, sums, _, gamma, dgamma, _ = context.inputs[1:]
    factors = elementwise(
        SOURCE, "backward_factors" + types(sums.dtype, gamma.dtype, dgamma.dtype), form.channels,
        read(2), read(3), read(4), read(5), read(6), workspace(), np.float64(form.points),
        np.float64(epsilon),
    )  # fmt: skip
    operands = read(0), read(1), workspace(), write(0)
    apply = _apply(form, "batch_norm_grad_input", (x.dtype, sums.dtype), *operands)
    return same_calls(factors, apply, workspace_bytes=4 * form.channels * _itemsize(sums.dtype))
