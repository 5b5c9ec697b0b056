"""Shape of attention as arguments of its kernels: sizes, masks, slopes of heads, a bias's strides.

b samples, t queries here, s keys here, g groups of heads that share keys, r query heads of a group
(1 where left out), d head dim, u value dim.
"""

from dataclasses import dataclass
from math import ceil, prod, sqrt

import numpy as np

from millrace.executor.cuda.calls import Dim3, Launch, Operand, Scalar
from millrace.executor.errors import ExecutorError
from millrace.executor.kernels.attention.geometry import first_key, reach
from millrace.executor.kernels.attention.scores import head_slopes
from millrace.executor.kernels.context import Array, KernelContext
from millrace.executor.kernels.dims import bind_operand_dims
from millrace.models.type_inference import at_least_float32

ENDLESS = 2**62  # reach of a query that no mask limits
SIDE = 16  # threads along either side of a tile (`sources/attention.cuh`)
BLOCK: Dim3 = (SIDE * SIDE, 1, 1)
COLUMNS = (2, 4, 6, 8, 12, 16)
"""Values that a thread holds of a row of an output: the row is 16 times as wide."""

BIAS = 3  # the input that is added to the scores, where there is one


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """The sizes of an op here, and the arrays that its kernels read.

    Parameters
    ----------
    samples, queries, keys, groups, repeats, head_dim, value_dim
        b, t, s, g, r, d and u.
    scale, cap
        Factor of the products of q and k, and cap of the scores (0: none).
    dtype, wide
        Dtype of q, k and v, and that of the arithmetic and the logsumexp.
    bias_strides
        Elements between neighbours along b, g, r, t and s of what is added to the scores; 0 for a
        label that it lacks.
    tables
        The sizes as `AttentionShape` of `sources/attention.cuh`, and the slope of every head.
    """

    samples: int
    queries: int
    keys: int
    groups: int
    repeats: int
    head_dim: int
    value_dim: int
    scale: float
    cap: float
    dtype: str
    wide: str
    bias_strides: tuple[int, ...]
    tables: tuple[Array, ...]

    @property
    def heads(self) -> int:
        """Heads of all samples."""
        return self.samples * self.groups * self.repeats

    @property
    def tile(self) -> int:
        """Queries and keys of a tile (`Tiles` of `sources/attention.cuh`)."""
        return SIDE * (2 if self.wide == "float64" else 4)

    @property
    def query_tiles(self) -> int:
        """Tiles of the queries of a head."""
        return ceil(self.queries / self.tile)

    @property
    def key_tiles(self) -> int:
        """Tiles of the keys of a head."""
        return ceil(self.keys / self.tile)

    @property
    def columns(self) -> int:
        """Values that a thread holds of a row."""
        widest = max(self.head_dim, self.value_dim)
        return next(columns for columns in COLUMNS if SIDE * columns >= widest)

    def launch(
        self, source: str, function: str, blocks: int, *args: Operand | Scalar
    ) -> tuple[Launch, ...]:
        """Launches of a kernel of tiles, scale and cap its last arguments; none without work."""
        if not blocks:
            return ()
        scaling = np.float64(self.scale), np.float64(self.cap)
        return (Launch(source, function, (blocks, 1, 1), BLOCK, (*args, *scaling)),)


def attention_shape(context: KernelContext, *, biased: bool) -> AttentionShape:
    """Sizes of an op of attention, read off its shards.

    Raises
    ------
    ExecutorError
        The window hides every key from a query; a head is wider than the kernels are made for;
        q, k and v differ in dtype.
    """
    query, key, value = context.inputs[:3]
    samples, queries, groups, *repeat, head_dim = query.shape
    keys, value_dim = key.shape[1], value.shape[-1]
    repeats = prod(repeat)
    _check(context)
    strides = _bias_strides(context) if biased else (0,) * 5
    behind, ahead = (ENDLESS if limit is None else limit for limit in reach(context))
    first = query.offsets[1] - first_key(context)
    sizes = (samples, queries, keys, groups, repeats, head_dim, value_dim)
    wide = at_least_float32(query.dtype)
    slopes = head_slopes(context)
    if slopes is None:
        slopes = np.zeros((groups, repeats))
    return AttentionShape(
        samples=samples,
        queries=queries,
        keys=keys,
        groups=groups,
        repeats=repeats,
        head_dim=head_dim,
        value_dim=value_dim,
        scale=context.number("scale", 1 / sqrt(head_dim)),
        cap=context.number("cap", 0.0),
        dtype=query.dtype,
        wide=wide,
        bias_strides=strides,
        tables=(
            np.array((*sizes, first, behind, ahead, *strides), np.int64),
            np.ascontiguousarray(slopes, wide),
        ),
    )


def _check(context: KernelContext) -> None:
    """Refuse what the kernels have no form for."""
    query, key, value = context.inputs[:3]
    dtypes = {shard.dtype for shard in (query, key, value)}
    if len(dtypes) > 1:
        raise ExecutorError(
            f"attention needs q, k and v of one dtype, found {', '.join(sorted(dtypes))}; cast "
            f"them to one",
            actor=context.name,
        )
    widest = max(query.shape[-1], value.shape[-1])
    if widest > SIDE * COLUMNS[-1]:
        raise ExecutorError(
            f"attention has heads of at most {SIDE * COLUMNS[-1]} features, found {widest}; split "
            f"them over more heads, or build the model with unfused attention",
            actor=context.name,
        )


def _bias_strides(context: KernelContext) -> tuple[int, ...]:
    """Strides of the bias along b, g, r, t and s."""
    dims = bind_operand_dims(context)
    query, key, bias = dims.inputs[0], dims.inputs[1], dims.inputs[BIAS]
    batch, queries, group, *repeat = query[:-1]
    order = (batch, group, *(repeat or [""]), queries, key[1])
    return tuple(
        prod(dims.sizes[inner] for inner in bias[bias.index(label) + 1 :]) if label in bias else 0
        for label in order
    )
