"""The kernels of attention, by op kind."""

from millrace.executor.kernels.attention.backward import attention_grad, biased_attention_grad
from millrace.executor.kernels.attention.forward import attention, biased_attention
from millrace.executor.kernels.attention.groups import with_groups
from millrace.executor.kernels.attention.rounds import attention_grad_round, attention_round
from millrace.executor.kernels.attention.sinks import attention_sink, attention_sink_grad
from millrace.executor.kernels.attention.sparse import (
    choose_keys,
    seen_keys,
    sparse_attention,
    sparse_attention_grad,
)
from millrace.executor.kernels.context import KernelFactory

ATTENTION: dict[str, KernelFactory] = {
    "attention": with_groups(attention),
    "attention_grad": with_groups(attention_grad),
    "attention_grad_round": with_groups(attention_grad_round),
    "attention_round": with_groups(attention_round),
    "attention_sink": attention_sink,
    "attention_sink_grad": attention_sink_grad,
    "choose_keys": choose_keys,
    "seen_keys": seen_keys,
    "sparse_attention": sparse_attention,
    "sparse_attention_grad": sparse_attention_grad,
    "biased_attention": with_groups(biased_attention),
    "biased_attention_grad": with_groups(biased_attention_grad),
}
