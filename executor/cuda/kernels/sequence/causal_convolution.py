"""Causal convolution along the tokens and its gradients: calls; x [B, T, C], filters [C, K]."""

import numpy as np

from millrace.executor.cuda.calls import (
    TYPES,
    Calls,
    CallTensor,
    elementwise,
    read,
    same_calls,
    types,
    workspace,
    write,
)
from millrace.executor.cuda.kernels.column_sums import ColumnSums, summed_in_slabs
from millrace.executor.kernels.context import KernelContext
from millrace.executor.kernels.sequence.causal_convolution import sizes_of
from millrace.models.type_inference import at_least_float32

SOURCE = "causal_convolution"


def causal_conv1d(context: KernelContext) -> Calls:
    """Calls of the convolution, or of the gradient of what it reads."""
    _, *sizes = sizes_of(context)
    dtypes = (shard.dtype for shard in (*context.inputs, *context.outputs))
    forward = "true" if context.kind == "causal_conv1d" else "false"
    return same_calls(
        elementwise(
            SOURCE,
            f"causal_conv1d<{types(*dtypes)[1:-1]}, {forward}>",
            context.outputs[0].size,
            read(0), read(1), write(0), *map(np.int64, sizes),
        )
    )  # fmt: skip


def causal_conv1d_grad_weight(context: KernelContext) -> Calls:
    """Calls of the gradient of the filters, a sum over samples and tokens."""
    samples, *sizes = sizes_of(context)
    tokens, channels, taps = sizes
    x, out = context.inputs[0], context.outputs[0]
    wide = at_least_float32(x.dtype)
    sums = ColumnSums(outputs=(CallTensor(write(0), out.dtype, out.size),), scratch=workspace())
    return summed_in_slabs(
        SOURCE, f"causal_conv1d_grad_weight<{TYPES[x.dtype]}, {TYPES[wide]}>",
        samples * tokens, channels * taps, 1, sums, wide, read(0), read(1), *map(np.int64, sizes),
    )  # fmt: skip
