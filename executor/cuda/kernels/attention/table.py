"""The factories of attention, by op kind."""

from millrace.executor.cuda.kernels.attention import backward, forward
from millrace.executor.cuda.kernels.attention.library import by_library
from millrace.executor.cuda.kernels.context import CallsFactory

ATTENTION: dict[str, CallsFactory] = {
    "attention": by_library(forward.attention),
    "attention_grad": by_library(backward.attention_grad),
    "attention_grad_round": backward.attention_grad_round,
    "attention_round": forward.attention_round,
    "biased_attention": forward.biased_attention,
    "biased_attention_grad": backward.biased_attention_grad,
}
