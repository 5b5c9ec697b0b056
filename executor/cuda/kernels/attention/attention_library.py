"""Library calls of attention: options of the vendor's that are asked before kernels of ours.

Operands lie as the op lists them: q [b t g r d], k [b s g d], v [b s g u], out [b t g r u] and
logsumexp [b t g r], contiguous. For the library g and r are one dim of heads, and every operand has
the strides that this memory means.

Some versions of the library take a logsumexp only in the order b h t; so there is a second option,
which turns it over in scratch memory.
"""

from dataclasses import replace
from math import prod, sqrt

from millrace.executor.cuda.calls import (
    Attention,
    AttentionGrad,
    Call,
    Calls,
    KernelAlternatives,
    Operand,
    Strided,
    read,
    workspace,
    write,
)
from millrace.executor.cuda.kernels.context import CallsFactory
from millrace.executor.cuda.kernels.movement import Move, StridedPlace, move
from millrace.executor.cuda.kernels.strides import contiguous
from millrace.executor.kernels.attention.geometry import first_key, reach
from millrace.executor.kernels.attention.scores import head_slopes
from millrace.executor.kernels.context import Array, KernelContext
from millrace.models.graph import ITEMSIZE

DTYPES = ("bfloat16", "float16")
STATISTICS = "float32"  # dtype of the logsumexp
FORWARD, BACKWARD = "attention", "attention_grad"  # op kinds


def by_library(factory: CallsFactory) -> CallsFactory:
    """Factory with the library's calls put before its kernels, where there are any."""

    def make(context: KernelContext) -> Calls:
        return with_library(context, factory(context))

    return make


def with_library(context: KernelContext, calls: Calls) -> Calls:
    """Choices between the library and `calls`, or `calls` where it has no form of the op.

    Parameters
    ----------
    context
        An actor that computes `attention` or `attention_grad`.
    calls
        Kernels of ours that do.
    """
    if not _has_form(context):
        return calls
    options, tables = [], calls.tables
    for turned in (False, True) if _is_turned(context) else (False,):
        option, more = _option(context, turned, len(tables))
        options.append(option)
        tables += more
    scratch = ITEMSIZE[STATISTICS] * prod(_heads(context))
    return replace(
        calls,
        of=lambda firing: (KernelAlternatives((*options, calls.of(firing))),),
        tables=tables,
        workspace_bytes=max(calls.workspace_bytes, scratch),
    )


def _has_form(context: KernelContext) -> bool:
    """True if the library computes this: scores are left alone, masks begin at the corner."""
    query, key = context.inputs[:2]
    shards = (*context.inputs, *context.outputs)
    statistics = context.outputs[1] if context.kind == FORWARD else context.inputs[4]
    if (
        query.dtype not in DTYPES
        or statistics.dtype != STATISTICS
        or not all(shard.dtype == query.dtype for shard in shards if shard is not statistics)
    ):
        return False
    changed = head_slopes(context) is not None or context.number("cap", 0.0)
    if changed or not all(shard.size for shard in shards):
        return False
    corner = query.offsets[1] == first_key(context) and query.shape[1] == key.shape[1]
    return corner or reach(context) == (None, None)


def _heads(context: KernelContext) -> tuple[int, int, int]:
    """Samples, queries and query heads."""
    samples, queries, *heads, _ = context.inputs[0].shape
    return samples, queries, prod(heads)


def _is_turned(context: KernelContext) -> bool:
    """True if the logsumexp [b t h] lies otherwise than [b h t] would."""
    _, queries, heads = _heads(context)
    return queries > 1 and heads > 1


def _option(
    context: KernelContext, turned: bool, number: int
) -> tuple[tuple[Call, ...], tuple[Array, ...]]:
    """Calls of one option and the tables they read, numbered from `number` on."""
    samples, queries, heads = _heads(context)
    place = write(1) if context.kind == FORWARD else read(4)
    there = (queries * heads, 1, heads)
    if not turned:
        return (_library_call(context, Strided(place, STATISTICS, there)),), ()
    here = (heads * queries, queries, 1)
    call = _library_call(context, Strided(workspace(), STATISTICS, here))
    if context.kind == FORWARD:
        sizes = (samples, queries, heads)
        source, target = (here[0], here[2], here[1]), contiguous(sizes)
        turn = _move(context, workspace(), source, place, target, sizes, number)
        return (call, turn.call), turn.tables
    sizes = (samples, heads, queries)
    turn = _move(context, place, there, workspace(), contiguous(sizes), sizes, number)
    return (turn.call, call), turn.tables


def _move(
    context: KernelContext,
    source: Operand,
    source_strides: tuple[int, ...],
    target: Operand,
    target_strides: tuple[int, ...],
    sizes: tuple[int, ...],
    number: int,
) -> Move:
    return move(
        context.name,
        StridedPlace(source, STATISTICS, 0, source_strides),
        StridedPlace(target, STATISTICS, 0, target_strides),
        sizes,
        number,
    )


def _library_call(context: KernelContext, logsumexp: Strided) -> Attention | AttentionGrad:
    query, key, value = context.inputs[:3]
    samples, queries, heads = _heads(context)
    keys, groups, head_dim = key.shape[1:]
    value_dim = value.shape[-1]
    behind, ahead = reach(context)
    dtype = query.dtype

    def tensor(operand: Operand, count: int, rows: int, width: int) -> Strided:
        return Strided(operand, dtype, (rows * count * width, width, count * width, 1))

    grad = context.kind == BACKWARD
    forward = Attention(
        q=tensor(read(0), heads, queries, head_dim),
        k=tensor(read(1), groups, keys, head_dim),
        v=tensor(read(2), groups, keys, value_dim),
        out=tensor(read(3) if grad else write(0), heads, queries, value_dim),
        logsumexp=logsumexp,
        b=samples,
        h=heads,
        g=groups,
        t=queries,
        s=keys,
        d=head_dim,
        u=value_dim,
        scale=context.number("scale", 1 / sqrt(head_dim)),
        behind=behind,
        ahead=ahead,
    )
    if not grad:
        return forward
    return AttentionGrad(
        forward=forward,
        dout=tensor(read(5), heads, queries, value_dim),
        dq=tensor(write(0), heads, queries, head_dim),
        dk=tensor(write(1), groups, keys, head_dim),
        dv=tensor(write(2), groups, keys, value_dim),
    )
