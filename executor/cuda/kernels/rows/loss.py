"""Loss of logits against target ids: calls of cross-entropy, whole or with the vocabulary split.

A target below 0 is no target: its loss and gradient are 0. R rows (all leading dims), V logits of
a row here.
"""

from math import ceil

import numpy as np

from millrace.executor.cuda.calls import (
    CONTROL,
    Calls,
    Launch,
    elementwise,
    read,
    same_calls,
    types,
    workspace,
    write,
)
from millrace.executor.cuda.kernels.rows.vectorized_rows import (
    over_rows,
    require_one_dtype,
    templated,
)
from millrace.executor.kernels.context import KernelContext

SOURCE = "loss"
COUNT_THREADS = 1024  # the largest block (CUDA programming guide, limits); in `sources/loss.cu` too
COUNTS_OF_A_BLOCK = 16 * COUNT_THREADS  # few enough to hide how long one read takes
COUNT_BLOCKS_MAX = 1024  # most blocks whose counts one block then adds up


def cross_entropy(context: KernelContext) -> Calls:
    """Calls of loss and logsumexp of every row, of (logits, targets)."""
    logits, targets = context.inputs
    loss, logsumexp = context.outputs
    require_one_dtype(context, loss, logsumexp)
    return same_calls(
        over_rows(
            SOURCE, templated("cross_entropy", (logits, targets, loss)), logits,
            read(0), read(1), write(0), write(1), np.int64(logits.row_stride),
        )
    )  # fmt: skip


def cross_entropy_grad(context: KernelContext) -> Calls:
    """Calls of softmax(logits) minus the one-hot target, of (logits, targets, logsumexp).

    This is the gradient of the sum of the losses; the vocabulary may be split. With `loss_scaled`
    it is multiplied by the loss scale of `Control`.
    """
    logits, targets, logsumexp = context.inputs
    require_one_dtype(context, logits, *context.outputs)
    assert context.outputs[0].row_stride == logits.row_stride, "one pass goes over both"
    return same_calls(
        over_rows(
            SOURCE, templated("cross_entropy_grad", (logits, targets, logsumexp)), logits,
            read(0), read(1), read(2), write(0), CONTROL, loss_scaled(context),
            np.int64(logits.offsets[-1]), np.int64(logits.row_stride),
        )
    )  # fmt: skip


def loss_scaled(context: KernelContext) -> np.int32:
    """1 where the op begins a backward pass that the loss scale multiplies, else 0."""
    return np.int32(bool(context.attributes.get("loss_scaled", False)))


def row_max(context: KernelContext) -> Calls:
    """Calls of the largest logit of every row: P(max) over ranks that split the vocabulary."""
    (logits,) = context.inputs
    function = templated("row_max", (logits, context.outputs[0]))
    return same_calls(over_rows(SOURCE, function, logits, read(0), write(0)))


def shifted_sums(context: KernelContext) -> Calls:
    """Calls of [Σ exp(logit − max), the target's logit] per row, of (logits, max, targets).

    Both are P(sum) over ranks that split the vocabulary: the target's logit is 0 where another
    rank holds it.
    """
    logits, largest, targets = context.inputs
    function = templated("shifted_sums", (logits, largest, targets, context.outputs[0]))
    return same_calls(
        over_rows(
            SOURCE, function, logits,
            read(0), read(1), read(2), write(0), np.int64(logits.offsets[-1]),
        )
    )  # fmt: skip


def loss_from_sums(context: KernelContext) -> Calls:
    """Calls of loss and logsumexp of every row, of (max, sums, targets)."""
    largest, sums, targets = context.inputs
    require_one_dtype(context, sums, *context.outputs)
    return same_calls(
        elementwise(
            SOURCE, templated("loss_from_sums", (largest, targets, sums)), largest.size,
            read(0), read(1), read(2), write(0), write(1),
        )
    )  # fmt: skip


def count_valid(context: KernelContext) -> Calls:
    """Calls of the number of targets that are not below 0: counts of blocks, then their sum."""
    (targets,), (total,) = context.inputs, context.outputs
    blocks = max(1, min(ceil(targets.size / COUNTS_OF_A_BLOCK), COUNT_BLOCKS_MAX))
    block, size = (COUNT_THREADS, 1, 1), np.int64(targets.size)
    if blocks == 1:
        function = templated("count_valid", (targets, total))
        return same_calls(Launch(SOURCE, function, (1, 1, 1), block, (read(0), write(0), size)))
    counting = "count_valid" + types(targets.dtype, "int64")
    return same_calls(
        Launch(SOURCE, counting, (blocks, 1, 1), block, (read(0), workspace(), size)),
        Launch(
            SOURCE, templated("add_counts", (total,)), (1, 1, 1), block,
            (workspace(), write(0), np.int64(blocks)),
        ),
        workspace_bytes=blocks * 8,
    )  # fmt: skip
