"""Products in memory: bytes that their parts span, stacks of several, cuts of one."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from millrace.executor.cuda.calls import (
    PACK_BYTES,
    Call,
    KernelAlternatives,
    Matrices,
    Operand,
    ProductCall,
    Vector,
)
from millrace.models.graph import ITEMSIZE

DIMS = {"a": "mk", "b": "kn", "d": "mn", "c": "mn", "aux": "mn", "bias": "n"}
"""Dims of the parts of a product, by letter."""

CUT_ITEMSIZE = 2  # bytes of an element of a and b: what was measured slow is 16-bit
CUT_UNIT = PACK_BYTES // CUT_ITEMSIZE
CUT_EXTENT_MIN = 1024
"""A cut is one more launch, 20 to 50 us, and slow kernels make 100 TFLOP/s (H100, cuBLASLt 13.1,
2026-11): a product of less along every dim takes no longer than that."""


def spans(product: ProductCall) -> dict[str, int]:
    """Bytes from the first to the last element of every part of a product.

    Examples
    --------
    >>> from millrace.executor.cuda.calls import read, write
    >>> x, w, y = (Matrices(place, "float32", 8, 1, 64) for place in (read(0), read(1), write(0)))
    >>> spans(ProductCall(x, w, y, 2, 8, 4, 3, "fp32"))
    {'a': 560, 'b': 640, 'd': 576}
    """
    m, n, k = product.m, product.n, product.k
    shapes = {"a": (m, k), "b": (k, n)}
    span_bytes = {}
    for name, part in product.parts.items():
        if isinstance(part, Matrices):
            rows, columns = shapes.get(name, (m, n))
            last = (rows - 1) * part.row_stride + (columns - 1) * part.column_stride
        else:
            last = n - 1
        last += (product.batch - 1) * part.batch_stride
        span_bytes[name] = (last + 1) * ITEMSIZE[part.dtype]
    return span_bytes


def stacked(products: Sequence[ProductCall]) -> ProductCall | None:
    """Several products as one of a stack; None where their places do not allow it.

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
    >>> weights = [Matrices(Operand("address", 0, 4096 + offset), "bfloat16", 8, 1, 0)
    ...            for offset in (0, 256, 512)]
    >>> results = [Matrices(Operand("address", 0, 8192 + offset), "bfloat16", 8, 1, 0)
    ...            for offset in (0, 128, 256)]
    >>> stack = stacked([ProductCall(x, w, y, 8, 8, 8, 1, "bf16")
    ...                  for w, y in zip(weights, results, strict=True)])
    >>> stack.batch, stack.a.batch_stride, stack.b.batch_stride, stack.d.batch_stride
    (3, 0, 128, 64)
    """
    first = products[0]
    if (
        len(products) < 2
        or first.batch != 1
        or len({_unplaced(product) for product in products}) > 1
    ):
        return None
    parts = {name: [product.parts[name] for product in products] for name in first.parts}
    strides = {name: _distance(members) for name, members in parts.items()}
    written = {"d"} if first.slope else {"d", "aux"}
    if any(stride is None for stride in strides.values()) or any(
        not strides[name] for name in written if name in strides
    ):
        return None
    if not _apart(products, written):
        return None
    changes: dict[str, Any] = {
        name: members[0]._replace(batch_stride=strides[name] or 0)
        for name, members in parts.items()
    }
    return first._replace(batch=len(products), **changes)


def with_stacks(calls: Iterable[Call]) -> tuple[Call, ...]:
    """Bound calls with products that follow each other put into stacks where they can be.

    Whether they can depends on nothing but where they lie, so it is the same in every run.
    """
    stacked_products: list[Call] = []
    run: list[ProductCall] = []
    for call in (*calls, None):
        if isinstance(call, ProductCall):
            if run and stacked([*run, call]) is None:
                stacked_products += _flushed(run)
                run = []
            run.append(call)
            continue
        stacked_products += _flushed(run)
        run = []
        if call is not None:
            stacked_products.append(call)
    return tuple(stacked_products)


def with_cuts(call: Call) -> Call:
    """A bound call as a choice that would rather cut its products; itself if it cuts none.

    A choice keeps all its options, behind those of them in which products are cut.
    """
    options = call.options if isinstance(call, KernelAlternatives) else ((call,),)
    cut_options = [
        tuple(
            piece
            for option_call in option
            for piece in (
                cut(option_call) if isinstance(option_call, ProductCall) else (option_call,)
            )
        )
        for option in options
    ]
    preferred = [option for option in cut_options if option not in options]
    return KernelAlternatives((*preferred, *options)) if preferred else call


def cut(product: ProductCall) -> tuple[ProductCall, ...]:
    """Products that make one, all but small ones of extents that wide loads divide.

    Of 16-bit matrices with a contiguous extent that loads of 16 bytes do not divide, the library
    makes products by kernels that load single elements, several times slower, even if every row
    begins where wide loads can. Of such an extent the part up to the last multiple of 8 is one
    product, and the remainder another, which comes first: along m and n they make ranges of d, and
    along k the large one adds to what the remainder made. A narrow d is then rounded once more,
    before the large part is in it.

    Parameters
    ----------
    product
        Bound to places that are as aligned as their offsets say, or to addresses. It stays whole
        where its rows begin elsewhere, where such an extent is short, and with a slope along k,
        which the library would not take in parts.

    Examples
    --------
    Logits of five tokens over a vocabulary of 1,027, whose rows lie 1,088 apart:

    >>> from millrace.executor.cuda.calls import read, write
    >>> x, w = (Matrices(read(number), "bfloat16", *strides, 0)
    ...         for number, strides in ((0, (64, 1)), (1, (1, 64))))
    >>> logits = Matrices(write(0), "bfloat16", 1088, 1, 0)
    >>> rest, large = cut(ProductCall(x, w, logits, 5, 1027, 64, 1, "bf16"))
    >>> rest.n, rest.b.operand.offset_bytes, rest.d.operand.offset_bytes
    (3, 131072, 2048)
    >>> large.n, large.d.operand.offset_bytes
    (1024, 0)
    """
    uneven = _uneven(product)
    extents = [getattr(product, dim) for dim in uneven]
    if not uneven or min(extents) < CUT_EXTENT_MIN:
        return (product,)
    if "k" in uneven and product.slope:  # A slope goes with nothing that is added.
        return (product,)
    remainders = []
    for dim, extent in zip(uneven, extents, strict=True):
        end = extent - extent % CUT_UNIT
        rest, product = _range(product, dim, end, extent), _range(product, dim, 0, end)
        if dim == "k":  # What follows on the sums follows on all of them.
            rest = rest._replace(bias=None, activation="", aux=None)
            product = product._replace(c=None, accumulate=True)
        remainders.append(rest)
    return (*remainders, product)


def _uneven(product: ProductCall) -> list[str]:
    """Dims with a contiguous extent that wide loads do not divide; none if rows begin elsewhere."""
    if ITEMSIZE[product.a.dtype] != CUT_ITEMSIZE:
        return []
    uneven_dims = set()
    for name, part in product.parts.items():
        if not isinstance(part, Matrices):
            continue
        itemsize, by_rows = ITEMSIZE[part.dtype], part.column_stride == 1
        strides = [part.row_stride if by_rows else part.column_stride]
        if product.batch > 1:
            strides.append(part.batch_stride)
        begins = (part.operand.offset_bytes, *(stride * itemsize for stride in strides))
        if any(begin % PACK_BYTES for begin in begins):
            return []
        along = DIMS[name][by_rows]
        if getattr(product, along) * itemsize % PACK_BYTES:
            uneven_dims.add(along)
    return [dim for dim in "mnk" if dim in uneven_dims]


def _range(product: ProductCall, dim: str, start: int, end: int) -> ProductCall:
    """Part of a product from one index of a dim up to another."""
    changes: dict[str, Any] = {dim: end - start}
    for name, part in product.parts.items():
        if dim in DIMS[name]:
            strides = (part.row_stride, part.column_stride) if isinstance(part, Matrices) else (1,)
            stride = strides[DIMS[name].index(dim)]
            offset = part.operand.offset_bytes + start * stride * ITEMSIZE[part.dtype]
            changes[name] = part._replace(operand=part.operand._replace(offset_bytes=offset))
    return product._replace(**changes)


def _flushed(run: list[ProductCall]) -> list[ProductCall]:
    together = stacked(run) if len(run) > 1 else None
    return run if together is None else [together]


def _unplaced(product: ProductCall) -> ProductCall:
    """Product without the places of its parts."""
    nowhere = Operand("nowhere")
    changes: dict[str, Any] = {
        name: part._replace(operand=nowhere) for name, part in product.parts.items()
    }
    return product._replace(**changes)


def _distance(parts: Sequence[Matrices | Vector]) -> int | None:
    """Elements from each part to the next, where they lie in one region at equal distances."""
    operands = [part.operand for part in parts]
    if len({(operand.role, operand.number) for operand in operands}) > 1:
        return None
    steps = {after.offset_bytes - before.offset_bytes for before, after in pairwise(operands)}
    (step, *others) = steps
    elements, rest = divmod(step, ITEMSIZE[parts[0].dtype])
    return None if others or rest or elements < 0 else elements


def _apart(products: Sequence[ProductCall], written: set[str]) -> bool:
    """True if what each product writes is touched by no other."""
    places = [
        (number, name in written, (part.operand.role, part.operand.number),
         part.operand.offset_bytes, part.operand.offset_bytes + size)
        for number, product in enumerate(products)
        for (name, part), size in zip(product.parts.items(), spans(product).values(), strict=True)
    ]  # fmt: skip
    return not any(
        (writes or also_writes) and region == other and begin < last and start < end
        for number, writes, region, begin, end in places
        for which, also_writes, other, start, last in places
        if number < which
    )
