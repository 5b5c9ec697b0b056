"""Products in memory: what each part of one spans, and which of several are one stack."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from executor.cuda.calls import Call, Matrices, Operand, Product, Vector
from models.graph import ITEMSIZE


def spans(product: Product) -> dict[str, int]:
    """Return the bytes from the first to the last element of every part of a product.

    Examples
    --------
    >>> from executor.cuda.calls import read, write
    >>> x, w, y = (Matrices(one, "float32", 8, 1, 64) for one in (read(0), read(1), write(0)))
    >>> spans(Product(x, w, y, 2, 8, 4, 3, "fp32"))
    {'a': 560, 'b': 640, 'd': 576}
    """
    m, n, k = product.m, product.n, product.k
    shapes = {"a": (m, k), "b": (k, n)}
    lengths = {"a": m}
    found = {}
    for name, part in product.parts.items():
        if isinstance(part, Matrices):
            rows, columns = shapes.get(name, (m, n))
            last = (rows - 1) * part.row_stride + (columns - 1) * part.column_stride
        else:
            last = lengths.get(product.bias_grad_of if name == "bias_grad" else "", n) - 1
        last += (product.batch - 1) * part.batch_stride
        found[name] = (last + 1) * ITEMSIZE[part.dtype]
    return found


def stacked(products: Sequence[Product]) -> Product | None:
    """Return several products as one of a stack; None where their places do not allow it.

    They are alike in everything but where their parts lie, each a single product; what they read
    is shared or lies at equal distances, as does what they write, apart from each other and from
    all that is read.

    Parameters
    ----------
    products
        Two or more, bound to addresses or to places in one region.

    Examples
    --------
    Queries, keys and values from one x, their weights and results behind each other:

    >>> x = Matrices(Operand("address", 0, 0), "bfloat16", 8, 1, 0)
    >>> weights = [Matrices(Operand("address", 0, 4096 + at), "bfloat16", 8, 1, 0)
    ...            for at in (0, 256, 512)]
    >>> made = [Matrices(Operand("address", 0, 8192 + at), "bfloat16", 8, 1, 0)
    ...         for at in (0, 128, 256)]
    >>> found = stacked([Product(x, w, y, 8, 8, 8, 1, "bf16")
    ...                  for w, y in zip(weights, made, strict=True)])
    >>> found.batch, found.a.batch_stride, found.b.batch_stride, found.d.batch_stride
    (3, 0, 128, 64)
    """
    first = products[0]
    if len(products) < 2 or first.batch != 1 or len({_unplaced(one) for one in products}) > 1:
        return None
    parts = {name: [one.parts[name] for one in products] for name in first.parts}
    strides = {name: _distance(found) for name, found in parts.items()}
    written = {"d", "bias_grad"} | (set() if first.slope else {"aux"})
    if any(stride is None for stride in strides.values()) or any(
        not strides[name] for name in written if name in strides
    ):
        return None
    if not _apart(products, written):
        return None
    changes: dict[str, Any] = {
        name: found[0]._replace(batch_stride=strides[name] or 0) for name, found in parts.items()
    }
    return first._replace(batch=len(products), **changes)


def with_stacks(calls: Iterable[Call]) -> tuple[Call, ...]:
    """Return bound calls with products that follow each other put into stacks where they can be.

    Whether they can depends on nothing but where they lie, so it is the same in every run.
    """
    found: list[Call] = []
    run: list[Product] = []
    for call in (*calls, None):
        if isinstance(call, Product):
            if run and stacked([*run, call]) is None:
                found += _flushed(run)
                run = []
            run.append(call)
            continue
        found += _flushed(run)
        run = []
        if call is not None:
            found.append(call)
    return tuple(found)


def _flushed(run: list[Product]) -> list[Product]:
    together = stacked(run) if len(run) > 1 else None
    return run if together is None else [together]


def _unplaced(product: Product) -> Product:
    """A product without the places of its parts."""
    nowhere = Operand("nowhere")
    changes: dict[str, Any] = {
        name: part._replace(operand=nowhere) for name, part in product.parts.items()
    }
    return product._replace(**changes)


def _distance(parts: Sequence[Matrices | Vector]) -> int | None:
    """Elements from each part to the next, where they lie in one region at equal distances."""
    operands = [part.operand for part in parts]
    if len({(one.role, one.number) for one in operands}) > 1:
        return None
    steps = {after.offset_bytes - before.offset_bytes for before, after in pairwise(operands)}
    (step, *others) = steps
    elements, rest = divmod(step, ITEMSIZE[parts[0].dtype])
    return None if others or rest or elements < 0 else elements


def _apart(products: Sequence[Product], written: set[str]) -> bool:
    """Whether what each product writes is touched by no other."""
    places = [
        (number, name in written, (part.operand.role, part.operand.number),
         part.operand.offset_bytes, part.operand.offset_bytes + size)
        for number, one in enumerate(products)
        for (name, part), size in zip(one.parts.items(), spans(one).values(), strict=True)
    ]  # fmt: skip
    return not any(
        (writes or also_writes) and region == other and begin < last and start < end
        for number, writes, region, begin, end in places
        for which, also_writes, other, start, last in places
        if number < which
    )
