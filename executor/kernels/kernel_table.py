"""The table of kernels: one factory per op kind; a test holds its keys to those of the op table."""

from millrace.executor.errors import ExecutorError
from millrace.executor.kernels.attention import ATTENTION
from millrace.executor.kernels.context import Kernel, KernelContext, KernelFactory
from millrace.executor.kernels.elementwise.arithmetic import (
    accumulate,
    add,
    cast,
    mul,
    scale,
    shift,
)
from millrace.executor.kernels.elementwise.dropout import dropout
from millrace.executor.kernels.elementwise.pointwise import (
    POINTWISE,
    clamped_swiglu,
    clamped_swiglu_grad,
    prelu,
    prelu_grad,
    swiglu,
    swiglu_grad,
)
from millrace.executor.kernels.experts.expert_kernels import EXPERTS
from millrace.executor.kernels.fused import fused
from millrace.executor.kernels.images.image_kernels import IMAGES
from millrace.executor.kernels.matmul import matmul
from millrace.executor.kernels.movement import (
    broadcast,
    concat,
    narrow,
    pad,
    rearrange,
    slice_,
    sum_,
    widen,
)
from millrace.executor.kernels.native.native_table import native_kernel
from millrace.executor.kernels.optimizer import (
    adamw,
    learning_rate,
    momentum,
    muon,
    newton_schulz,
    sgd,
    squared_sum,
    step_totals,
)
from millrace.executor.kernels.rows.layer_norm import (
    layer_norm,
    layer_norm_grad_input,
    layer_norm_grad_weight,
)
from millrace.executor.kernels.rows.loss import (
    count_valid,
    cross_entropy,
    cross_entropy_grad,
    loss_from_sums,
    row_max,
    shifted_sums,
)
from millrace.executor.kernels.rows.margin import (
    arc_margin,
    arc_margin_grad,
    logistic_loss,
    logistic_loss_grad,
)
from millrace.executor.kernels.rows.masked_softmax import (
    masked_softmax,
    masked_softmax_grad,
    masked_softmax_grad_sink,
)
from millrace.executor.kernels.rows.rms_norm import (
    l2_normalize,
    l2_normalize_grad,
    rms_norm,
    rms_norm_grad_input,
    rms_norm_grad_weight,
)
from millrace.executor.kernels.rows.sinkhorn import sinkhorn, sinkhorn_grad
from millrace.executor.kernels.rows.softmax import softmax, softmax_grad
from millrace.executor.kernels.sequence.causal_convolution import (
    causal_conv1d,
    causal_conv1d_grad_input,
    causal_conv1d_grad_weight,
)
from millrace.executor.kernels.sequence.embedding import embedding, embedding_grad
from millrace.executor.kernels.sequence.recurrence import recurrence, recurrence_grad
from millrace.executor.kernels.sequence.relative_bias import relative_bias, relative_bias_grad
from millrace.executor.kernels.sequence.rotary import rotary
from millrace.executor.kernels.source import constant, fill, input_

KERNELS: dict[str, KernelFactory] = (
    POINTWISE
    | IMAGES
    | EXPERTS
    | ATTENTION
    | {
        "accumulate": accumulate,
        "adamw": adamw,
        "add": add,
        "arc_margin": arc_margin,
        "arc_margin_grad": arc_margin_grad,
        "broadcast": broadcast,
        "cast": cast,
        "causal_conv1d": causal_conv1d,
        "causal_conv1d_grad_input": causal_conv1d_grad_input,
        "causal_conv1d_grad_weight": causal_conv1d_grad_weight,
        "concat": concat,
        "constant": constant,
        "count_valid": count_valid,
        "cross_entropy": cross_entropy,
        "cross_entropy_grad": cross_entropy_grad,
        "delta_rule": recurrence,
        "delta_rule_grad": recurrence_grad,
        "dropout": dropout,
        "embedding": embedding,
        "embedding_grad": embedding_grad,
        "fill": fill,
        "input": input_,
        "l2_normalize": l2_normalize,
        "l2_normalize_grad": l2_normalize_grad,
        "layer_norm": layer_norm,
        "layer_norm_grad_input": layer_norm_grad_input,
        "layer_norm_grad_weight": layer_norm_grad_weight,
        "learning_rate": learning_rate,
        "logistic_loss": logistic_loss,
        "logistic_loss_grad": logistic_loss_grad,
        "loss_from_sums": loss_from_sums,
        "masked_softmax": masked_softmax,
        "masked_softmax_grad": masked_softmax_grad,
        "masked_softmax_grad_sink": masked_softmax_grad_sink,
        "matmul": matmul,
        "momentum": momentum,
        "mul": mul,
        "muon": muon,
        "narrow": narrow,
        "newton_schulz": newton_schulz,
        "pad": pad,
        "prelu": prelu,
        "prelu_grad": prelu_grad,
        "quantise": cast,
        "rearrange": rearrange,
        "relative_bias": relative_bias,
        "relative_bias_grad": relative_bias_grad,
        "rms_norm": rms_norm,
        "rms_norm_grad_input": rms_norm_grad_input,
        "rms_norm_grad_weight": rms_norm_grad_weight,
        "rotary": rotary,
        "row_max": row_max,
        "scale": scale,
        "sgd": sgd,
        "shift": shift,
        "shifted_sums": shifted_sums,
        "slice": slice_,
        "sinkhorn": sinkhorn,
        "sinkhorn_grad": sinkhorn_grad,
        "softmax": softmax,
        "softmax_grad": softmax_grad,
        "squared_sum": squared_sum,
        "state_space_scan": recurrence,
        "state_space_scan_grad": recurrence_grad,
        "step_totals": step_totals,
        "sum": sum_,
        "clamped_swiglu": clamped_swiglu,
        "clamped_swiglu_grad": clamped_swiglu_grad,
        "swiglu": swiglu,
        "swiglu_grad": swiglu_grad,
        "widen": widen,
    }
)


DTYPES = ("float32", "float64", "int32", "int64")


def make_kernel(context: KernelContext) -> Kernel:
    """Kernel of an actor.

    Raises
    ------
    ExecutorError
        The kind has no kernel, a dtype is too narrow for a CPU, or the labels or shapes are ones
        that the kernel cannot compute.
    """
    if context.parts:
        return fused(context, [make_kernel(part.context) for part in context.parts])
    if context.kind not in KERNELS:
        raise ExecutorError(f"no NumPy kernel for op kind `{context.kind}`", actor=context.name)
    for shard in (*context.inputs, *context.outputs):
        if shard.dtype not in DTYPES:
            raise ExecutorError(
                f"the NumPy backend has no {shard.dtype}: plan with --precision fp32",
                actor=context.name,
            )
    return native_kernel(context) or KERNELS[context.kind](context)
