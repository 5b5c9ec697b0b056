"""Loss of logits against target ids: cross-entropy, whole or with the vocabulary split over ranks.

A target below 0 is no target: its loss and gradient are 0. R rows (all leading dims), V logits of
a row here. Rows go in chunks that stay in the cache.
"""

from collections.abc import Sequence

import numpy as np

from millrace.executor.kernels.chunks import chunks, rows_of
from millrace.executor.kernels.context import Array, Kernel, KernelContext


def cross_entropy(context: KernelContext) -> Kernel:
    """Kernel of loss and logsumexp of every row, from (logits, targets)."""
    rows, columns, step = rows_of(context)
    buffer = np.empty((step, columns), context.inputs[0].dtype)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        logits, targets = inputs[0].reshape(rows, columns), inputs[1].reshape(rows)
        loss, logsumexp = outputs[0].reshape(rows), outputs[1].reshape(rows)
        for part in chunks(rows, step):
            shifted = buffer[: part.stop - part.start]
            largest = np.maximum.reduce(logits[part], axis=1)
            np.subtract(logits[part], largest[:, None], out=shifted)
            np.exp(shifted, out=shifted)
            total = np.add.reduce(shifted, axis=1)
            np.log(total, out=total)
            np.add(total, largest, out=logsumexp[part])
        places = np.arange(rows) * columns + np.maximum(targets, 0)
        np.subtract(logsumexp, logits.reshape(-1)[places], out=loss)
        loss[targets < 0] = 0

    return kernel


def cross_entropy_grad(context: KernelContext) -> Kernel:
    """Kernel of softmax(logits) minus the one-hot target, from (logits, targets, logsumexp).

    This is the gradient of the sum of the losses; the vocabulary may be split.
    """
    rows, columns, step = rows_of(context)
    first = context.inputs[0].offsets[-1]

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        logits, targets = inputs[0].reshape(rows, columns), inputs[1].reshape(rows)
        logsumexp, slope = inputs[2].reshape(rows), outputs[0].reshape(rows, columns)
        for part in chunks(rows, step):
            np.subtract(logits[part], logsumexp[part, None], out=slope[part])
            np.exp(slope[part], out=slope[part])
        _, places = targets_here(targets, first, columns)
        slope.reshape(-1)[places] -= 1
        if (targets < 0).any():
            slope[targets < 0] = 0

    return kernel


def targets_here(targets: Array, first: int, columns: int) -> tuple[Array, Array]:
    """Rows whose target lies in columns `first:first + columns`, and its flat place."""
    local = targets.astype(np.int64) - first
    here = np.flatnonzero((targets >= 0) & (local >= 0) & (local < columns))
    return here, here * columns + local[here]


def row_max(context: KernelContext) -> Kernel:
    """Kernel of the largest logit of every row: P(max) over ranks that split the vocabulary."""
    rows, columns, _ = rows_of(context)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        logits = inputs[0].reshape(rows, columns)
        np.maximum.reduce(logits, axis=1, out=outputs[0].reshape(rows))

    return kernel


def shifted_sums(context: KernelContext) -> Kernel:
    """Kernel of [Σ exp(logit − max), the target's logit] of every row, from (logits, max, targets).

    Both are P(sum) over ranks that split the vocabulary: the target's logit is 0 where another
    rank holds it.
    """
    rows, columns, step = rows_of(context)
    first = context.inputs[0].offsets[-1]
    buffer = np.empty((step, columns), context.inputs[0].dtype)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        logits, largest = inputs[0].reshape(rows, columns), inputs[1].reshape(rows)
        sums = outputs[0].reshape(rows, 2)
        for part in chunks(rows, step):
            shifted = buffer[: part.stop - part.start]
            np.subtract(logits[part], largest[part, None], out=shifted)
            np.exp(shifted, out=shifted)
            np.add.reduce(shifted, axis=1, out=sums[part, 0])
        here, places = targets_here(inputs[2].reshape(rows), first, columns)
        sums[:, 1] = 0
        sums[here, 1] = logits.reshape(-1)[places]

    return kernel


def loss_from_sums(context: KernelContext) -> Kernel:
    """Kernel of loss and logsumexp of every row, from (max, sums, targets)."""
    rows = context.inputs[0].size

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        sums, targets = inputs[1].reshape(rows, 2), inputs[2].reshape(rows)
        loss, logsumexp = outputs[0].reshape(rows), outputs[1].reshape(rows)
        np.log(sums[:, 0], out=logsumexp)
        np.add(logsumexp, inputs[0].reshape(rows), out=logsumexp)
        np.subtract(logsumexp, sums[:, 1], out=loss)
        loss[targets < 0] = 0

    return kernel


def count_valid(context: KernelContext) -> Kernel:
    """Kernel of the number of targets that are not below 0."""

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0][...] = np.count_nonzero(inputs[0] >= 0)

    return kernel
