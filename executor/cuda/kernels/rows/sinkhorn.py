"""Sinkhorn's rounds and their gradient: calls with a thread for every matrix."""

from math import ceil, prod

import numpy as np

from millrace.executor.cuda.calls import (
    BLOCK_THREADS,
    Calls,
    Launch,
    read,
    same_calls,
    types,
    write,
)
from millrace.executor.cuda.kernels.rows.vectorized_rows import require_one_dtype
from millrace.executor.errors import ExecutorError
from millrace.executor.kernels.context import KernelContext

SOURCE = "sinkhorn"
SIDE_MAX, ROUNDS_MAX = 8, 32
"""Sides of a matrix and rounds that a thread has place for (`SIDE` and `STEPS` of the source)."""


def sinkhorn(context: KernelContext) -> Calls:
    """Calls of the matrices behind all rounds, of (x)."""
    return _calls(context, "sinkhorn")


def sinkhorn_grad(context: KernelContext) -> Calls:
    """Calls of dx, of (x, dy)."""
    return _calls(context, "sinkhorn_grad")


def _calls(context: KernelContext, function: str) -> Calls:
    """Calls of a kernel that takes all inputs, the output, and the sizes.

    Raises
    ------
    ExecutorError
        Operands differ in dtype, or a thread has no place for a matrix or its rounds.
    """
    x = context.inputs[0]
    require_one_dtype(context, *context.inputs, *context.outputs)
    *others, rows, columns = x.shape
    rounds = int(context.number("rounds", 1))
    if max(rows, columns) > SIDE_MAX or rounds > ROUNDS_MAX:
        raise ExecutorError(
            f"matrices are at most {SIDE_MAX} wide and have at most {ROUNDS_MAX} rounds, found "
            f"{rows} by {columns} and {rounds}",
            actor=context.name,
        )
    matrices = prod(others)
    blocks = ceil(matrices / BLOCK_THREADS)
    launch = Launch(
        SOURCE,
        function + types(x.dtype),
        (blocks, 1, 1),
        (BLOCK_THREADS, 1, 1),
        (
            *(read(number) for number in range(len(context.inputs))),
            write(0),
            *(np.int64(size) for size in (matrices, rows, columns, rounds)),
            np.float64(context.number("epsilon", 0.0)),
        ),
    )
    return same_calls(*((launch,) if blocks else ()))
