"""Calls of dispatch and combine: tokens to the places of their experts and back, row by row.

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
    always,
    by_row,
    elementwise,
    read,
    table,
    workspace,
    write,
)
from millrace.executor.cuda.kernels.rows.packs import by_pack, pack_of, templated
from millrace.executor.kernels.context import Array, KernelContext, Shard

SOURCE = "dispatch"
HOLDER_BYTES = 8  # an i64 for every row
UNITS = (
    ("Pack<bf16, 8>", 16),
    ("i64", 8),
    ("int", 4),
    ("bf16", 2),
)  # what rows may be copied in, and its bytes


def dispatch(context: KernelContext) -> Calls:
    """Return every token at the places it got, of (x, expert, place); zeros elsewhere."""
    made, choices = context.outputs[0], context.inputs[1]
    rows = prod(made.shape[:3])
    row_bytes = made.shape[3] * (2 if made.dtype == "bfloat16" else np.dtype(made.dtype).itemsize)
    unit, unit_bytes = next(one for one in UNITS if row_bytes % one[1] == 0)
    place = by_row(
        SOURCE, f"dispatch<{unit}>", rows, row_bytes // unit_bytes,
        read(0), workspace(), write(0), np.int64(choices.shape[2]),
    )  # fmt: skip
    return always(
        *_holders(rows, choices, read(1), read(2)), place,
        tables=(_ways(made, choices),), workspace_bytes=rows * HOLDER_BYTES,
    )  # fmt: skip


def dispatch_grad(context: KernelContext) -> Calls:
    """Return dx of (dy, expert, place): dy of a token's places, added up."""
    # without weights the kernel reads none of what stands for them
    return _gather(context, f"Plain, {TYPES[context.inputs[0].dtype]}", read(0))


def combine(context: KernelContext) -> Calls:
    """Return the sum by weight of a token's places, of (y, expert, place, weight)."""
    weight = TYPES[context.inputs[3].dtype]
    return _gather(context, f"Weighted<{weight}>, {weight}", read(3))


def _gather(context: KernelContext, by: str, weight: Operand) -> Calls:
    """Return the sum of a token's rows."""
    rows, out = context.inputs[0], context.outputs[0]
    pack = pack_of(rows, out)
    launch = by_pack(
        SOURCE, f"gather<{TYPES[out.dtype]}, {by}, {pack}>", prod(out.shape[:2]), out.shape[2],
        pack, read(0), read(1), read(2), weight, write(0), table(0),
    )  # fmt: skip
    return always(launch, tables=(_ways(rows, context.inputs[1]),))


def combine_grad_input(context: KernelContext) -> Calls:
    """Return dy of (dout, expert, place, weight): dout by weight, at the places of its token."""
    made, choices, weight = context.outputs[0], context.inputs[1], context.inputs[3]
    rows = prod(made.shape[:3])
    pack = pack_of(made)
    place = by_pack(
        SOURCE, templated("combine_grad_input", (made, weight), pack), rows, made.shape[3], pack,
        read(0), read(3), workspace(), write(0), np.int64(choices.shape[2]),
    )  # fmt: skip
    return always(
        *_holders(rows, choices, read(1), read(2)), place,
        tables=(_ways(made, choices),), workspace_bytes=rows * HOLDER_BYTES,
    )  # fmt: skip


def combine_grad_weight(context: KernelContext) -> Calls:
    """Return dweight of (dout, y, expert, place): dout times what is at a token's places."""
    dout, y, choices = context.inputs[:3]
    dweight = context.outputs[0]
    pack = pack_of(dout, y)
    launch = by_pack(
        SOURCE, templated("combine_grad_weight", (dout, y, dweight), pack),
        dweight.size, dout.shape[2], pack, read(0), read(1), read(2), read(3), write(0), table(0),
    )  # fmt: skip
    return always(launch, tables=(_ways(y, choices),))


def _ways(at_experts: Shard, choices: Shard) -> Array:
    """Return the struct `Ways` of the shards of [e, b, c, d] and of [b, t, k]."""
    experts, samples, capacity, _ = at_experts.shape
    _, tokens, count = choices.shape
    return np.array(
        [at_experts.offsets[0], experts, samples, capacity, tokens, count], np.int64
    )  # fmt: skip


def _holders(rows: int, choices: Shard, expert: Operand, place: Operand) -> tuple[Call, Call]:
    """Return what leaves every row's holder in the workspace."""
    return (
        Clear(workspace(), rows * HOLDER_BYTES),
        elementwise(
            SOURCE, "find_holders", choices.size, expert, place, workspace(), table(0)
        ),
    )  # fmt: skip
