"""Row kernels: their factories by op kind."""

from millrace.executor.cuda.kernels.context import CallsFactory
from millrace.executor.cuda.kernels.rows import (
    layer_norm,
    loss,
    margin,
    masked_softmax,
    rms_norm,
    sinkhorn,
    softmax,
)

ROWS: dict[str, CallsFactory] = {
    "arc_margin": margin.arc_margin,
    "arc_margin_grad": margin.arc_margin_grad,
    "count_valid": loss.count_valid,
    "cross_entropy": loss.cross_entropy,
    "cross_entropy_grad": loss.cross_entropy_grad,
    "l2_normalize": rms_norm.l2_normalize,
    "l2_normalize_grad": rms_norm.l2_normalize_grad,
    "layer_norm": layer_norm.layer_norm,
    "layer_norm_grad_input": layer_norm.layer_norm_grad_input,
    "layer_norm_grad_weight": layer_norm.layer_norm_grad_weight,
    "logistic_loss": margin.logistic_loss,
    "logistic_loss_grad": margin.logistic_loss_grad,
    "loss_from_sums": loss.loss_from_sums,
    "masked_softmax": masked_softmax.masked_softmax,
    "masked_softmax_grad": masked_softmax.masked_softmax_grad,
    "masked_softmax_grad_sink": masked_softmax.masked_softmax_grad_sink,
    "rms_norm": rms_norm.rms_norm,
    "rms_norm_grad_input": rms_norm.rms_norm_grad_input,
    "rms_norm_grad_weight": rms_norm.rms_norm_grad_weight,
    "row_max": loss.row_max,
    "shifted_sums": loss.shifted_sums,
    "sinkhorn": sinkhorn.sinkhorn,
    "sinkhorn_grad": sinkhorn.sinkhorn_grad,
    "softmax": softmax.softmax,
    "softmax_grad": softmax.softmax_grad,
}
