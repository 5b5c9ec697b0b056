"""Image layers in one pass: a batch norm, the sum with a shortcut's tensor, relu."""

from millrace.executor.cuda.calls import Calls
from millrace.executor.cuda.kernels.fused.operands import read_by, written_by
from millrace.executor.cuda.kernels.images.batch_norm import NormEpilogue, normed
from millrace.executor.cuda.kernels.unfused_parts import is_inner
from millrace.executor.kernels.context import KernelContext

AFTER = (["add"], ["relu"], ["add", "relu"])
"""Kinds that one pass over the elements does after the norm."""


def batch_norm_calls(context: KernelContext) -> Calls | None:
    """Calls of a batch norm and what follows on it.

    None: the actor is none, or its parts differ in dtype.
    """
    head, *after = context.parts
    if head.context.kind != "batch_norm" or [part.context.kind for part in after] not in AFTER:
        return None
    dtypes = {
        shard.dtype for part in after for shard in (*part.context.inputs, *part.context.outputs)
    }
    if dtypes != {head.context.inputs[0].dtype}:
        return None
    output_number, other, before_relu = head.outputs[0], None, None
    relu = after[-1].context.kind == "relu"
    if after[0].context.kind == "add":
        if not is_inner(context, output_number):
            return None
        other = read_by(context, after[0], 1 - after[0].inputs.index(output_number)).operand
        output_number = after[0].outputs[0]
    if relu and not is_inner(context, output_number):
        before_relu = written_by(context, after[-2] if len(after) > 1 else head, 0).operand
    return normed(
        head.context,
        [read_by(context, head, number).operand for number in range(len(head.inputs))],
        written_by(context, after[-1], 0).operand,
        NormEpilogue(other=other, relu=relu, pre_relu=before_relu),
    )
