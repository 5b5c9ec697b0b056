"""Moves of many tensors: casts, added sums and sums of squares."""

from collections.abc import Sequence

import numpy as np

from millrace.executor.cuda.calls import (
    BLOCK_THREADS,
    Calls,
    CallTensor,
    Launch,
    same_calls,
    workspace,
)
from millrace.executor.cuda.kernels.multi_tensor.tensor_chunks import (
    SOURCE,
    LaunchBuilder,
    groups,
    types_of,
)
from millrace.executor.errors import ExecutorError

Pair = tuple[CallTensor, CallTensor]
"""Tensor that is read, and tensor of the same size that is written."""


def cast(pairs: Sequence[Pair]) -> Calls:
    """Calls that write tensors in the dtypes of the targets.

    Raises
    ------
    ExecutorError
        Floats would become integers, or sizes differ.
    """
    return _moved("cast", pairs, added=False)


def accumulate(pairs: Sequence[Pair], hold: int) -> Calls:
    """Calls of sums over the firings that share one version of the targets.

    Parameters
    ----------
    pairs
        Tensor that is added, and the sum.
    hold
        Firings of one version: the first of them writes, the others add.

    Raises
    ------
    ExecutorError
        As `cast` raises.
    """
    first, later = (_moved("accumulate", pairs, added=added) for added in (False, True))
    return Calls(of=lambda firing: (later if firing % hold else first).of(0), tables=first.tables)


def _moved(kind: str, pairs: Sequence[Pair], *, added: bool) -> Calls:
    builder = LaunchBuilder()
    for group in groups(kind, pairs):
        source, target = group.dtypes
        if target.startswith("int") and not source.startswith("int"):
            raise ExecutorError(
                f"{kind} from {source} to {target} would lose fractions: give the output a "
                f"floating dtype ({group.columns[1][0]})"
            )
        builder.add(group, "move_many", (str(added).lower(), *types_of(source, target)))
    return same_calls(*builder.launches, tables=tuple(builder.tables))


def squared_sum(pairs: Sequence[Pair]) -> Calls:
    """Calls of the sum of squares of every tensor, added up in double in a fixed order.

    Parameters
    ----------
    pairs
        A tensor, and the one number that its sum is written to.
    """
    builder, offset = LaunchBuilder(), 0
    for group in groups("squared_sum", [(x, y._replace(size=x.size)) for x, y in pairs]):
        (source, target), room = types_of(*group.dtypes), str(group.room)
        parts, firsts = workspace(offset), np.cumsum((0, *group.chunks_of_tensors))
        builder.add(group, "squares_of_chunks", (source,), parts)
        builder.launches.append(
            Launch(
                SOURCE,
                f"sums_of_chunks<{target}, {room}>",
                (len(group.sizes), 1, 1),
                (BLOCK_THREADS, 1, 1),
                (group.pointers, builder.table(firsts.astype(np.int64)), parts),
            )
        )
        offset += 8 * int(firsts[-1])
    return same_calls(*builder.launches, tables=tuple(builder.tables), workspace_bytes=offset)
