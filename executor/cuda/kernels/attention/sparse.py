"""Sparse attention: calls of a choice of keys, and of attention to these and its gradients.

They are right for any shape and simple: a head of a query fetches its keys for itself. Sizes as in
`sources/sparse_attention.cu`.
"""

from math import prod

import numpy as np

from millrace.executor.cuda.calls import (
    BLOCK_THREADS,
    Calls,
    Launch,
    Operand,
    Scalar,
    read,
    same_calls,
    types,
    workspace,
    write,
)
from millrace.executor.cuda.kernels.rows.vectorized_rows import require_one_dtype
from millrace.executor.errors import ExecutorError
from millrace.executor.kernels.attention.sparse import SEEN
from millrace.executor.kernels.context import KernelContext
from millrace.models.graph import ITEMSIZE
from millrace.models.type_inference import at_least_float32

SOURCE = "sparse_attention"
BLOCKS_MAX = 2048  # blocks that have scratch, several for every multiprocessor
WIDEST = 4 * BLOCK_THREADS  # `COLUMNS` of the source for every thread


def choose_keys(context: KernelContext) -> Calls:
    """Calls of the chosen keys' places, of (query, weights, key)."""
    query, weights, key = context.inputs
    require_one_dtype(context, query, weights, key)
    samples, queries, heads, features = query.shape
    keys, count = key.shape[1], context.outputs[0].shape[-1]
    rows = samples * queries
    window, stride = int(context.number("window", 0)), int(context.number("stride", 1))
    behind = query.global_shape[1] if window else 0
    places = (query.offsets[1], window, stride, behind)
    sizes = (rows, queries, keys, heads, features, count, *places)
    operands = (*(read(number) for number in range(3)), workspace(), write(0))
    launches, blocks = _launched("choose_keys" + types(query.dtype), rows, operands, sizes)
    scratch = blocks * keys * ITEMSIZE[at_least_float32(query.dtype)]
    return same_calls(*launches, workspace_bytes=scratch)


def seen_keys(context: KernelContext) -> Calls:
    """Calls of the places of tokens in a window, and of all keys behind the tokens."""
    (places,) = context.outputs
    samples, queries, count = places.shape
    window, stride, tokens = (int(context.number(name, 1)) for name in SEEN)
    rows = samples * queries
    sizes = (rows, queries, count, places.offsets[1], window, stride, tokens)
    return same_calls(*_launched("seen_keys", rows, (write(0),), sizes)[0])


def sparse_attention(context: KernelContext) -> Calls:
    """Calls of output and logsumexp, of (q, k, v, chosen)."""
    sizes, items, scale = _sizes(context)
    dtypes = types(context.inputs[0].dtype, context.outputs[1].dtype)
    operands = (*(read(number) for number in range(4)), workspace(), write(0), write(1))
    launches, blocks = _launched("sparse_attention" + dtypes, items, operands, sizes, scale)
    return same_calls(*launches, workspace_bytes=blocks * _scratch(context))


def sparse_attention_grad(context: KernelContext) -> Calls:
    """Calls of dq, dk and dv, of (q, k, v, chosen, out, logsumexp, dout)."""
    sizes, items, scale = _sizes(context)
    dtypes = types(context.inputs[0].dtype, context.inputs[5].dtype)
    given = tuple(read(number) for number in range(7))
    of_queries, blocks = _launched(
        "sparse_attention_grad_query" + dtypes, items, (*given, workspace(), write(0)), sizes, scale
    )
    all_keys = prod(context.inputs[1].shape[:2])
    of_keys, _ = _launched(
        "sparse_attention_grad_keys" + dtypes,
        all_keys,
        (*given, write(1), write(2)),
        (all_keys, *sizes[1:]),
        scale,
    )
    return same_calls(*of_queries, *of_keys, workspace_bytes=blocks * _scratch(context))


def _sizes(context: KernelContext) -> tuple[tuple[int, ...], int, tuple[np.float64, ...]]:
    """Sizes as kernels take them, heads of queries, and the scale.

    Raises
    ------
    ExecutorError
        Operands differ in dtype, or a row is wider than a block holds.
    """
    query, key, value, chosen = context.inputs[:4]
    require_one_dtype(context, query, key, value, *context.inputs[4:5], *context.inputs[6:])
    samples, queries, *heads, head_dim = query.shape
    widest = max(head_dim, value.shape[-1])
    if widest > WIDEST:
        raise ExecutorError(
            f"sparse attention has heads of at most {WIDEST} features, found {widest}",
            actor=context.name,
        )
    items = samples * queries * prod(heads)
    count, value_dim = chosen.shape[-1], value.shape[-1]
    sizes = (items, queries, key.shape[1], prod(heads), count, head_dim, value_dim)
    return sizes, items, (np.float64(context.number("scale", 1.0)),)


def _scratch(context: KernelContext) -> int:
    """Bytes of a block's scratch: a number for every key that is chosen."""
    count, dtype = context.inputs[3].shape[-1], context.inputs[0].dtype
    return count * ITEMSIZE[at_least_float32(dtype)]


def _launched(
    function: str,
    work: int,
    operands: tuple[Operand, ...],
    sizes: tuple[int, ...],
    scale: tuple[Scalar, ...] = (),
) -> tuple[tuple[Launch, ...], int]:
    """Launches of blocks that take pieces of work in turns, and how many blocks these are."""
    blocks = min(work, BLOCKS_MAX)
    args = (*operands, *(np.int64(size) for size in sizes), *scale)
    launch = Launch(SOURCE, function, (blocks, 1, 1), (BLOCK_THREADS, 1, 1), args)
    return ((launch,) if blocks else ()), blocks
