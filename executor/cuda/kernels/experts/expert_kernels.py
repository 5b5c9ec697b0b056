"""Expert kernels: their factories by op kind."""

from millrace.executor.cuda.kernels.context import CallsFactory
from millrace.executor.cuda.kernels.experts import dispatch, routing

EXPERTS: dict[str, CallsFactory] = {
    "combine": dispatch.combine,
    "combine_grad_input": dispatch.combine_grad_input,
    "combine_grad_weight": dispatch.combine_grad_weight,
    "dispatch": dispatch.dispatch,
    "dispatch_grad": dispatch.dispatch_grad,
    "expert_load": routing.expert_load,
    "top_k": routing.top_k,
    "top_k_grad": routing.top_k_grad,
}
