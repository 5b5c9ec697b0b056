"""The factories of attention, by op kind."""

from executor.cuda.kernels.attention import backward, forward
from executor.cuda.kernels.context import CallsFactory

ATTENTION: dict[str, CallsFactory] = {
    "attention": forward.attention,
    "attention_grad": backward.attention_grad,
    "attention_grad_round": backward.attention_grad_round,
    "attention_round": forward.attention_round,
    "biased_attention": forward.biased_attention,
    "biased_attention_grad": backward.biased_attention_grad,
}
