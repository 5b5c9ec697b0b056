"""Elementwise calls, which compute each element by itself: arithmetic, functions, gates, dropout.

`arithmetic.py` has sums and products of two tensors, broadcast by label; `pointwise.py` functions
of one. A thread takes four neighbours where operands lie as the output does.
"""
