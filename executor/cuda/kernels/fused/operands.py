"""Operands of a fused actor's parts, as plain calls take them."""

from millrace.executor.cuda.calls import CallTensor
from millrace.executor.cuda.kernels.unfused_parts import operand_at
from millrace.executor.kernels.context import FusedPart, KernelContext


def read_by(context: KernelContext, part: FusedPart, number: int) -> CallTensor:
    """Input of a part."""
    shard = part.context.inputs[number]
    return CallTensor(operand_at(context, part.inputs[number]), shard.dtype, shard.size)


def written_by(context: KernelContext, part: FusedPart, number: int) -> CallTensor:
    """Output of a part."""
    shard = part.context.outputs[number]
    return CallTensor(operand_at(context, part.outputs[number]), shard.dtype, shard.size)
