"""Attention kernels: their factories by op kind."""

from millrace.executor.cuda.calls import Calls
from millrace.executor.cuda.kernels.attention import backward, forward, sinks, sparse
from millrace.executor.cuda.kernels.attention.attention_library import by_library
from millrace.executor.cuda.kernels.context import CallsFactory
from millrace.executor.kernels.attention.groups import grouped
from millrace.executor.kernels.context import KernelContext


def _with_groups(factory: CallsFactory) -> CallsFactory:
    def make(context: KernelContext) -> Calls:
        return factory(grouped(context))

    return make


ATTENTION: dict[str, CallsFactory] = {
    "attention": _with_groups(by_library(forward.attention)),
    "attention_grad": _with_groups(by_library(backward.attention_grad)),
    "attention_grad_round": _with_groups(backward.attention_grad_round),
    "attention_round": _with_groups(forward.attention_round),
    "attention_sink": sinks.attention_sink,
    "attention_sink_grad": sinks.attention_sink_grad,
    "choose_keys": sparse.choose_keys,
    "seen_keys": sparse.seen_keys,
    "sparse_attention": sparse.sparse_attention,
    "sparse_attention_grad": sparse.sparse_attention_grad,
    "biased_attention": _with_groups(forward.biased_attention),
    "biased_attention_grad": _with_groups(backward.biased_attention_grad),
}
