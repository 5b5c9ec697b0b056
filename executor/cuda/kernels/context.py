"""Type of a factory of calls: it gets what a NumPy kernel's factory gets."""

from collections.abc import Callable

from millrace.executor.cuda.calls import Calls
from millrace.executor.kernels.context import KernelContext

CallsFactory = Callable[[KernelContext], Calls]
"""`factory(context)`: the calls of one actor of one rank."""
