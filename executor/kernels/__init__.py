"""NumPy kernels: what an actor computes when it fires.

In goes a `KernelContext` (labels, attributes, and the shape and global offsets of every shard); a
factory of `KERNELS` makes a `Kernel` of it once; each firing hands the kernel its input and output
arrays, which are C-contiguous views of registers. Kernels write their outputs in place and take no
memory of their own beyond the scratch made by the factory.

Read `context.py` first, then `kernel_table.py`, which names the kernel of every op kind.
"""

from millrace.executor.kernels.context import Kernel, KernelContext, RunState, Shard
from millrace.executor.kernels.kernel_table import KERNELS, make_kernel

__all__ = ["KERNELS", "Kernel", "KernelContext", "RunState", "Shard", "make_kernel"]
