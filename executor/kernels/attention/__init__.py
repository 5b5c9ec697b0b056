"""Attention by blocks of queries, forward and backward.

In goes a `KernelContext` of one of the kinds of attention, out comes its kernel. Read
`geometry.py` first (which keys a block of queries sees), then `scores.py`, `forward.py`,
`backward.py` and, for rings, `rounds.py`.
"""

from millrace.executor.kernels.attention.attention_kernels import ATTENTION

__all__ = ["ATTENTION"]
