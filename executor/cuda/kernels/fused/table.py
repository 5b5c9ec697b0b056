"""The table of fused actors: factories that know some of them, asked one after the other."""

from collections.abc import Callable

from executor.cuda.calls import Calls
from executor.cuda.kernels.fused.products import product_calls
from executor.kernels.context import KernelContext

FusedFactory = Callable[[KernelContext, Calls], Calls | None]
"""`factory(context, in_turn)`: fewer calls than those of the parts in turn, or None."""

FUSED: tuple[FusedFactory, ...] = (product_calls,)


def fused_calls(context: KernelContext, in_turn: Calls) -> Calls:
    """Return the calls of a fused actor; those of its parts in turn where nobody knows better."""
    for factory in FUSED:
        if (found := factory(context, in_turn)) is not None:
            return found
    return in_turn
