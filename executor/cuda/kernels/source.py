"""Source ops, without inputs: calls of samples of the dataset, constants of the model, fills."""

from millrace.executor.cuda.calls import (
    CONTROL,
    Calls,
    CopyCall,
    elementwise,
    same_calls,
    stage,
    table,
    types,
    write,
)
from millrace.executor.cuda.kernels.movement import SOURCE, filling
from millrace.executor.cuda.kernels.optimizer import loss_scaled_fill
from millrace.executor.kernels.context import KernelContext
from millrace.executor.kernels.source import constant_bits


def stage_dtype(dtype: str) -> str:
    """Dtype in which the host stages samples of a register of `dtype`.

    It is the register's, but float32 for one of 16 bits, whose narrowing is left to the device.

    Examples
    --------
    >>> stage_dtype("bfloat16"), stage_dtype("int32")
    ('float32', 'int32')
    """
    return "float32" if dtype in ("bfloat16", "float16") else dtype


def input_(context: KernelContext) -> Calls:
    """Calls that write the samples that were copied to this step's half of the stage."""
    shard = context.outputs[0]
    name = f"from_stage{types(stage_dtype(shard.dtype), shard.dtype)}"
    return same_calls(
        elementwise(SOURCE, name, shard.size, CONTROL, stage(0), stage(1), write(0))
    )  # fmt: skip


def fill(context: KernelContext) -> Calls:
    """Calls that fill y with the attribute `value`; with `loss_scaled`, times the loss scale."""
    if context.attributes.get("loss_scaled"):
        return loss_scaled_fill(context)
    return same_calls(filling(context, float(context.attributes["value"])))


def constant(context: KernelContext) -> Calls:
    """Calls that write the shard of the values in `data`, or `value` everywhere if it is empty.

    Raises
    ------
    ExecutorError
        `data` is not the text of as many values as the tensor has.
    """
    if not context.attributes["data"]:
        return fill(context)
    values = constant_bits(context)
    return same_calls(CopyCall(table(0), write(0), values.nbytes), tables=(values,))
