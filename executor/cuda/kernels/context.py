"""What a factory of calls is: it gets what a NumPy kernel's factory gets."""

from collections.abc import Callable

from executor.cuda.calls import Calls
from executor.kernels.context import KernelContext

CallsFactory = Callable[[KernelContext], Calls]
"""`factory(context)`: the calls of one actor of one rank."""
