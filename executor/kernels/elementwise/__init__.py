"""Kernels that compute every element by itself: arithmetic, functions, gates and dropout.

In come tensors of equal or broadcast labels, out comes one of the output's shape. `functions.py`
has the formulas of the pointwise functions, `pointwise.py` makes kernels of them.
"""
