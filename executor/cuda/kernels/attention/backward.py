"""Backward pass of attention: calls of its gradients; shapes as in `shape.py`.

First delta, the sum of dout · out of every query, into the workspace; then one kernel for dq, one
for dk and dv and, where there is one, one for the bias. Each finds the scores again.
"""

from math import ceil, prod

import numpy as np

from millrace.executor.cuda.calls import (
    BLOCK_THREADS,
    TYPES,
    WARP_THREADS,
    Calls,
    Launch,
    Operand,
    read,
    same_calls,
    table,
    types,
    workspace,
    write,
)
from millrace.executor.cuda.kernels.attention.forward import function_of, typed
from millrace.executor.cuda.kernels.attention.matrix_units import MatrixShape, is_supported
from millrace.executor.cuda.kernels.attention.shape import BIAS, AttentionShape, attention_shape
from millrace.executor.kernels.context import KernelContext
from millrace.models.graph import ITEMSIZE

SOURCE = "attention_grad"


def attention_grad(context: KernelContext) -> Calls:
    """Calls of dq, dk and dv of (q, k, v, out, logsumexp, dout)."""
    return _backward(context)


def biased_attention_grad(context: KernelContext) -> Calls:
    """Calls of dq, dk, dv and dbias of (q, k, v, bias, out, logsumexp, dout)."""
    return _backward(context, bias=BIAS)


def attention_grad_round(context: KernelContext) -> Calls:
    """Calls of dq so far, and dk and dv of the block, of (q, k, v, out, logsumexp, dout, dq)."""
    return _backward(context, before=6)


def _backward(
    context: KernelContext, *, bias: int | None = None, before: int | None = None
) -> Calls:
    """Calls of the gradients; `before` is the input to which dq is added."""
    shape = attention_shape(context, biased=bias is not None)
    out = 3 if bias is None else bias + 1
    given_types = [TYPES[context.inputs[number].dtype] for number in (out + 1, out + 2)]
    bias_type, added = typed(context, bias)
    before_type, had = typed(context, before)
    if bias is None and is_supported(
        context, shape, narrow=context.inputs[out + 2 : out + 3], outs=context.outputs
    ):
        return _by_matrix_units(context, shape, before)
    dq, dk, *dbias = [TYPES[shard.dtype] for shard in (context.outputs[0], *context.outputs[2:])]
    delta = workspace()
    given = (
        table(0), table(1), read(0), read(1), read(2), added, read(out + 1), delta, read(out + 2),
    )  # fmt: skip
    launches = [
        _delta(context, shape, out, delta),
        *shape.launch(
            SOURCE,
            function_of("attention_grad_query", shape, *given_types, dq, bias_type, before_type),
            shape.heads * shape.query_tiles,
            *given, had, write(0),
        ),
        *shape.launch(
            SOURCE,
            function_of("attention_grad_keys", shape, *given_types, dk, bias_type),
            shape.samples * shape.groups * shape.key_tiles,
            *given, write(1), write(2),
        ),
    ]  # fmt: skip
    if dbias:
        names = ", ".join((TYPES[shape.dtype], *given_types, bias_type, *dbias))
        function, blocks = f"attention_grad_bias<{names}>", _bias_blocks(shape)
        launches += shape.launch(SOURCE, function, blocks, *given, write(3))
    rows = shape.heads * shape.queries
    return same_calls(*launches, tables=shape.tables, workspace_bytes=rows * ITEMSIZE[shape.wide])


def _by_matrix_units(context: KernelContext, shape: AttentionShape, before: int | None) -> Calls:
    """Calls that write two statistics of every query to the workspace, then dq, dk and dv."""
    matrix_shape = MatrixShape(shape=shape)
    base, delta = workspace(), workspace(matrix_shape.statistics * ITEMSIZE[shape.wide])
    padded = np.int64(matrix_shape.padded)
    warps = BLOCK_THREADS // WARP_THREADS
    before_type, had = typed(context, before)
    dq, dk = (TYPES[shard.dtype] for shard in context.outputs[:2])
    given = (table(0), read(0), read(1), read(2), read(5), base, delta, padded)
    statistics = Launch(
        "attention_mma_grad",
        "attention_statistics" + types(context.inputs[3].dtype, context.inputs[5].dtype),
        (ceil(matrix_shape.statistics / warps), 1, 1),
        (BLOCK_THREADS, 1, 1),
        (table(0), read(3), read(5), read(4), base, delta, padded),
    )
    return same_calls(
        *((statistics,) if matrix_shape.statistics else ()),
        *matrix_shape.of_queries((dq, before_type), *given, had, write(0)),
        *matrix_shape.of_keys((dk,), *given, write(1), write(2)),
        tables=shape.tables,
        workspace_bytes=2 * matrix_shape.statistics * ITEMSIZE[shape.wide],
    )


def _delta(context: KernelContext, shape: AttentionShape, out: int, delta: Operand) -> Launch:
    """Launch of delta, one warp per query and head."""
    rows = shape.heads * shape.queries
    dtypes = types(shape.wide, context.inputs[out].dtype, context.inputs[out + 2].dtype)
    return Launch(
        SOURCE,
        "attention_delta" + dtypes,
        (ceil(rows / (BLOCK_THREADS // WARP_THREADS)), 1, 1),
        (BLOCK_THREADS, 1, 1),
        (read(out), read(out + 2), delta, np.int64(rows), np.int64(shape.value_dim)),
    )


def _bias_blocks(shape: AttentionShape) -> int:
    """Blocks of dbias: one per place of the labels that the bias has, queries and keys by tiles."""
    places = (shape.samples, shape.groups, shape.repeats, shape.query_tiles, shape.key_tiles)
    return prod(count for count, stride in zip(places, shape.bias_strides, strict=True) if stride)
