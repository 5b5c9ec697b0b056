"""Siblings: alike products of one operand, each with what follows on it; a stack where they can be.

Whether they can follows from where their operands lie, which is known when a firing's calls are
bound (`stacked_calls`): at equal distances they are one product of a stack, and otherwise several.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from millrace.executor.cuda.calls import Call, Calls, KernelAlternatives, ProductCall
from millrace.executor.cuda.kernels.fused.fused_products import PRODUCT, product_calls
from millrace.executor.cuda.kernels.unfused_parts import concatenated_calls
from millrace.executor.cuda.products import with_stacks
from millrace.executor.kernels.context import FusedPart, KernelContext


def sibling_calls(
    context: KernelContext, in_turn: Callable[[KernelContext], Calls]
) -> Calls | None:
    """Calls of products that nothing joins but what they read.

    Parameters
    ----------
    context
        The context of a fused actor.
    in_turn
        Makes the calls of the parts of a context, one after the other.

    Returns
    -------
    Calls or None
        None: the parts are no siblings.
    """
    rows = _families(context.parts)
    if len(rows) < 2 or any(row[0].context.kind != PRODUCT for row in rows):
        return None
    several = []
    for row in rows:
        family = replace(context, parts=row)
        alone = in_turn(family)
        several.append(product_calls(family, alone) or alone)
    return concatenated_calls(several)


def _families(parts: Sequence[FusedPart]) -> list[tuple[FusedPart, ...]]:
    """Families of parts, joined by what one makes for another, each in the parts' order."""
    rows: list[tuple[FusedPart, ...]] = []
    for part in parts:
        before = [row for row in rows if any(_reads(part, member) for member in row)]
        rows = [row for row in rows if row not in before]
        rows.append((*(member for row in before for member in row), part))
    return rows


def _reads(part: FusedPart, maker: FusedPart) -> bool:
    return not set(part.inputs).isdisjoint(maker.outputs)


def stacked_calls(calls: Sequence[Call]) -> tuple[Call, ...]:
    """Bound calls of a fused actor with products put into stacks where they can be.

    Of choices between a product with its epilogue and its parts, the stack of these products is a
    choice beside all parts.
    """
    if len(calls) < 2:
        return tuple(calls)
    choices = [call for call in calls if isinstance(call, KernelAlternatives)]
    if not choices:
        return with_stacks(_by_place(calls))
    firsts = [call for choice in choices for call in choice.options[0]]
    if len(choices) < len(calls) or len(firsts) > len(choices):
        return tuple(calls)
    stacks = with_stacks(_by_place(firsts))
    if len(stacks) > 1 or not isinstance(stacks[0], ProductCall):
        return tuple(calls)
    in_turn = tuple(call for choice in choices for call in choice.options[-1])
    return (KernelAlternatives((stacks, tuple(firsts), in_turn)),)


def _by_place(calls: Sequence[Call]) -> Sequence[Call]:
    """Products in the order of what they write, where each writes a place of its own.

    Siblings write each its own; products that add up in one place keep their order.
    """
    products = [call for call in calls if isinstance(call, ProductCall)]
    places = {(product.d.operand, product.d.batch_stride) for product in products}
    if len(products) < len(calls) or len(places) < len(products):
        return calls
    return sorted(products, key=lambda product: product.d.operand)
