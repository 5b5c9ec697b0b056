"""CUDA: what the actors of a rank launch on a GPU.

Comes in: a `KernelContext`, as a NumPy kernel's factory gets. Goes out: `Calls` (`calls.py`),
launches of our own kernels (`sources/*.cu`) and matrix products of the vendor's library, which name
their operands and no address. No device is needed for any of it.

Read `calls.py` first, then `kernels/kernel_table.py`, which names the factory of every op kind.
"""
