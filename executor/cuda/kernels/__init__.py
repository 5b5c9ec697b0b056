"""Kernels by op kind: factories of an actor's calls, made once from its `KernelContext`.

Read `rows/layer_norm.py` first, then `kernel_table.py`, which names the factory of every op kind.
Every factory has a source of the same theme in `executor/cuda/sources`.
"""
