"""Operands of a fused actor's parts, as plain calls take them."""

from millrace.executor.cuda.calls import Tensor
from millrace.executor.cuda.kernels.in_turn import operand_at
from millrace.executor.kernels.context import FusedPart, KernelContext


def read_by(context: KernelContext, part: FusedPart, at: int) -> Tensor:
    """Return an input of a part."""
    shard = part.context.inputs[at]
    return Tensor(operand_at(context, part.inputs[at]), shard.dtype, shard.size)


def written_by(context: KernelContext, part: FusedPart, at: int) -> Tensor:
    """Return an output of a part."""
    shard = part.context.outputs[at]
    return Tensor(operand_at(context, part.outputs[at]), shard.dtype, shard.size)
