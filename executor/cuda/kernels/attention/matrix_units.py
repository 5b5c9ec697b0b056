"""Matrix units: attention that they take, and sizes of tiles (`sources/attention_mma.cuh`).

They take bf16 and fp16 with heads of whole groups of 8 features, up to 128, causal or windowed or
neither, in rounds of a ring too. All else stays with the kernels of `sources/attention.cuh`: other
dtypes and widths, a bias, slopes by distance and a cap.
"""

from dataclasses import dataclass
from math import ceil, e, log2

import numpy as np

from millrace.executor.cuda.calls import TYPES, Dim3, Launch, Operand, Scalar
from millrace.executor.cuda.kernels.attention.shape import AttentionShape
from millrace.executor.kernels.context import KernelContext, Shard

WARPS = 4  # warps of a block: `MMA_WARPS` of the source
BLOCK: Dim3 = (32 * WARPS, 1, 1)
SIDE = 16  # rows of a product's left side, and its depth
PIECE = 8  # elements that one asynchronous copy moves, and that rows lie apart beyond their width
WIDEST = 128
NARROW = ("bfloat16", "float16")
ITEM_BYTES, FLOAT_BYTES = 2, 4
PADDING = 128  # queries that a head's statistics are a multiple of: whole tiles of every kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """Sizes of the tiles of one kernel.

    Parameters
    ----------
    sides
        Left sides of 16 rows that a warp works on: so often a right side that it loads is used.
    across
        Keys of a tile, or queries where the kernel goes over queries.
    """

    sides: int
    across: int


# By the widest head that they are for. A right side is read from shared memory in two cycles and
# used in two or less, so two left sides at least share each; more sums than these, or a longer
# tile, do not fit into 255 registers.
FORWARD = {64: Tiles(sides=2, across=64), 96: Tiles(sides=2, across=64),
           WIDEST: Tiles(sides=2, across=64)}  # fmt: skip
OF_QUERIES = {64: Tiles(sides=2, across=48), WIDEST: Tiles(sides=2, across=32)}
OF_KEYS = {64: Tiles(sides=2, across=64), WIDEST: Tiles(sides=2, across=32)}


def is_supported(
    context: KernelContext,
    shape: AttentionShape,
    *,
    narrow: tuple[Shard, ...] = (),
    outs: tuple[Shard, ...] = (),
) -> bool:
    """True if the matrix units take an op.

    `narrow` must have the dtype of q, k and v, and `outs` that or float32.
    """
    dims = (shape.head_dim, shape.value_dim)
    return (
        shape.dtype in NARROW
        and all(shard.dtype == shape.dtype for shard in narrow)
        and all(shard.dtype in (shape.dtype, "float32") for shard in outs)
        and all(dim % PIECE == 0 and 0 < dim <= WIDEST for dim in dims)
        and not context.attributes.get("alibi")
        and not shape.cap
        and shape.scale > 0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixShape:
    """An op in tiles of the matrix units."""

    shape: AttentionShape

    @property
    def width(self) -> int:
        """The wider of d and u, rounded up to whole sides."""
        return ceil(max(self.shape.head_dim, self.shape.value_dim) / SIDE) * SIDE

    @property
    def padded(self) -> int:
        """Queries of a head that statistics are held for."""
        return ceil(self.shape.queries / PADDING) * PADDING

    @property
    def statistics(self) -> int:
        """Numbers of one statistic of all queries and heads."""
        return self.shape.heads * self.padded

    def forward(self, dtypes: tuple[str, ...], *args: Operand | Scalar) -> tuple[Launch, ...]:
        """Launches of the output and logsumexp; `dtypes`: of the output, and of both before it."""
        tiles = self._chosen(FORWARD)
        queries = WARPS * SIDE * tiles.sides
        blocks = self.shape.heads * ceil(self.shape.queries / queries)
        name = self._function("attention_mma", dtypes, tiles)
        rows = self._rows_bytes(queries + 2 * tiles.across)
        return self._launched("attention_mma", name, blocks, rows, args)

    def of_queries(self, dtypes: tuple[str, ...], *args: Operand | Scalar) -> tuple[Launch, ...]:
        """Launches of dq; `dtypes` are C++ types of dq and of what it is added to."""
        tiles = self._chosen(OF_QUERIES)
        queries = WARPS * SIDE * tiles.sides
        blocks = self.shape.heads * ceil(self.shape.queries / queries)
        name = self._function("attention_mma_grad_query", dtypes, tiles)
        rows = self._rows_bytes(2 * queries + 3 * tiles.across)
        return self._launched("attention_mma_grad", name, blocks, rows, args)

    def of_keys(self, dtypes: tuple[str, ...], *args: Operand | Scalar) -> tuple[Launch, ...]:
        """Launches of dk and dv, whose C++ type is in `dtypes`."""
        tiles = self._chosen(OF_KEYS)
        pairs = WARPS // 2
        keys = pairs * SIDE * tiles.sides
        blocks = self.shape.samples * self.shape.groups * ceil(self.shape.keys / keys)
        name = self._function("attention_mma_grad_keys", dtypes, tiles)
        shared_bytes = self._rows_bytes(2 * keys + 4 * tiles.across)
        shared_bytes += 4 * tiles.across * FLOAT_BYTES  # two statistics, twice
        shared_bytes += keys * tiles.across * ITEM_BYTES  # probabilities that pairs hand on
        return self._launched("attention_mma_grad", name, blocks, shared_bytes, args)

    def _chosen(self, tiles: dict[int, Tiles]) -> Tiles:
        return next(sizes for width, sizes in tiles.items() if self.width <= width)

    def _function(self, name: str, dtypes: tuple[str, ...], tiles: Tiles) -> str:
        sizes = (self.shape.head_dim, self.shape.value_dim, tiles.sides, tiles.across)
        return f"{name}<{', '.join((TYPES[self.shape.dtype], *dtypes, *map(str, sizes)))}>"

    def _rows_bytes(self, rows: int) -> int:
        return rows * (self.width + PIECE) * ITEM_BYTES

    def _launched(
        self,
        source: str,
        function: str,
        blocks: int,
        shared_bytes: int,
        args: tuple[Operand | Scalar, ...],
    ) -> tuple[Launch, ...]:
        if not blocks:
            return ()
        scale = self.shape.scale
        scales = (np.float32(scale), np.float32(scale * log2(e)))
        return (Launch(source, function, (blocks, 1, 1), BLOCK, (*args, *scales), shared_bytes),)
