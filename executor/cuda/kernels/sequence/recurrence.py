"""Recurrences and their gradients: calls; sizes by letter as in `sources/recurrence.cu`."""

from math import ceil, prod

import numpy as np

from millrace.executor.cuda.calls import (
    TYPES,
    WARP_THREADS,
    Calls,
    Dim3,
    Launch,
    aligned,
    elementwise,
    read,
    same_calls,
    types,
    workspace,
    write,
)
from millrace.executor.cuda.kernels.column_sums import NOTHING
from millrace.executor.cuda.kernels.rows.vectorized_rows import require_one_dtype
from millrace.executor.errors import ExecutorError
from millrace.executor.kernels.context import KernelContext
from millrace.executor.kernels.sequence.recurrence import (
    BETA,
    DECAY,
    RecurrenceSizes,
    recurrence_sizes,
)
from millrace.models.graph import ITEMSIZE
from millrace.models.type_inference import at_least_float32

SOURCE = "recurrence"
WARPS = 8  # of a block: `SLAB_WARPS` of sources/slabs.cuh
COLUMNS_MAX = 8  # of a warp backward: as many states and slopes as registers hold
ROWS_MAX = 8  # of a column in every lane: a key has at most 256 features


def _form(context: KernelContext, sizes: RecurrenceSizes) -> str:
    """Template arguments that both kernels take.

    Raises
    ------
    ExecutorError
        A key has more features than a warp holds, or operands are of several dtypes.
    """
    alike = [shard for place, shard in enumerate(context.inputs) if place != DECAY]
    require_one_dtype(context, *alike, *context.outputs)
    rows = ceil(sizes.key_dim / WARP_THREADS)
    if rows > ROWS_MAX:
        raise ExecutorError(
            f"a key has {sizes.key_dim} features, of at most {ROWS_MAX * WARP_THREADS}",
            actor=context.name,
        )
    flags = (str(flag).lower() for flag in (sizes.by_row, sizes.corrects))
    dtypes = (TYPES[sizes.dtype], TYPES[context.inputs[DECAY].dtype])
    return ", ".join((*dtypes, str(1 << (rows - 1).bit_length()), *flags))


def _grid(sizes: RecurrenceSizes, columns: int) -> Dim3:
    tiles = ceil(sizes.value_dim / (WARPS * columns))
    return tiles, sizes.groups * sizes.repeats, sizes.samples


def _lengths(sizes: RecurrenceSizes) -> tuple[np.int64, ...]:
    lengths = (sizes.tokens, sizes.repeats, sizes.key_dim, sizes.value_dim)
    return tuple(map(np.int64, lengths))


def recurrence(context: KernelContext) -> Calls:
    """Calls of the results of every token; raises ExecutorError as `_form`."""
    sizes = recurrence_sizes(context)
    reads = [read(number) for number in range(len(context.inputs))]
    return same_calls(
        Launch(
            SOURCE,
            f"recurrence<{_form(context, sizes)}>",
            _grid(sizes, 1),
            (WARPS * WARP_THREADS, 1, 1),
            (*reads, *[NOTHING] * (BETA + 1 - len(reads)), write(0), *_lengths(sizes)),
        )
    )


def recurrence_grad(context: KernelContext) -> Calls:
    """Calls of the gradients of all inputs; raises ExecutorError as `_form`."""
    sizes = recurrence_sizes(context)
    columns = next(
        n for n in (1, 2, 4, COLUMNS_MAX) if n == COLUMNS_MAX or WARPS * n >= sizes.value_dim
    )
    grid, wide = _grid(sizes, columns), at_least_float32(sizes.dtype)
    heads = sizes.samples * sizes.tokens * sizes.groups * sizes.repeats
    rate_size = sizes.key_dim if sizes.by_row else 1
    # What the tiles leave, one gradient behind the other: elements and width of each.
    widths = (sizes.key_dim, sizes.key_dim, rate_size, 1)
    item, stride = ITEMSIZE[wide], heads * sum(widths)
    begins = aligned(item * grid[0] * stride)
    state = item * prod(sizes.state)
    states = begins + aligned(state * ceil(sizes.tokens / sizes.chunk))
    reads = [read(number) for number in range(len(context.inputs) - 1)]
    backward = Launch(
        SOURCE,
        f"recurrence_grad<{_form(context, sizes)}, {columns}>",
        grid,
        (WARPS * WARP_THREADS, 1, 1),
        (*reads, *[NOTHING] * (BETA + 1 - len(reads)), read(len(reads)), write(2), workspace(),
         workspace(begins), workspace(states), *_lengths(sizes), np.int64(sizes.chunk)),
    )  # fmt: skip
    joins = [
        elementwise(
            SOURCE, f"join_tiles{types(wide, sizes.dtype)}", context.outputs[number].size,
            workspace(item * heads * sum(widths[:place])), write(number), np.int64(grid[0]),
            np.int64(stride), np.int64(sizes.repeats if place < 2 else 1), np.int64(widths[place]),
        )
        for place, number in enumerate((0, 1, DECAY, BETA))
        if number < len(context.outputs)
    ]  # fmt: skip
    return same_calls(backward, *joins, workspace_bytes=states + state * sizes.chunk)
