"""The table of factories: one per op kind; a test holds its keys to those of the op table."""

from millrace.executor.cuda.calls import TYPES, Calls
from millrace.executor.cuda.kernels.attention.attention_kernels import ATTENTION
from millrace.executor.cuda.kernels.context import CallsFactory
from millrace.executor.cuda.kernels.elementwise.elementwise_kernels import ELEMENTWISE
from millrace.executor.cuda.kernels.experts.expert_kernels import EXPERTS
from millrace.executor.cuda.kernels.fused.fused_kernels import fused_calls
from millrace.executor.cuda.kernels.images.image_kernels import IMAGES
from millrace.executor.cuda.kernels.matmul import matmul
from millrace.executor.cuda.kernels.movement import (
    concat,
    narrow,
    pad,
    rearrange,
    slice_,
    sum_,
    widen,
)
from millrace.executor.cuda.kernels.muon import MUON
from millrace.executor.cuda.kernels.optimizer import OPTIMIZER
from millrace.executor.cuda.kernels.rows.row_kernels import ROWS
from millrace.executor.cuda.kernels.sequence.sequence_kernels import SEQUENCE
from millrace.executor.cuda.kernels.source import constant, fill, input_
from millrace.executor.errors import ExecutorError
from millrace.executor.kernels.context import KernelContext

CALLS: dict[str, CallsFactory] = {
    **ATTENTION,
    **ELEMENTWISE,
    **EXPERTS,
    **IMAGES,
    **OPTIMIZER,
    **MUON,
    **ROWS,
    **SEQUENCE,
    "broadcast": rearrange,
    "concat": concat,
    "constant": constant,
    "fill": fill,
    "input": input_,
    "matmul": matmul,
    "narrow": narrow,
    "pad": pad,
    "rearrange": rearrange,
    "slice": slice_,
    "sum": sum_,
    "widen": widen,
}


def make_calls(context: KernelContext) -> Calls:
    """Calls of an actor.

    Raises
    ------
    ExecutorError
        The kind has no kernel, or the labels, shapes or dtypes are ones that it cannot compute.
    """
    if context.parts:
        return fused_calls(context, make_calls)
    if context.kind not in CALLS:
        raise ExecutorError(f"no CUDA kernel for op kind `{context.kind}`", actor=context.name)
    for shard in (*context.inputs, *context.outputs):
        if shard.dtype not in TYPES:
            raise ExecutorError(
                f"the GPU backend computes nothing in {shard.dtype}: plan with --precision bf16",
                actor=context.name,
            )
    return CALLS[context.kind](context)
