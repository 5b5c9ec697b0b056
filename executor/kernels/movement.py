"""Kernels that move values and compute none: rearrange, rows, slice and pad; and plain sums."""

from collections.abc import Sequence

import numpy as np

from executor.errors import ExecutorError
from executor.kernels.context import Array, Kernel, KernelContext
from executor.kernels.dims import layout


def rearrange(context: KernelContext) -> Kernel:
    """Return the same values with dims reordered, grouped or taken apart."""
    found = layout(context)
    (source,), (target,) = found.inputs, found.outputs
    apart = tuple(found.sizes[label] for label in source)
    order = tuple(source.index(label) for label in target)
    result = tuple(found.sizes[label] for label in target)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        np.copyto(outputs[0].reshape(result), inputs[0].reshape(apart).transpose(order))

    return kernel


def sum_(context: KernelContext) -> Kernel:
    """Return the sum over the labels that the output does not hold."""
    found = layout(context)
    (source,), (target,) = found.inputs, found.outputs
    apart = tuple(found.sizes[label] for label in source)
    axes = tuple(at for at, label in enumerate(source) if label not in target)
    kept = tuple(label for label in source if label in target)
    order = tuple(target.index(label) for label in kept)
    result = tuple(found.sizes[label] for label in target)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        out = outputs[0].reshape(result).transpose(order)
        np.add.reduce(inputs[0].reshape(apart), axis=axes, out=out)

    return kernel


def narrow(context: KernelContext) -> Kernel:
    """Return the first rows of a table."""
    rows = context.outputs[0].shape[0]

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        np.copyto(outputs[0], inputs[0][:rows])

    return kernel


def widen(context: KernelContext) -> Kernel:
    """Return the input followed by rows of zeros: the gradient of `narrow`."""
    rows = context.inputs[0].shape[0]

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        np.copyto(outputs[0][:rows], inputs[0])
        outputs[0][rows:] = 0

    return kernel


def _overlap(context: KernelContext) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Return where input and output shards meet, inside the input and inside the output."""
    given, wanted = context.inputs[0], context.outputs[0]
    inside_given, inside_wanted = [], []
    for at in range(len(given.shape)):
        start = max(given.offsets[at], wanted.offsets[at])
        stop = min(
            given.offsets[at] + given.shape[at],
            wanted.offsets[at] + wanted.shape[at],
        )
        stop = max(start, stop)
        inside_given.append(slice(start - given.offsets[at], stop - given.offsets[at]))
        inside_wanted.append(slice(start - wanted.offsets[at], stop - wanted.offsets[at]))
    return tuple(inside_given), tuple(inside_wanted)


def slice_(context: KernelContext) -> Kernel:
    """Return the part of the input that is this rank's shard of the output (B to S).

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
    """Return the input at its place among values that change nothing (B or S to P).

    On an axis that goes from B to P(sum) only the rank at coordinate 0 keeps its values. The
    filling is 0 for P(sum) and minus infinity for P(max), where every rank may keep its values.
    """
    inside_given, inside_wanted = _overlap(context)
    (before,), (after,) = context.input_sbp, context.output_sbp
    covers = tuple(part.stop - part.start for part in inside_wanted) == context.outputs[0].shape
    keeps = True
    neutral = 0.0
    for old, new, at in zip(before, after, context.coordinate, strict=True):
        if new.reduction == "max":
            neutral = -np.inf
        elif new.is_partial and not old.is_partial and not old.is_split:
            keeps = keeps and at == 0

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        if not keeps or not covers:
            outputs[0].fill(neutral)
        if keeps:
            outputs[0][inside_wanted] = inputs[0][inside_given]

    return kernel
