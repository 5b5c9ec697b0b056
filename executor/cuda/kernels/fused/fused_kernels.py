"""Fused kernels: factories that know some fused actors, asked one after the other."""

from collections.abc import Callable

from millrace.executor.cuda.calls import Calls
from millrace.executor.cuda.kernels.fused.fused_images import batch_norm_calls
from millrace.executor.cuda.kernels.fused.fused_norms import norm_calls
from millrace.executor.cuda.kernels.fused.fused_products import product_calls
from millrace.executor.cuda.kernels.fused.fused_sums import sum_calls
from millrace.executor.cuda.kernels.fused.launches import many_tensors
from millrace.executor.cuda.kernels.fused.siblings import sibling_calls
from millrace.executor.cuda.kernels.unfused_parts import unfused_calls
from millrace.executor.kernels.context import KernelContext

InTurn = Callable[[KernelContext], Calls]
"""`unfused_calls(context)`: the calls of the parts of a context, one after the other."""

FusedFactory = Callable[[KernelContext, InTurn], Calls | None]
"""`factory(context, in_turn)`: fewer calls than those of the parts in turn, or None."""

FUSED: tuple[FusedFactory, ...] = (
    lambda context, _: many_tensors(context),
    lambda context, _: norm_calls(context),
    lambda context, _: sum_calls(context),
    lambda context, _: batch_norm_calls(context),
    sibling_calls,
    lambda context, alone: product_calls(context, alone(context)),
)


def fused_calls(context: KernelContext, make: Callable[[KernelContext], Calls]) -> Calls:
    """Calls of a fused actor; those of its parts in turn where nobody knows better.

    Parameters
    ----------
    context
        The actor's.
    make
        Makes the calls of a part that runs alone.
    """

    def alone(some: KernelContext) -> Calls:
        return unfused_calls(some, [make(part.context) for part in some.parts])

    for factory in FUSED:
        if (calls := factory(context, alone)) is not None:
            return calls
    return alone(context)
