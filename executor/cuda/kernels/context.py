"""Context of a kernel in, calls out: the type of a factory, like that of NumPy kernels."""

from collections.abc import Callable

from millrace.executor.cuda.calls import Calls
from millrace.executor.kernels.context import KernelContext

CallsFactory = Callable[[KernelContext], Calls]
"""`factory(context)`: the calls of one actor of one rank."""
