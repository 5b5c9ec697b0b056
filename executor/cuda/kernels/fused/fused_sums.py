"""Sums over rows that are added to the sums over microbatches.

What a sum alone would have rounded before it is added is rounded so here, and values are the same.
"""

from millrace.executor.cuda.calls import Calls
from millrace.executor.cuda.kernels.column_sums import ColumnSums, column_sum
from millrace.executor.cuda.kernels.fused.operands import read_by, written_by
from millrace.executor.cuda.kernels.rows.norms import norm_grad_weight
from millrace.executor.kernels.context import FusedPart, KernelContext
from millrace.executor.kernels.dims import bind_operand_dims

WEIGHTS = ("layer_norm_grad_weight", "rms_norm_grad_weight")


def sum_calls(context: KernelContext) -> Calls | None:
    """Calls of a sum over the first dims of a tensor, or of the gradients of a norm's weights.

    None: the actor is none, or not all results are added up.
    """
    head = context.parts[0]
    kind = head.context.kind
    if kind not in (*WEIGHTS, "sum") or (sums := added_sums(context, head)) is None:
        return None
    if len(context.parts) != 1 + len(head.outputs):
        return None
    x = read_by(context, head, 0)
    if kind == "sum":
        dims = bind_operand_dims(head.context)
        (input_dims,), (output_dims,) = dims.inputs, dims.outputs
        if input_dims[len(input_dims) - len(output_dims) :] != output_dims or not (
            x.dtype.startswith(("float", "bfloat"))
        ):
            return None
        columns = head.context.outputs[0].size
        return column_sum(x, sums, columns=columns) if x.size > columns else None
    rms = kind == "rms_norm_grad_weight"
    return norm_grad_weight(
        x,
        read_by(context, head, 1),
        read_by(context, head, 2 if rms else 3),
        sums,
        columns=head.context.inputs[0].shape[-1],
        mean=None if rms else read_by(context, head, 2).operand,
    )


def added_sums(context: KernelContext, part: FusedPart) -> ColumnSums | None:
    """Sums over microbatches that all results of a part are added to; None: it has others."""
    readers = []
    for number in part.outputs:
        reader = next(
            (candidate for candidate in context.parts if number in candidate.inputs), None
        )
        if reader is None or reader.context.kind != "accumulate":
            return None
        readers.append(reader)
    outputs = tuple(written_by(context, reader, 0) for reader in readers)
    holds = {reader.context.output_hold for reader in readers}
    if len({output.dtype for output in outputs}) > 1 or len(holds) > 1:
        return None
    return ColumnSums(outputs=outputs, rounded=part.context.outputs[0].dtype, hold=max(holds))
