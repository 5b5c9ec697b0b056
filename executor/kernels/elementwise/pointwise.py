"""Pointwise kernels: functions and the gates made of them, two forms of swiglu and prelu.

Those of many passes go chunk by chunk, so that only the first and last pass touch memory.
"""

from collections.abc import Sequence

import numpy as np

from millrace.executor.errors import ExecutorError
from millrace.executor.kernels.chunks import chunks, rows_per_chunk, scratch
from millrace.executor.kernels.context import Array, Kernel, KernelContext, KernelFactory
from millrace.executor.kernels.dims import bind_operand_dims
from millrace.executor.kernels.elementwise.functions import (
    FUNCTIONS,
    SPARES,
    Formula,
    sigmoid,
    silu,
)
from millrace.models.ops import FUNCTIONS as DESCRIPTIONS


def _numbers(context: KernelContext, name: str) -> tuple[float, ...]:
    """Attributes of a function in the order of its row."""
    _, names = DESCRIPTIONS[name]
    return tuple(float(context.attributes[attribute]) for attribute in names)


def _value(name: str, formula: Formula) -> KernelFactory:
    """Kernel factory of a function of x."""

    def factory(context: KernelContext) -> Kernel:
        size = context.outputs[0].size
        numbers = _numbers(context, name)
        buffers = scratch(SPARES, size, context.outputs[0].dtype)

        def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
            x, y = inputs[0].reshape(-1), outputs[0].reshape(-1)
            with np.errstate(over="ignore"):
                for part in chunks(size):
                    spare = [buffer[: part.stop - part.start] for buffer in buffers]
                    formula(x[part], y[part], spare, *numbers)

        return kernel

    return factory


def _gradient(name: str, formula: Formula) -> KernelFactory:
    """Kernel factory of dy times the slope at x, from (x, dy)."""

    def factory(context: KernelContext) -> Kernel:
        size = context.outputs[0].size
        numbers = _numbers(context, name)
        buffers = scratch(SPARES, size, context.outputs[0].dtype)

        def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
            x, dy, dx = inputs[0].reshape(-1), inputs[1].reshape(-1), outputs[0].reshape(-1)
            with np.errstate(over="ignore"):
                for part in chunks(size):
                    spare = [buffer[: part.stop - part.start] for buffer in buffers]
                    formula(x[part], dx[part], spare, *numbers)
                    np.multiply(dx[part], dy[part], out=dx[part])

        return kernel

    return factory


POINTWISE: dict[str, KernelFactory] = {
    name: _value(name, function.value) for name, function in FUNCTIONS.items()
} | {f"{name}_grad": _gradient(name, function.slope) for name, function in FUNCTIONS.items()}


def swiglu(context: KernelContext) -> Kernel:
    """Kernel of silu(gate) · up from (gate, up)."""
    size = context.outputs[0].size

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        gate, up, y = inputs[0].reshape(-1), inputs[1].reshape(-1), outputs[0].reshape(-1)
        with np.errstate(over="ignore"):
            for part in chunks(size):
                silu(gate[part], y[part], ())
                np.multiply(y[part], up[part], out=y[part])

    return kernel


def swiglu_grad(context: KernelContext) -> Kernel:
    """Kernel of dgate and dup from (gate, up, dy).

    With s = sigmoid(gate): dup = dy · gate s, and dgate = dy · up · (s + gate s (1 − s)).
    """
    size = context.outputs[0].size
    gates, values = scratch(2, size, context.outputs[0].dtype)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        gate, up, dy = (array.reshape(-1) for array in inputs)
        dgate, dup = (array.reshape(-1) for array in outputs)
        with np.errstate(over="ignore"):
            for part in chunks(size):
                s, value = (array[: part.stop - part.start] for array in (gates, values))
                sigmoid(gate[part], s, ())
                np.multiply(gate[part], s, out=value)
                np.multiply(value, dy[part], out=dup[part])
                np.multiply(value, s, out=dgate[part])
                np.subtract(value, dgate[part], out=value)
                np.add(value, s, out=value)
                np.multiply(value, up[part], out=value)
                np.multiply(value, dy[part], out=dgate[part])

    return kernel


def clamped_swiglu(context: KernelContext) -> Kernel:
    """Kernel of g sigmoid(slope g) (u + shift) from (gate, up), both cut off."""
    cap, slope, shift = (context.number(name, 0.0) for name in ("cap", "slope", "shift"))
    size = context.outputs[0].size
    gates, values = scratch(2, size, context.outputs[0].dtype)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        gate, up, y = inputs[0].reshape(-1), inputs[1].reshape(-1), outputs[0].reshape(-1)
        with np.errstate(over="ignore"):
            for part in chunks(size):
                g, value = (array[: part.stop - part.start] for array in (gates, values))
                np.minimum(gate[part], cap, out=g)
                sigmoid(np.multiply(g, slope, out=value), y[part], ())
                np.multiply(y[part], g, out=y[part])
                np.add(np.clip(up[part], -cap, cap, out=value), shift, out=value)
                np.multiply(y[part], value, out=y[part])

    return kernel


def clamped_swiglu_grad(context: KernelContext) -> Kernel:
    """Kernel of dgate and dup from (gate, up, dy), zero where these are cut off.

    With s = sigmoid(slope g): dup = dy g s, and dgate = dy (u + shift) (s + slope g s (1 - s)).
    """
    cap, slope, shift = (context.number(name, 0.0) for name in ("cap", "slope", "shift"))
    size = context.outputs[0].size
    gates, slopes, values = scratch(3, size, context.outputs[0].dtype)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        gate, up, dy = (array.reshape(-1) for array in inputs)
        dgate, dup = (array.reshape(-1) for array in outputs)
        with np.errstate(over="ignore"):
            for part in chunks(size):
                g, s, value = (array[: part.stop - part.start] for array in (gates, slopes, values))
                np.minimum(gate[part], cap, out=g)
                sigmoid(np.multiply(g, slope, out=value), s, ())
                np.multiply(value, s, out=value)
                np.subtract(value, value * s, out=value)
                np.add(value, s, out=value)
                np.multiply(g, s, out=s)
                np.multiply(s, dy[part], out=dup[part])
                np.multiply(dup[part], np.abs(up[part]) <= cap, out=dup[part])
                np.add(np.clip(up[part], -cap, cap, out=s), shift, out=s)
                np.multiply(value, s, out=value)
                np.multiply(value, gate[part] <= cap, out=value)
                np.multiply(value, dy[part], out=dgate[part])

    return kernel


class _SlopeRows:
    """x as rows of which each (or, where channels come last, each column) has a slope of its own.

    Attributes
    ----------
    outer, count
        Product of the dims before the channels, and number of channels.
    shape
        Of x: [rows, columns].
    """

    def __init__(self, context: KernelContext) -> None:
        operand_dims = bind_operand_dims(context)
        x, slope = operand_dims.inputs[:2]
        named = [label for label in slope if label in x]
        if len(named) > 1 or any(
            operand_dims.sizes[label] > 1 for label in slope if label not in x
        ):
            raise ExecutorError(
                f"prelu takes one slope or one per index of a dim of x, found `{context.labels}`",
                actor=context.name,
            )
        sizes = [operand_dims.sizes[label] for label in x]
        position = x.index(named[0]) if named else len(x) - 1
        self.count = sizes[position] if named else 1
        self.outer = int(np.prod(sizes[:position]))
        inner = int(np.prod(sizes[position + 1 if named else position :]))
        self._by_row = inner > 1 or not named
        rows = self.outer * self.count if self._by_row else self.outer
        self.shape = (rows, inner if self._by_row else self.count)
        self.step = rows_per_chunk(self.shape[1], rows)

    def slopes(self, slope: Array) -> Array:
        """Slopes so that `slopes[rows]` broadcasts against rows of x."""
        if self._by_row:
            return np.tile(slope.reshape(-1), self.outer)[:, None]
        return np.broadcast_to(slope.reshape(1, -1), self.shape)

    def gather(self, products: Array, sums: Array, part: slice, target: Array) -> None:
        """Add up the products of some rows: into `sums` by row, or into `target` by column."""
        if self._by_row:
            np.add.reduce(products, axis=1, out=sums[part])
        else:
            np.add(target, np.add.reduce(products, axis=0), out=target)

    def finish(self, sums: Array, target: Array) -> None:
        """Add the sums of the rows up by channel."""
        if self._by_row:
            np.add.reduce(sums.reshape(self.outer, self.count), axis=0, out=target)


def prelu(context: KernelContext) -> Kernel:
    """Kernel of x where it is positive, elsewhere slope · x, from (x, slope)."""
    channels = _SlopeRows(context)
    buffer = np.empty((channels.step, channels.shape[1]), context.outputs[0].dtype)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        x, y = inputs[0].reshape(channels.shape), outputs[0].reshape(channels.shape)
        slopes = channels.slopes(inputs[1])
        for part in chunks(channels.shape[0], channels.step):
            below = buffer[: part.stop - part.start]
            np.minimum(x[part], 0, out=below)
            np.multiply(below, slopes[part], out=below)
            np.maximum(x[part], 0, out=y[part])
            np.add(y[part], below, out=y[part])

    return kernel


def prelu_grad(context: KernelContext) -> Kernel:
    """Kernel of dx and dslope = Σ dy · min(x, 0) from (x, slope, dy)."""
    channels = _SlopeRows(context)
    dtype = context.outputs[0].dtype
    buffer = np.empty((channels.step, channels.shape[1]), dtype)
    sums = np.empty(channels.outer * channels.count, dtype)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        x, dy = inputs[0].reshape(channels.shape), inputs[2].reshape(channels.shape)
        dx, dslope = outputs[0].reshape(channels.shape), outputs[1].reshape(-1)
        slopes, rests = channels.slopes(inputs[1]), channels.slopes(1 - inputs[1])
        dslope.fill(0)
        for part in chunks(channels.shape[0], channels.step):
            spare = buffer[: part.stop - part.start]
            np.minimum(x[part], 0, out=spare)
            np.multiply(spare, dy[part], out=spare)
            channels.gather(spare, sums, part, dslope)
            np.greater(x[part], 0, out=spare)
            np.multiply(spare, rests[part], out=spare)
            np.add(spare, slopes[part], out=spare)
            np.multiply(spare, dy[part], out=dx[part])
        channels.finish(sums, dslope)

    return kernel
