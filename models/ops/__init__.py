"""The op table: one row per kind of op, from which splits, FLOPs and bytes are derived.

A row says what the index labels of an op (`millrace.models.labels`) cannot: in which inputs the op
is linear, what a contracted label's partial results add up to, and which products of two operands
it takes. From labels and row follow the legal signatures: a label that is split is S on every
operand that has it and P(reduction) on an output that lacks it; partial inputs pass through where
the op is linear. Read `kind.py` (what a row says) first, then the rows; `op_table.py` joins them
and counts.
"""

from millrace.models.ops.kind import Attributes, OpKind
from millrace.models.ops.op_table import (
    OPS,
    kinds_where,
    model_flops,
    op_flops,
    op_kind,
    op_work,
    state_of,
)
from millrace.models.ops.pointwise_ops import FUNCTIONS

__all__ = [
    "FUNCTIONS",
    "OPS",
    "Attributes",
    "OpKind",
    "kinds_where",
    "model_flops",
    "op_flops",
    "op_kind",
    "op_work",
    "state_of",
]
