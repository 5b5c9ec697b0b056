"""Arithmetic: calls of sums, products and casts, one pass over memory each, broadcast by label."""

from math import prod
from typing import NamedTuple

import numpy as np

from millrace.executor.cuda.calls import (
    TYPES,
    Call,
    Calls,
    CopyCall,
    Launch,
    Operand,
    by_packs,
    elementwise,
    read,
    same_calls,
    table,
    types,
    write,
)
from millrace.executor.cuda.kernels.elementwise.pointwise import function
from millrace.executor.cuda.kernels.pieces import HostArray, in_pieces, offset_by
from millrace.executor.cuda.kernels.strides import Walk, contiguous, index_type, walk
from millrace.executor.cuda.kernels.sums import Summands, sums
from millrace.executor.errors import ExecutorError
from millrace.executor.kernels.context import Array, KernelContext, Shard
from millrace.executor.kernels.dims import Dims, bind_operand_dims
from millrace.models.graph import ITEMSIZE

SOURCE = "elementwise"
READ, WRITE = read(0), write(0)


class ArithmeticOperand(NamedTuple):
    """One side of a sum or product: where it lies, its labels and dtype."""

    operand: Operand
    dims: Dims
    dtype: str


def join(
    actor: str,
    name: str,
    a: ArithmeticOperand,
    b: ArithmeticOperand,
    result: ArithmeticOperand,
    sizes: dict[str, int],
    number: int = 0,
) -> tuple[Launch, tuple[Array, ...]]:
    """Launch of y = F(a, b), broadcast by label, and the tables it reads.

    Parameters
    ----------
    actor
        Its name, for messages.
    name
        F, a functor of `sources/elementwise.cu`.
    a, b, result
        Both sides and y; a lies as y does where one of them does.
    sizes
        Size of every label.
    number
        Tables that the actor's calls have already.
    """
    path = walk(result.dims, a.dims, b.dims, sizes)
    count, pointers = path.count, (a.operand, b.operand, result.operand)
    dtypes = (a.dtype, b.dtype, result.dtype)
    given = f"{name}, {types(*dtypes)[1:-1]}"
    if path.is_flat:
        return by_packs(SOURCE, f"join_flat<{given}>", count, dtypes, *pointers), ()
    index = index_type(count)
    period = repeats(path)
    if period is not None:
        return by_packs(
            SOURCE, f"join_repeated<{given}, {index}>", count, dtypes,
            *pointers, np.int64(period[0]), np.int64(period[1]),
        ), ()  # fmt: skip
    return elementwise(
        SOURCE, f"join_strided<{given}, {index}>", count, *pointers, table(number), path.dims
    ), (path.table(actor),)


def repeats(path: Walk) -> tuple[int, int] | None:
    """Period of a second operand that comes again and again while the first lies in order.

    Its values follow each other along one merged dim at most: (neighbours that share a value,
    number of values). None: it is otherwise.
    """
    moved = [axis for axis, step in enumerate(path.second) if step]
    if path.first != contiguous(path.sizes) or len(moved) > 1:
        return None
    if not moved:
        return path.count, 1
    (axis,) = moved
    if path.second[axis] != 1:
        return None
    return prod(path.sizes[axis + 1 :]), path.sizes[axis]


def _factors(context: KernelContext, shards: tuple[Shard, ...]) -> list[ArithmeticOperand]:
    dims = bind_operand_dims(context).inputs
    return [
        ArithmeticOperand(read(number), dims[number], shard.dtype)
        for number, shard in enumerate(shards)
    ]


def add(context: KernelContext) -> Calls:
    """Calls of the sum of two or more tensors, broadcast by label; each further one adds to y."""
    dims = bind_operand_dims(context)
    (output,) = dims.outputs
    result = ArithmeticOperand(write(0), output, context.outputs[0].dtype)
    total, *rest = _factors(context, context.inputs)
    launches: list[Launch] = []
    tables: tuple[Array, ...] = ()
    for factor in rest:
        # A sum is the same either way round: the one that lies as the output does comes first
        a, b = (factor, total) if len(factor.dims) > len(total.dims) else (total, factor)
        launch, more = join(context.name, "Sum", a, b, result, dims.sizes, len(tables))
        launches.append(launch)
        tables += more
        total = result
    return same_calls(*launches, tables=tables)


def mul(context: KernelContext) -> Calls:
    """Calls of the product of two tensors, broadcast by label and summed over what is missing."""
    dims = bind_operand_dims(context)
    (output,) = dims.outputs
    a, b = _factors(context, context.inputs)
    if any(label not in output for operand_dims in dims.inputs for label in operand_dims):
        terms = Summands(
            function="Product",
            operands=(a.operand, b.operand),
            dims=(a.dims, b.dims),
            dtypes=(a.dtype, b.dtype),
        )
        return sums(context.name, terms, output, dims.sizes, 0, context.outputs[0].dtype)
    if len(b.dims) > len(a.dims):
        a, b = b, a
    result = ArithmeticOperand(write(0), output, context.outputs[0].dtype)
    launch, tables = join(context.name, "Times", a, b, result, dims.sizes)
    return same_calls(launch, tables=tables)


def scale(context: KernelContext) -> Calls:
    """Calls of x times the attribute `factor`."""
    return same_calls(function(context, "Scaled", float(context.attributes["factor"])))


def shift(context: KernelContext) -> Calls:
    """Calls of x plus the attribute `value`."""
    return same_calls(function(context, "Shifted", float(context.attributes["value"])))


def cast(context: KernelContext) -> Calls:
    """Calls that write the input in another dtype; a variable in host memory passes in pieces.

    Raises
    ------
    ExecutorError
        Floats would become integers.
    """
    if not context.buffer_bytes:
        return same_calls(_as(context))
    x, y = context.inputs[0], context.outputs[0]

    def work(start: int, count: int, places: tuple[Operand, ...]) -> tuple[Call, ...]:
        target = offset_by(write(0), start * ITEMSIZE[y.dtype])
        return (_as(context, places[0], target, count),)

    variable = HostArray(read(0), ITEMSIZE[x.dtype])
    return same_calls(*in_pieces(context.name, x.size, [variable], context.buffer_bytes, work))


def accumulate(context: KernelContext) -> Calls:
    """Calls of the sum over the firings that share one version of the output."""
    hold, count = context.output_hold, context.outputs[0].size
    x, y = context.inputs[0].dtype, context.outputs[0].dtype
    first = _as(context)
    name = f"join_flat<Sum, {TYPES[y]}, {TYPES[x]}, {TYPES[y]}>"
    later = by_packs(SOURCE, name, count, (x, y), write(0), read(0), write(0))
    return Calls(of=lambda firing: (later,) if firing % hold else (first,))


def _as(
    context: KernelContext,
    source: Operand = READ,
    target: Operand = WRITE,
    count: int | None = None,
) -> Launch | CopyCall:
    """Call that writes the input in the output's dtype: all, or `count` values from elsewhere."""
    x, y = context.inputs[0], context.outputs[0]
    size = x.size if count is None else count
    if x.dtype == y.dtype:
        return CopyCall(source, target, size * ITEMSIZE[x.dtype])
    if y.dtype.startswith("int") and not x.dtype.startswith("int"):
        raise ExecutorError(
            f"{context.kind} from {x.dtype} to {y.dtype} would lose fractions: give the output a "
            "floating dtype",
            actor=context.name,
        )
    return by_packs(
        "pointwise", f"value<Same, {types(x.dtype, y.dtype)[1:]}", size, (x.dtype, y.dtype),
        source, target, np.float64(0), np.float64(0),
    )  # fmt: skip
