"""Elementwise kernels: arithmetic, functions, gates and dropout, each element by itself.

In come tensors of equal or broadcast labels, out comes one of the output's shape. `functions.py`
has the formulas of the pointwise functions, `pointwise.py` makes kernels of them.
"""
