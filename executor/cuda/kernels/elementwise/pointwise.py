"""Pointwise functions, and the gates made of them (swiglu and prelu): their calls."""

from math import prod

import numpy as np

from millrace.executor.cuda.calls import (
    Calls,
    Launch,
    by_packs,
    elementwise,
    read,
    same_calls,
    types,
    write,
)
from millrace.executor.cuda.kernels.context import CallsFactory
from millrace.executor.cuda.kernels.strides import index_type
from millrace.executor.cuda.kernels.sums import Summands, sums
from millrace.executor.errors import ExecutorError
from millrace.executor.kernels.context import KernelContext
from millrace.executor.kernels.dims import OperandDims, bind_operand_dims
from millrace.models.ops import FUNCTIONS, op_kind

SOURCE = "pointwise"


def function(context: KernelContext, functor: str, *numbers: float) -> Launch:
    """Launch of y = F(x), F a functor of `sources/pointwise.cu`.

    Raises
    ------
    ExecutorError
        x holds integers.
    """
    x, y = context.inputs[0], context.outputs[0]
    _check_floating(context)
    name = f"value<{functor}, {types(x.dtype, y.dtype)[1:]}"
    dtypes = (x.dtype, y.dtype)
    return by_packs(SOURCE, name, y.size, dtypes, read(0), write(0), *_two(numbers))


def _two(numbers: tuple[float, ...]) -> tuple[np.float64, np.float64]:
    """A function's attributes as kernels take them: two, whether it has them or not."""
    first, second = (*numbers, 0.0, 0.0)[:2]
    return np.float64(first), np.float64(second)


def _check_floating(context: KernelContext) -> None:
    for shard in (*context.inputs, *context.outputs):
        if shard.dtype.startswith("int"):
            raise ExecutorError(
                f"{context.kind} computes in floating dtypes, found {shard.dtype}: cast it first",
                actor=context.name,
            )


def _functor(name: str) -> str:
    """A function's name as C++ has it: `GeluErf`."""
    return "".join(word.capitalize() for word in name.split("_"))


def _value(name: str) -> CallsFactory:
    """Factory of a function of x."""
    _, attributes = FUNCTIONS[name]

    def factory(context: KernelContext) -> Calls:
        numbers = [float(context.attributes[attribute]) for attribute in attributes]
        return same_calls(function(context, _functor(name), *numbers))

    return factory


def _gradient(name: str) -> CallsFactory:
    """Factory of dy times the slope at x, of (x, dy)."""
    _, attributes = FUNCTIONS[name]

    def factory(context: KernelContext) -> Calls:
        _check_floating(context)
        (x, dy), (dx,) = context.inputs, context.outputs
        numbers = tuple(float(context.attributes[attribute]) for attribute in attributes)
        dtypes = (x.dtype, dy.dtype, dx.dtype)
        kernel = f"gradient<{_functor(name)}, {types(*dtypes)[1:]}"
        operands = (read(0), read(1), write(0))
        return same_calls(by_packs(SOURCE, kernel, dx.size, dtypes, *operands, *_two(numbers)))

    return factory


POINTWISE: dict[str, CallsFactory] = {name: _value(name) for name in FUNCTIONS} | {
    f"{name}_grad": _gradient(name) for name in FUNCTIONS
}


def _check_same_dtype(context: KernelContext) -> str:
    """Dtype that all operands have."""
    _check_floating(context)
    dtypes = {shard.dtype for shard in (*context.inputs, *context.outputs)}
    if len(dtypes) > 1:
        raise ExecutorError(
            f"{context.kind} takes and makes one dtype, found {', '.join(sorted(dtypes))}: cast "
            "the operands to one",
            actor=context.name,
        )
    return dtypes.pop()


def swiglu(context: KernelContext) -> Calls:
    """Calls of a gate's form of (gate, up), `swiglu` or `clamped_swiglu`."""
    dtype, count = _check_same_dtype(context), context.outputs[0].size
    name, numbers = context.kind + types(dtype), _gate_numbers(context)
    operands = (read(0), read(1), write(0))
    return same_calls(by_packs(SOURCE, name, count, (dtype,), *operands, *numbers))


def swiglu_grad(context: KernelContext) -> Calls:
    """Calls of dgate and dup of (gate, up, dy), in either form."""
    dtype, count = _check_same_dtype(context), context.outputs[0].size
    name, numbers = context.kind + types(dtype), _gate_numbers(context)
    operands = (read(0), read(1), read(2), write(0), write(1))
    return same_calls(by_packs(SOURCE, name, count, (dtype,), *operands, *numbers))


def _gate_numbers(context: KernelContext) -> list[np.float64]:
    return [np.float64(context.attributes[name]) for name in op_kind(context.kind).attributes]


def _channels(context: KernelContext, dims: OperandDims) -> tuple[np.int64, np.int64]:
    """Number of neighbours that share a slope, and number of slopes.

    Raises
    ------
    ExecutorError
        Slopes do not follow one dim of x.
    """
    x, slope = dims.inputs[:2]
    named = [label for label in slope if label in x]
    if len(named) > 1 or any(dims.sizes[label] > 1 for label in slope if label not in x):
        raise ExecutorError(
            f"prelu takes one slope or one per index of a dim of x, found `{context.labels}`",
            actor=context.name,
        )
    if not named:
        return np.int64(context.inputs[0].size), np.int64(1)
    behind = x[x.index(named[0]) + 1 :]
    return np.int64(prod(dims.sizes[label] for label in behind)), np.int64(dims.sizes[named[0]])


def prelu(context: KernelContext) -> Calls:
    """Calls of x where it is positive, elsewhere slope · x, of (x, slope)."""
    _check_floating(context)
    inner, channels = _channels(context, bind_operand_dims(context))
    (x, slope), (y,) = context.inputs, context.outputs
    dtypes = (x.dtype, slope.dtype, y.dtype)
    kernel = f"join_repeated<Prelu, {types(*dtypes)[1:-1]}, {index_type(y.size)}>"
    operands = (read(0), read(1), write(0))
    return same_calls(by_packs("elementwise", kernel, y.size, dtypes, *operands, inner, channels))


def prelu_grad(context: KernelContext) -> Calls:
    """Calls of dx and dslope = Σ dy · min(x, 0) of (x, slope, dy)."""
    _check_floating(context)
    dims = bind_operand_dims(context)
    inner, channels = _channels(context, dims)
    x, slope, dy = context.inputs
    given = types(x.dtype, slope.dtype, dy.dtype, context.outputs[0].dtype)[1:-1]
    kernel = f"prelu_grad_input<{given}, {index_type(x.size)}>"
    of_input = elementwise(
        SOURCE, kernel, x.size, read(0), read(1), read(2), write(0), inner, channels
    )
    of_slope = sums(
        context.name,
        Summands(
            function="Below",
            operands=(read(0), read(2)),
            dims=(dims.inputs[0], dims.inputs[2]),
            dtypes=(x.dtype, dy.dtype),
        ),
        dims.outputs[1],
        dims.sizes,
        1,
        context.outputs[1].dtype,
    )
    return same_calls(
        of_input,
        *of_slope.of(0),
        tables=of_slope.tables,
        workspace_bytes=of_slope.workspace_bytes,
    )
