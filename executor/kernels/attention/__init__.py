"""Attention by blocks of queries, forward and backward.

In goes a `KernelContext` of one of the kinds of attention, out comes its kernel. Read
`geometry.py` first (which keys a block of queries sees), then `scores.py`, `forward.py`,
`backward.py` and, for rings, `rounds.py`.
"""

from millrace.executor.kernels.attention.backward import attention_grad, biased_attention_grad
from millrace.executor.kernels.attention.forward import attention, biased_attention
from millrace.executor.kernels.attention.rounds import attention_grad_round, attention_round

__all__ = [
    "attention",
    "attention_grad",
    "attention_grad_round",
    "attention_round",
    "biased_attention",
    "biased_attention_grad",
]
