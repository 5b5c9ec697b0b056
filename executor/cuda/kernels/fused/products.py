"""Products of fused actors: what follows on a product becomes its epilogue.

The library adds to a product's sums, in this order, what is there (or another tensor of that
shape), then a bias along the columns, then applies GELU; it keeps what GELU is taken of for the
backward pass, and multiplies with GELU's slope there. Where the library has no algorithm for a
product with an epilogue, the parts run one after the other.
"""

from collections.abc import Sequence
from typing import NamedTuple

from executor.cuda.calls import Call, Calls, Choice, Matrices, Product, Vector, always
from executor.cuda.kernels.fused.in_turn import is_inner, of_part, operand_at
from executor.cuda.kernels.matmul import LIBRARY, matmul
from executor.kernels.context import FusedPart, KernelContext, Shard
from models.ops import op_kind

PRODUCT = "product"


class Epilogue(NamedTuple):
    """A product with its epilogue, and whether the library is sure to have it."""

    product: Product
    plain: bool = True


def fused_products(context: KernelContext, parts_in_turn: Calls) -> Calls | None:
    """Return the calls of products with what follows on them; None where there is no such form.

    Parameters
    ----------
    context
        Of an actor whose first parts are products.
    parts_in_turn
        The parts one after the other, for where the library has no such product.
    """
    products = [part for part in context.parts if op_kind(part.context.kind).role == PRODUCT]
    others = context.parts[len(products) :]
    made = [_single(context, part) for part in products]
    if not made or any(one is None for one in made):
        return None
    singles = [one for one in made if one is not None]
    if len(singles) > 1:
        return _summed(context, singles, others)
    if others[-1].context.kind == "accumulate":
        return _accumulated(context, singles[0], others)
    found: Epilogue | None = Epilogue(singles[0])
    for part in others:
        found = _followed(context, found.product, found.plain, part) if found else None
    if found is None:
        return None
    if found.plain:
        return always(found.product)
    return Calls(
        of=lambda firing: (Choice(((found.product,), parts_in_turn.of(firing))),),
        tables=parts_in_turn.tables,
        workspace_bytes=parts_in_turn.workspace_bytes,
    )


def _single(context: KernelContext, part: FusedPart) -> Product | None:
    """The one product of the library that a part is, with the actor's operands."""
    (call, *more) = of_part(context, part, matmul(part.context)).of(0)
    return call if isinstance(call, Product) and not more else None


def _shard(context: KernelContext, number: int) -> Shard:
    return (*context.inputs, *context.outputs, *context.inner)[number]


def _like(product: Product, context: KernelContext, number: int) -> Matrices:
    """An operand that lies as the product's result does."""
    dtype = _shard(context, number).dtype
    return product.d._replace(operand=operand_at(context, number), dtype=dtype)


def _written_to(product: Product, context: KernelContext, number: int) -> Product | None:
    """The product with its result there; None where the library does not make it so."""
    d = _like(product, context, number)
    return product._replace(d=d) if (product.a.dtype, d.dtype) in LIBRARY else None


def _summed(
    context: KernelContext, products: Sequence[Product], others: Sequence[FusedPart]
) -> Calls | None:
    """The sum of several products and at most one tensor more: each adds to what is there."""
    (add,) = others
    made = {number for part in context.parts[: len(products)] for number in part.outputs}
    beside = [number for number in add.inputs if number not in made]
    calls: list[Call] = []
    for at, product in enumerate(products):
        one = _written_to(product, context, add.outputs[0])
        if one is None:
            return None
        if at:
            one = one._replace(accumulate=True)
        elif beside:
            one = one._replace(c=_like(one, context, beside[0]))
        calls.append(one)
    return always(*calls)


def _accumulated(
    context: KernelContext, product: Product, others: Sequence[FusedPart]
) -> Calls | None:
    """A product that is added to the sum of a step's microbatches."""
    (total,) = others
    first = _written_to(product, context, total.outputs[0])
    if first is None:
        return None
    later, hold = first._replace(accumulate=True), total.context.output_hold
    return Calls(of=lambda firing: (later if firing % hold else first,))


def _followed(
    context: KernelContext, product: Product, plain: bool, part: FusedPart
) -> Epilogue | None:
    """The product with one part more behind it."""
    moved = _written_to(product, context, part.outputs[0])
    if moved is None:
        return None
    kind = part.context.kind
    if kind == "add":
        (other,) = [number for number in part.inputs if not _is_result(context, product, number)]
        shard = _shard(context, other)
        if shard.shape == _shard(context, part.outputs[0]).shape:
            return Epilogue(moved._replace(c=_like(moved, context, other)), plain)
        if shard.size != product.n or product.d.column_stride != 1 or product.batch != 1:
            return None
        bias = Vector(operand_at(context, other), shard.dtype)
        return Epilogue(moved._replace(bias=bias), plain=False)
    if kind.endswith("_grad"):
        aux = _like(moved, context, part.inputs[0])
        return Epilogue(moved._replace(slope=kind.removesuffix("_grad"), aux=aux), plain=False)
    (before,) = part.inputs
    kept = None if is_inner(context, before) else _like(moved, context, before)
    return Epilogue(moved._replace(activation=kind, aux=kept), plain=False)


def _is_result(context: KernelContext, product: Product, number: int) -> bool:
    return operand_at(context, number) == product.d.operand
