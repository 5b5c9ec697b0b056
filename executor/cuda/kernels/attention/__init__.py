"""Attention by tiles: calls whose scores never reach memory, forward and backward.

It serves every dtype, head dim (to 256), mask and round of a ring. Read `shape.py` first (what the
kernels are told), then `forward.py` and `backward.py`; `attention_kernels.py` names the factories.
"""
