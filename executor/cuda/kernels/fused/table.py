"""Which form computes the parts of a fused actor; a test holds it to the rules of fusion."""

from collections.abc import Callable

from executor.cuda.calls import Calls
from executor.cuda.kernels.fused.in_turn import in_turn
from executor.cuda.kernels.fused.launches import many_tensors
from executor.cuda.kernels.fused.products import PRODUCT, fused_products
from executor.kernels.context import KernelContext
from models.ops import op_kind


def fused_calls(context: KernelContext, alone: Callable[[KernelContext], Calls]) -> Calls:
    """Return the calls of an actor with parts.

    Parameters
    ----------
    context
        The actor's.
    alone
        Makes the calls of a part that runs on its own.
    """
    if (many := many_tensors(context)) is not None:
        return many
    parts = in_turn(context, [alone(part.context) for part in context.parts])
    made = None
    if op_kind(context.parts[0].context.kind).role == PRODUCT:
        made = fused_products(context, parts)
    return parts if made is None else made
