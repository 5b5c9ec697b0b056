"""Products with what follows on them: one call of the library where it has the epilogue.

What follows on a product is a bias, another tensor that is added, gelu (whose argument may be kept
for the backward pass) or its slope, and the sum over microbatches; or the sum of several products,
each of which then adds to what the one before it made. Where the library may have no algorithm for
an epilogue, a choice says so, and its last option are the parts in turn.

In one call nothing is rounded between the parts: a weight's gradient goes from float32 sums into
the float32 sum over microbatches.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from millrace.executor.cuda.binding import bind
from millrace.executor.cuda.calls import (
    Call,
    Calls,
    KernelAlternatives,
    Matrices,
    Operand,
    ProductCall,
    Vector,
)
from millrace.executor.cuda.kernels.matmul import library_multiplies, library_products
from millrace.executor.cuda.kernels.unfused_parts import operand_at
from millrace.executor.kernels.context import FusedPart, KernelContext
from millrace.executor.kernels.dims import Dims, bind_operand_dims

PRODUCT = "matmul"


def product_calls(context: KernelContext, in_turn: Calls) -> Calls | None:
    """Calls of a product and what follows on it, or of a sum of products.

    Parameters
    ----------
    context
        The context of a fused actor.
    in_turn
        The calls of its parts in turn.

    Returns
    -------
    Calls or None
        None: no product of the library begins it, or what follows is no epilogue of one.
    """
    products = [part for part in context.parts if part.context.kind == PRODUCT]
    if len(products) > 1:
        return _sum_of_products(context, products)
    if not products or context.parts[0] is not products[0]:
        return None
    chain = _started(context, products[0])
    for part in context.parts[1:]:
        if chain is None:
            return None
        chain = _followed(context, chain, part)
    return None if chain is None else _calls(chain, in_turn)


@dataclass(frozen=True, slots=True)
class _Chain:
    """A product with the epilogues so far: what it makes is operand `output` of the actor.

    `hold`: it is added to what is there in all but the first of so many firings; 0: in none.
    """

    product: ProductCall
    output: int
    dims: Dims
    hold: int = 0


def _started(context: KernelContext, part: FusedPart) -> _Chain | None:
    """Chain of the product of a part; None where the library does not make it in one call."""
    products = library_products(part.context)
    if len(products) != 1:
        return None

    def place(operand: Operand) -> Operand:
        numbers = part.inputs if operand.role == "read" else part.outputs
        base = operand_at(context, numbers[operand.number])
        return base._replace(offset_bytes=base.offset_bytes + operand.offset_bytes)

    product = bind(products[0], place)
    assert isinstance(product, ProductCall)
    (dims,) = bind_operand_dims(part.context).outputs
    return _Chain(product, part.outputs[0], dims)


def _followed(context: KernelContext, chain: _Chain, part: FusedPart) -> _Chain | None:
    """Chain with one more part; None where that is no epilogue."""
    (output,) = part.outputs
    if chain.output not in part.inputs or chain.hold:
        return None
    inside = chain.output >= len(context.inputs) + len(context.outputs)
    kind, product = part.context.kind, chain.product
    if product.activation or product.slope or not (inside or kind == "gelu"):
        return None
    more: ProductCall | None
    match kind:
        case "add":
            more = _with_added(context, chain, part)
        case "gelu":
            aux = None if inside else product.d
            more = product._replace(activation="gelu", aux=aux)
        case "gelu_grad" if part.inputs[1] == chain.output and product == product.plain:
            argument = operand_at(context, part.inputs[0])
            dtype = part.context.inputs[0].dtype
            more = product._replace(slope="gelu", aux=_same_layout(product.d, argument, dtype))
        case "accumulate" if product == product.plain and library_multiplies(
            product.a.dtype, part.context.outputs[0].dtype
        ):
            more = product
        case _:
            more = None
    if more is None:
        return None
    target = _same_layout(product.d, operand_at(context, output), part.context.outputs[0].dtype)
    hold = part.context.output_hold if kind == "accumulate" else 0
    return replace(chain, product=more._replace(d=target), output=output, hold=hold)


def _with_added(context: KernelContext, chain: _Chain, part: FusedPart) -> ProductCall | None:
    """Product to which another tensor of its dims is added, or a bias along its columns."""
    dims = bind_operand_dims(part.context)
    if len(part.inputs) != 2 or part.inputs[0] == part.inputs[1]:
        return None
    position = 1 - part.inputs.index(chain.output)
    other, other_dims = operand_at(context, part.inputs[position]), dims.inputs[position]
    dtype, product = part.context.inputs[position].dtype, chain.product
    if dims.inputs[1 - position] != dims.outputs[0]:
        return None
    if other_dims == dims.outputs[0]:
        if product.c is not None:
            return None
        return product._replace(c=_same_layout(product.d, other, dtype))
    length = prod(dims.sizes[label] for label in other_dims)
    along = other_dims == dims.outputs[0][-len(other_dims) :] and _columns(product, length)
    return product._replace(bias=Vector(other, dtype)) if along and not product.bias else None


def _columns(product: ProductCall, length: int) -> bool:
    """True if the last `length` elements of a contiguous result are the columns of every row."""
    d = product.d
    return (
        d.column_stride == 1
        and product.n == length
        and (product.m == 1 or d.row_stride % length == 0)
        and (product.batch == 1 or d.batch_stride % length == 0)
    )


def _same_layout(d: Matrices, operand: Operand, dtype: str) -> Matrices:
    """Matrices that lie in another operand as d does in its own."""
    return d._replace(operand=operand, dtype=dtype)


def _calls(chain: _Chain, in_turn: Calls) -> Calls:
    """Calls of a chain: a choice where the library may not have its epilogue."""
    product, hold = chain.product, chain.hold
    epilogue = product._replace(c=None) != product.plain
    if epilogue or (product.c is not None and product.c.dtype != product.d.dtype):
        return replace(
            in_turn, of=lambda firing: (KernelAlternatives(((product,), in_turn.of(firing))),)
        )
    later = product._replace(accumulate=True)
    return Calls(of=lambda firing: (later if hold and firing % hold else product,))


def _sum_of_products(context: KernelContext, products: Sequence[FusedPart]) -> Calls | None:
    """Calls of several products and their sum: each but the first adds to what is there."""
    *parts, last = context.parts
    chains = [_started(context, part) for part in products]
    if list(parts) != list(products) or last.context.kind != "add" or None in chains:
        return None
    dims = {*bind_operand_dims(last.context).inputs, *bind_operand_dims(last.context).outputs}
    summands = {part.outputs[0] for part in products}
    others = [position for position, number in enumerate(last.inputs) if number not in summands]
    inside = len(context.inputs) + len(context.outputs)
    if (
        len(dims) > 1
        or len(others) > 1
        or min(summands) < inside
        or len(last.inputs) < len(summands)
    ):
        return None
    dtype = last.context.outputs[0].dtype
    target = operand_at(context, last.outputs[0])
    calls: list[Call] = []
    for chain in chains:
        assert chain is not None
        product = chain.product._replace(d=_same_layout(chain.product.d, target, dtype))
        if calls:
            product = product._replace(accumulate=True)
        elif others:
            added = operand_at(context, last.inputs[others[0]])
            if last.context.inputs[others[0]].dtype != dtype:
                return None
            product = product._replace(c=_same_layout(product.d, added, dtype))
        calls.append(product)
    if any(chain is not None and chain.product.d.dtype != dtype for chain in chains):
        return None
    return Calls(of=lambda firing: tuple(calls))
