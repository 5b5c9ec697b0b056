"""Attention by blocks of queries, forward and backward.

In goes a `KernelContext` of one of the four kinds of attention, out comes its kernel. Read
`geometry.py` first (which keys a block of queries sees), then `scores.py`, `forward.py` and
`backward.py`.
"""

from executor.kernels.attention.backward import attention_grad, biased_attention_grad
from executor.kernels.attention.forward import attention, biased_attention

__all__ = ["attention", "attention_grad", "biased_attention", "biased_attention_grad"]
