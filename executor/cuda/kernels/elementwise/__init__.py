"""Calls that compute every element by itself: arithmetic, functions, gates and dropout.

`arithmetic.py` has sums and products of two tensors, broadcast by label; `pointwise.py` functions
of one. A thread takes four neighbours where operands lie as the output does.
"""
