"""Relative bias (T5's) and its gradient: calls; H heads, T queries here, S keys, M buckets."""

import numpy as np

from millrace.executor.cuda.calls import (
    Calls,
    by_row,
    elementwise,
    read,
    same_calls,
    table,
    types,
    workspace,
    write,
)
from millrace.executor.kernels.context import KernelContext
from millrace.executor.kernels.sequence.relative_bias import distances
from millrace.models.graph import ITEMSIZE
from millrace.models.type_inference import at_least_float32

SOURCE = "relative_bias"


def relative_bias(context: KernelContext) -> Calls:
    """Calls of the bias [H, T, S] of a table [M, H]."""
    given, output = context.inputs[0], context.outputs[0]
    geometry = distances(context, output.shape, output.offsets)
    return same_calls(
        by_row(
            SOURCE,
            "relative_bias" + types(given.dtype, output.dtype),
            geometry.heads * geometry.queries,
            geometry.keys,
            read(0), table(0), write(0), np.int64(geometry.heads), np.int64(geometry.queries),
        ),
        tables=(geometry.bucket.astype(np.int32),),
    )  # fmt: skip


def relative_bias_grad(context: KernelContext) -> Calls:
    """Calls of the table's gradient [M, H]: that of the bias added up by distance, by bucket."""
    given, output = context.inputs[0], context.outputs[0]
    geometry = distances(context, given.shape, given.offsets)
    wide, count = at_least_float32(given.dtype), geometry.heads * geometry.bucket.size
    return same_calls(
        elementwise(
            SOURCE, "bias_by_distance" + types(given.dtype), count,
            read(0), workspace(), np.int64(geometry.queries), np.int64(geometry.keys),
        ),
        by_row(
            SOURCE, "bias_by_bucket" + types(wide, output.dtype), output.size, geometry.bucket.size,
            workspace(), table(0), write(0), np.int64(geometry.heads),
        ),
        tables=(geometry.bucket.astype(np.int32),),
        workspace_bytes=count * ITEMSIZE[wide],
    )  # fmt: skip
