"""Optimizer kernels at a step's end: norms, totals, learning rate, AdamW, SGD and Muon.

Gradients arrive as unscaled sums over the step's tokens. The gradient that is used is
sum / tokens · min(1, clip_norm / norm), where norm is that of sum / tokens over all variables.
"""

from collections.abc import Iterator, Sequence
from math import cos, pi, sqrt

import numpy as np

from millrace.executor.errors import ExecutorError
from millrace.executor.kernels.chunks import chunks, scratch
from millrace.executor.kernels.context import Array, Kernel, KernelContext
from millrace.executor.kernels.dims import bind_operand_dims
from millrace.models.ops import state_of
from millrace.models.ops.orthogonal import COEFFICIENTS, EPSILON, matrix_sizes


def squared_sum(context: KernelContext) -> Kernel:
    """Kernel of the sum of squares, added up in float64."""
    size = context.inputs[0].size
    (wide,) = scratch(1, size, "float64")

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        flat = inputs[0].reshape(-1)
        total = 0.0
        for part in chunks(size):
            values = wide[: part.stop - part.start]
            np.copyto(values, flat[part])
            total += float(np.dot(values, values))
        outputs[0][...] = total

    return kernel


def step_totals(context: KernelContext) -> Kernel:
    """Kernel of (loss sum, token count, sum of squares): this rank's part of a sum over the world.

    Inputs are the loss, the count and any number of squared sums; with the attribute `has_loss`
    false (a stage that holds no loss) they are squared sums alone. An input that is B on a mesh
    axis counts on the ranks at coordinate 0 of that axis only.
    """
    has_loss = bool(context.attributes.get("has_loss", True))
    counts = [
        all(
            axis_sbp.kind != "B" or axis_coordinate == 0
            for axis_sbp, axis_coordinate in zip(sbp, context.coordinate, strict=True)
        )
        for sbp in context.input_sbp or ((),) * len(context.inputs)
    ]
    squares_from = 2 if has_loss else 0

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        values = [
            float(array) if is_counted else 0.0
            for array, is_counted in zip(inputs, counts, strict=True)
        ]
        totals = outputs[0]
        totals[0], totals[1] = values[:2] if has_loss else (0.0, 0.0)
        totals[2] = sum(values[squares_from:])

    return kernel


def rate_at(context: KernelContext, step: int) -> float:
    """Learning rate of `step`, counted from 0 over all runs.

    A linear rise over `warmup_steps`, then a cosine to `final_fraction` of `learning_rate` at
    `decay_steps`; constant when that is 0 (Loshchilov and Hutter 2017, without restarts).
    """
    peak = context.number("learning_rate", 1e-3)
    warmup, decay = context.number("warmup_steps", 0), context.number("decay_steps", 0)
    if step < warmup:
        return peak * (step + 1) / warmup
    if not decay:
        return peak
    fraction = context.number("final_fraction", 0.1)
    progress = min(1.0, (step - warmup) / max(decay - warmup, 1))
    return peak * (fraction + (1 - fraction) * (1 + cos(pi * progress)) / 2)


def learning_rate(context: KernelContext) -> Kernel:
    """Kernel of the learning rate of the step."""

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0][...] = rate_at(context, context.run.first_step + firing)

    return kernel


def gradient_scale(totals: Array, clip_norm: float) -> float:
    """Factor of an unscaled gradient: 1 / tokens, and the clipping."""
    tokens = max(float(totals[1]), 1.0)
    norm = sqrt(float(totals[2])) / tokens
    return (clip_norm / norm if 0 < clip_norm < norm else 1.0) / tokens


class OptimizerState:
    """The flat state arrays of an optimizer, as many as the op table says.

    Where there is a buffer they lie in host memory: each piece is copied into the buffer, worked on
    there and copied back.
    """

    def __init__(self, context: KernelContext) -> None:
        self._arrays = _flat_state(context)
        self._size = context.outputs[0].size
        self._staged: list[Array] = []
        if context.buffer is not None and self._arrays:
            room = context.buffer.reshape(-1).view(np.uint8)
            dtype, share = self._arrays[0].dtype, room.size // len(self._arrays)
            length = share // dtype.itemsize
            self._staged = [
                room[index * length * dtype.itemsize :][: length * dtype.itemsize].view(dtype)
                for index in range(len(self._arrays))
            ]

    def pieces(self) -> Iterator[tuple[slice, list[Array]]]:
        """Yield where every piece lies in the variable, and its state to read and overwrite."""
        if not self._staged:
            yield slice(0, self._size), self._arrays
            return
        for piece in chunks(self._size, self._staged[0].size):
            here = [staged[: piece.stop - piece.start] for staged in self._staged]
            for staged, array in zip(here, self._arrays, strict=True):
                np.copyto(staged, array[piece])
            yield piece, here
            for staged, array in zip(here, self._arrays, strict=True):
                np.copyto(array[piece], staged)


def _flat_state(context: KernelContext) -> list[Array]:
    """State arrays in one dim."""
    names = state_of(context.kind, context.attributes)
    if len(context.state) != len(names):
        raise ExecutorError(
            f"{context.kind} keeps {names}, found {len(context.state)} state arrays",
            actor=context.name,
        )
    return [array.reshape(-1) for array in context.state]


def adamw(context: KernelContext) -> Kernel:
    """Kernel of the next value of a variable, from (w, gradient sum, totals, learning rate).

    Notes
    -----
    Loshchilov and Hutter 2019, algorithm 2, with the bias corrections folded into two scalars:
    w' = w (1 − lr · decay) − lr √c₂ / c₁ · m / (√v + ε √c₂), where c = 1 − βᵗ.
    """
    size = context.outputs[0].size
    beta1, beta2 = context.number("beta1", 0.9), context.number("beta2", 0.95)
    epsilon, decay = context.number("epsilon", 1e-8), context.number("weight_decay", 0.0)
    clip_norm = context.number("clip_norm", 0.0)
    state = OptimizerState(context)
    (buffer,) = scratch(1, size, context.outputs[0].dtype)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        w, gradient, target = (a.reshape(-1) for a in (inputs[0], inputs[1], outputs[0]))
        context.run.record_totals(firing, inputs[2])
        scale, rate = gradient_scale(inputs[2], clip_norm), float(inputs[3])
        steps = context.run.first_step + firing + 1
        correction = sqrt(1 - beta2**steps)
        pace = rate * correction / (1 - beta1**steps)
        for piece, (first_moment, second_moment) in state.pieces():
            for inner in chunks(first_moment.size):
                part = slice(piece.start + inner.start, piece.start + inner.stop)
                g, m, v = gradient[part], first_moment[inner], second_moment[inner]
                change = buffer[: g.size]
                np.multiply(g, scale, out=change)
                np.multiply(m, beta1, out=m)
                np.multiply(v, beta2, out=v)
                # m gains (1 − β₁) g and v gains (1 − β₂) g², with one array of scratch
                np.multiply(change, 1 - beta1, out=change)
                np.add(m, change, out=m)
                np.multiply(change, change, out=change)
                np.multiply(change, (1 - beta2) / (1 - beta1) ** 2, out=change)
                np.add(v, change, out=v)
                np.sqrt(v, out=change)
                np.add(change, epsilon * correction, out=change)
                np.divide(m, change, out=change)
                np.multiply(change, pace, out=change)
                np.multiply(w[part], 1 - rate * decay, out=target[part])
                np.subtract(target[part], change, out=target[part])

    return kernel


def sgd(context: KernelContext) -> Kernel:
    """Kernel of the next value of a variable, from (w, gradient sum, totals, learning rate).

    velocity = momentum · velocity + g, w' = w (1 − lr · decay) − lr · velocity; without momentum
    there is no velocity and g takes its place.
    """
    size = context.outputs[0].size
    momentum, decay = context.number("momentum", 0.0), context.number("weight_decay", 0.0)
    clip_norm = context.number("clip_norm", 0.0)
    state = OptimizerState(context)
    (buffer,) = scratch(1, size, context.outputs[0].dtype)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        w, gradient, target = (a.reshape(-1) for a in (inputs[0], inputs[1], outputs[0]))
        context.run.record_totals(firing, inputs[2])
        scale, rate = gradient_scale(inputs[2], clip_norm), float(inputs[3])
        for piece, velocities in state.pieces():
            for inner in chunks(piece.stop - piece.start):
                part = slice(piece.start + inner.start, piece.start + inner.stop)
                change = buffer[: part.stop - part.start]
                np.multiply(gradient[part], scale, out=change)
                for velocity in velocities:
                    np.multiply(velocity[inner], momentum, out=velocity[inner])
                    np.add(velocity[inner], change, out=velocity[inner])
                    np.copyto(change, velocity[inner])
                np.multiply(change, rate, out=change)
                np.multiply(w[part], 1 - rate * decay, out=target[part])
                np.subtract(target[part], change, out=target[part])

    return kernel


def momentum(context: KernelContext) -> Kernel:
    """Kernel of the direction of Nesterov's momentum, from (gradient sum, totals).

    velocity = momentum · velocity + g, direction = g + momentum · velocity, as Muon takes it.
    """
    size = context.outputs[0].size
    share, clip_norm = context.number("momentum", 0.0), context.number("clip_norm", 0.0)
    state = OptimizerState(context)
    (buffer,) = scratch(1, size, context.inputs[0].dtype)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        gradient, target = inputs[0].reshape(-1), outputs[0].reshape(-1)
        scale = gradient_scale(inputs[1], clip_norm)
        for piece, (velocity,) in state.pieces():
            for inner in chunks(velocity.size):
                part = slice(piece.start + inner.start, piece.start + inner.stop)
                v, change = velocity[inner], buffer[: part.stop - part.start]
                np.multiply(gradient[part], scale, out=change)
                np.multiply(v, share, out=v)
                np.add(v, change, out=v)
                np.add(change, share * v, out=change)
                np.copyto(target[part], change, casting="same_kind")

    return kernel


def newton_schulz(context: KernelContext) -> Kernel:
    """Kernel of the matrices near a direction whose singular values are about one.

    Notes
    -----
    `millrace.models.ops.orthogonal` has the source. Products are those of float32 or wider arrays.
    """
    (direction,) = context.inputs
    sizes = matrix_sizes(context.labels, context.attributes, bind_operand_dims(context).sizes)
    shape, rounds = tuple(map(int, sizes)), int(context.number("rounds", 0))
    first, second, third = COEFFICIENTS
    dtype = np.dtype(direction.dtype) if direction.dtype == "float64" else np.dtype("float32")

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        x = inputs[0].reshape(shape).astype(dtype)
        turned = shape[1] > shape[2]
        x = x.transpose(0, 2, 1) if turned else x
        x = x / np.maximum(np.sqrt(np.sum(x * x, axis=(1, 2), keepdims=True)), EPSILON)
        for _ in range(rounds):
            gram = x @ x.transpose(0, 2, 1)
            x = first * x + (second * gram + third * (gram @ gram)) @ x
        x = x.transpose(0, 2, 1) if turned else x
        np.copyto(outputs[0].reshape(shape), x, casting="same_kind")

    return kernel


def muon(context: KernelContext) -> Kernel:
    """Kernel of the next value of a variable, from (w, direction, totals, learning rate).

    w' = w (1 − lr · decay) − lr · factor · direction.
    """
    factor, decay = context.number("rate_factor", 1.0), context.number("weight_decay", 0.0)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        w, direction = inputs[0], inputs[1]
        context.run.record_totals(firing, inputs[2])
        rate = float(inputs[3])
        np.multiply(w, 1 - rate * decay, out=outputs[0])
        np.subtract(outputs[0], (rate * factor) * direction.astype(w.dtype), out=outputs[0])

    return kernel
