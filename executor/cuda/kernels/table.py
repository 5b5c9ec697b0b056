"""The table of factories: one per op kind; a test holds its keys to those of the op table."""

from executor.cuda.calls import Calls
from executor.cuda.kernels.context import CallsFactory
from executor.cuda.kernels.matmul import matmul
from executor.cuda.kernels.rows.table import ROWS
from executor.errors import ExecutorError
from executor.kernels.context import KernelContext

CALLS: dict[str, CallsFactory] = {
    **ROWS,
    "matmul": matmul,
}


def make_calls(context: KernelContext) -> Calls:
    """Return the calls of an actor.

    Raises
    ------
    ExecutorError
        The kind has no kernel, or the labels, shapes or dtypes are ones that it cannot compute.
    """
    if context.kind not in CALLS:
        raise ExecutorError(f"no CUDA kernel for op kind `{context.kind}`", actor=context.name)
    return CALLS[context.kind](context)
