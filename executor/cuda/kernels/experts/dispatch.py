"""Dispatch and combine: calls that move tokens to their experts' places and back, row by row.

What goes to the experts reads, for every row of [e b c, d], which choice has it: a first launch
leaves that in the workspace. What comes back finds the row of every choice by itself. Experts may
be a shard: their offset decides who holds them.

Shape legend: b samples, t tokens of a sample, k choices of a token, e experts here, c places of an
expert, d features.
"""

from math import prod

import numpy as np

from millrace.executor.cuda.calls import (
    TYPES,
    Call,
    Calls,
    Clear,
    Operand,
    by_row,
    elementwise,
    read,
    same_calls,
    table,
    workspace,
    write,
)
from millrace.executor.cuda.kernels.rows.vectorized_rows import by_pack, pack_of, templated
from millrace.executor.kernels.context import Array, KernelContext, Shard

SOURCE = "dispatch"
HOLDER_BYTES = 8  # bytes of an i64 for every row
UNITS = (
    ("Pack<bf16, 8>", 16),
    ("i64", 8),
    ("int", 4),
    ("bf16", 2),
)  # types that rows may be copied in, and their bytes


def dispatch(context: KernelContext) -> Calls:
    """Calls that write a token to the places it got, of (x, expert, place); zeros elsewhere."""
    at_experts, choices = context.outputs[0], context.inputs[1]
    rows = prod(at_experts.shape[:3])
    row_bytes = at_experts.shape[3] * (
        2 if at_experts.dtype == "bfloat16" else np.dtype(at_experts.dtype).itemsize
    )
    unit, unit_bytes = next(pair for pair in UNITS if row_bytes % pair[1] == 0)
    place = by_row(
        SOURCE, f"dispatch<{unit}>", rows, row_bytes // unit_bytes,
        read(0), workspace(), write(0), np.int64(choices.shape[2]),
    )  # fmt: skip
    return same_calls(
        *_holders(rows, choices, read(1), read(2)), place,
        tables=(_ways(at_experts, choices),), workspace_bytes=rows * HOLDER_BYTES,
    )  # fmt: skip


def dispatch_grad(context: KernelContext) -> Calls:
    """Calls of dx of (dy, expert, place): dy of a token's places, added up."""
    # Without weights the kernel reads none of what stands for them.
    return _gather(context, f"Plain, {TYPES[context.inputs[0].dtype]}", read(0))


def combine(context: KernelContext) -> Calls:
    """Calls of the sum by weight of a token's places, of (y, expert, place, weight)."""
    weight = TYPES[context.inputs[3].dtype]
    return _gather(context, f"Weighted<{weight}>, {weight}", read(3))


def _gather(context: KernelContext, by: str, weight: Operand) -> Calls:
    """Calls of the sum of a token's rows."""
    rows, out = context.inputs[0], context.outputs[0]
    pack = pack_of(rows, out)
    launch = by_pack(
        SOURCE, f"gather<{TYPES[out.dtype]}, {by}, {pack}>", prod(out.shape[:2]), out.shape[2],
        pack, read(0), read(1), read(2), weight, write(0), table(0),
    )  # fmt: skip
    return same_calls(launch, tables=(_ways(rows, context.inputs[1]),))


def combine_grad_input(context: KernelContext) -> Calls:
    """Calls of dy of (dout, expert, place, weight): dout by weight, at its token's places."""
    at_experts, choices, weight = context.outputs[0], context.inputs[1], context.inputs[3]
    rows = prod(at_experts.shape[:3])
    pack = pack_of(at_experts)
    place = by_pack(
        SOURCE, templated("combine_grad_input", (at_experts, weight), pack), rows,
        at_experts.shape[3], pack,
        read(0), read(3), workspace(), write(0), np.int64(choices.shape[2]),
    )  # fmt: skip
    return same_calls(
        *_holders(rows, choices, read(1), read(2)), place,
        tables=(_ways(at_experts, choices),), workspace_bytes=rows * HOLDER_BYTES,
    )  # fmt: skip


def combine_grad_weight(context: KernelContext) -> Calls:
    """Calls of dweight of (dout, y, expert, place): dout times what is at a token's places."""
    dout, y, choices = context.inputs[:3]
    dweight = context.outputs[0]
    pack = pack_of(dout, y)
    launch = by_pack(
        SOURCE, templated("combine_grad_weight", (dout, y, dweight), pack),
        dweight.size, dout.shape[2], pack, read(0), read(1), read(2), read(3), write(0), table(0),
    )  # fmt: skip
    return same_calls(launch, tables=(_ways(y, choices),))


def _ways(at_experts: Shard, choices: Shard) -> Array:
    """Struct `Ways` of the shards of [e, b, c, d] and of [b, t, k]."""
    experts, samples, capacity, _ = at_experts.shape
    _, tokens, count = choices.shape
    return np.array(
        [at_experts.offsets[0], experts, samples, capacity, tokens, count], np.int64
    )  # fmt: skip


def _holders(rows: int, choices: Shard, expert: Operand, place: Operand) -> tuple[Call, Call]:
    """Calls that leave every row's holder in the workspace."""
    return (
        Clear(workspace(), rows * HOLDER_BYTES),
        elementwise(
            SOURCE, "find_holders", choices.size, expert, place, workspace(), table(0)
        ),
    )  # fmt: skip
