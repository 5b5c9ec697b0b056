"""Calls that go row by row over the last dim: norms, softmax and losses.

A row is what the last dim holds; all dims before it are merged. A block of threads has a row. Read
`layer_norm.py` first.
"""
