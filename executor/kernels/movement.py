"""Movement of values: kernels that compute none, and plain sums."""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from millrace.executor.errors import ExecutorError
from millrace.executor.kernels.context import Array, Kernel, KernelContext
from millrace.executor.kernels.dims import bind_operand_dims
from millrace.executor.kernels.elementwise.arithmetic import spread
from millrace.models.labels import parse


def rearrange(context: KernelContext) -> Kernel:
    """Kernel of the input's values with dims reordered, grouped or taken apart."""
    operand_dims = bind_operand_dims(context)
    (source,), (target,) = operand_dims.inputs, operand_dims.outputs
    apart = tuple(operand_dims.sizes[label] for label in source)
    order = tuple(source.index(label) for label in target)
    result = tuple(operand_dims.sizes[label] for label in target)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        np.copyto(outputs[0].reshape(result), inputs[0].reshape(apart).transpose(order))

    return kernel


def sum_(context: KernelContext) -> Kernel:
    """Kernel of the sum over the labels that the output does not hold."""
    operand_dims = bind_operand_dims(context)
    (source,), (target,) = operand_dims.inputs, operand_dims.outputs
    apart = tuple(operand_dims.sizes[label] for label in source)
    axes = tuple(axis for axis, label in enumerate(source) if label not in target)
    kept_labels = tuple(label for label in source if label in target)
    order = tuple(target.index(label) for label in kept_labels)
    result = tuple(operand_dims.sizes[label] for label in target)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        out = outputs[0].reshape(result).transpose(order)
        np.add.reduce(inputs[0].reshape(apart), axis=axes, out=out)

    return kernel


def broadcast(context: KernelContext) -> Kernel:
    """Kernel of the input's values, repeated along every label that only the output holds."""
    operand_dims = bind_operand_dims(context)
    (source,), (target,) = operand_dims.inputs, operand_dims.outputs
    form = spread(source, target, operand_dims.sizes)
    result = tuple(operand_dims.sizes[label] for label in target)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        np.copyto(outputs[0].reshape(result), form.view(inputs[0]))

    return kernel


def _differing_dim(context: KernelContext) -> int:
    """Dim whose label differs between the first input and the output (0 if none)."""
    expression = parse(context.labels)
    pairs = zip(expression.inputs[0], expression.outputs[0], strict=True)
    return next(
        (dim for dim, (in_label, out_label) in enumerate(pairs) if in_label != out_label), 0
    )


def _window(context: KernelContext, dim: int, size: int) -> tuple[slice, ...]:
    """Slices of `size` indexes from the attribute `start` on, along dim `dim`."""
    start = int(context.attributes["start"])
    return (*(slice(None),) * dim, slice(start, start + size))


def narrow(context: KernelContext) -> Kernel:
    """Kernel of the output's part of the input, from `start` on along the dim that differs."""
    dim = _differing_dim(context)
    window = _window(context, dim, context.outputs[0].shape[dim])

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        np.copyto(outputs[0], inputs[0][window])

    return kernel


def widen(context: KernelContext) -> Kernel:
    """Kernel of the input at `start`, zeros around it: the gradient of `narrow`."""
    dim = _differing_dim(context)
    window = _window(context, dim, context.inputs[0].shape[dim])
    before = (*window[:-1], slice(None, window[-1].start))
    behind = (*window[:-1], slice(window[-1].stop, None))

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0][before] = 0
        np.copyto(outputs[0][window], inputs[0])
        outputs[0][behind] = 0

    return kernel


def concat(context: KernelContext) -> Kernel:
    """Kernel of two or more tensors one behind the other along the dim whose labels differ."""
    dim = _differing_dim(context)
    stops = list(accumulate(shard.shape[dim] for shard in context.inputs))
    places = [
        (*(slice(None),) * dim, slice(stop - shard.shape[dim], stop))
        for shard, stop in zip(context.inputs, stops, strict=True)
    ]

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        for array, place in zip(inputs, places, strict=True):
            np.copyto(outputs[0][place], array)

    return kernel


def _overlap(context: KernelContext) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Region where input and output shards meet, inside the input and inside the output."""
    given, wanted = context.inputs[0], context.outputs[0]
    inside_given, inside_wanted = [], []
    for dim in range(len(given.shape)):
        start = max(given.offsets[dim], wanted.offsets[dim])
        stop = min(
            given.offsets[dim] + given.shape[dim],
            wanted.offsets[dim] + wanted.shape[dim],
        )
        stop = max(start, stop)
        inside_given.append(slice(start - given.offsets[dim], stop - given.offsets[dim]))
        inside_wanted.append(slice(start - wanted.offsets[dim], stop - wanted.offsets[dim]))
    return tuple(inside_given), tuple(inside_wanted)


def slice_(context: KernelContext) -> Kernel:
    """Kernel of the part of the input that is this rank's shard of the output (B to S).

    Raises
    ------
    ExecutorError
        The output's shard does not lie inside the input's.
    """
    inside_given, inside_wanted = _overlap(context)
    if tuple(part.stop - part.start for part in inside_wanted) != context.outputs[0].shape:
        raise ExecutorError(
            f"slice: output {context.outputs[0]} is not inside input {context.inputs[0]}",
            actor=context.name,
        )

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        np.copyto(outputs[0], inputs[0][inside_given])

    return kernel


def pad(context: KernelContext) -> Kernel:
    """Kernel of the input at its place among values that change nothing (B or S to P).

    On an axis that goes from B to P(sum) only the rank at coordinate 0 keeps its values. The
    filling is 0 for P(sum) and minus infinity for P(max), where every rank may keep its values.
    """
    inside_given, inside_wanted = _overlap(context)
    (before,), (after,) = context.input_sbp, context.output_sbp
    covers = tuple(part.stop - part.start for part in inside_wanted) == context.outputs[0].shape
    keeps = True
    neutral = 0.0
    for old, new, axis_coordinate in zip(before, after, context.coordinate, strict=True):
        if new.reduction == "max":
            neutral = -np.inf
        elif new.is_partial and not old.is_partial and not old.is_split:
            keeps = keeps and axis_coordinate == 0

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        if not keeps or not covers:
            outputs[0].fill(neutral)
        if keeps:
            outputs[0][inside_wanted] = inputs[0][inside_given]

    return kernel
