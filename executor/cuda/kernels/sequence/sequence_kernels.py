"""Sequence kernels: factories of ids and positions by op kind."""

from millrace.executor.cuda.kernels.context import CallsFactory
from millrace.executor.cuda.kernels.sequence import (
    causal_convolution,
    embedding,
    recurrence,
    relative_bias,
    rotary,
)

SEQUENCE: dict[str, CallsFactory] = {
    "causal_conv1d": causal_convolution.causal_conv1d,
    "causal_conv1d_grad_input": causal_convolution.causal_conv1d,
    "causal_conv1d_grad_weight": causal_convolution.causal_conv1d_grad_weight,
    "delta_rule": recurrence.recurrence,
    "delta_rule_grad": recurrence.recurrence_grad,
    "embedding": embedding.embedding,
    "embedding_grad": embedding.embedding_grad,
    "relative_bias": relative_bias.relative_bias,
    "relative_bias_grad": relative_bias.relative_bias_grad,
    "rotary": rotary.rotary,
    "state_space_scan": recurrence.recurrence,
    "state_space_scan_grad": recurrence.recurrence_grad,
}
