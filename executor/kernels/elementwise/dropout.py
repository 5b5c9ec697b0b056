"""Dropout whose bits depend on the seed, the op, the sample and the place in the sample alone.

Element i of sample n is kept by word i mod 4 of the Philox counter (i div 4, n) under a key of seed
and op. n numbers the samples of the whole run, so it holds the step too; where there is no batch
label, firings are numbered instead. So neither the split nor the size of a microbatch changes a
bit, and the backward pass, which names the same op, drops what the forward pass dropped.

A shard is seen as [R, N]: R rows, each N elements that follow each other in one sample.
"""

from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from millrace.executor.errors import ExecutorError
from millrace.executor.kernels.chunks import CHUNK_ELEMENTS, chunks
from millrace.executor.kernels.context import Array, Kernel, KernelContext
from millrace.executor.kernels.random_bits import key_of, philox
from millrace.models.labels import BATCH, bind, parse

WORDS = 4  # A counter gives so many.


class _Rows(NamedTuple):
    """Rows of a shard: the sample (in the microbatch) and first index of each, and their length."""

    samples: NDArray[np.uint64]
    starts: NDArray[np.uint64]
    length: int
    has_samples: bool


class Labels(NamedTuple):
    """Labels of what is dropped, outermost first: their sizes here and in all, and first indexes.

    Only the first label of a dim may be cut, so only it has an offset.
    """

    labels: list[str]
    local: dict[str, int]
    global_sizes: dict[str, int]
    offsets: dict[str, int]


def labels_of(context: KernelContext) -> Labels:
    """Labels of a dropout's input."""
    shard = context.inputs[0]
    expression = parse(context.labels)
    (dims,) = expression.inputs
    local = bind(expression, [shard.shape], [shard.shape], op=context.name)
    return Labels(
        labels=[label for dim in dims for label in dim],
        local=local,
        global_sizes=bind(expression, [shard.global_shape], [shard.global_shape], op=context.name),
        offsets={
            dim[0]: offset // prod(local[label] for label in dim[1:])
            for dim, offset in zip(dims, shard.offsets, strict=True)
        },
    )


def _rows(context: KernelContext) -> _Rows:
    """Cut the shard into rows as long as possible."""
    labels, local_sizes, global_sizes, offsets = labels_of(context)
    inside = [label for label in labels if label != BATCH]
    strides = {
        label: prod(global_sizes[later] for later in inside[position + 1 :])
        for position, label in enumerate(inside)
    }
    # a row goes on over every dim that is whole here, and over one more
    outer_count, length = len(labels), 1
    while outer_count and labels[outer_count - 1] != BATCH:
        outer_count -= 1
        length *= local_sizes[labels[outer_count]]
        if local_sizes[labels[outer_count]] != global_sizes[labels[outer_count]]:
            break
    samples = np.zeros((1,) * outer_count, np.uint64)
    starts = np.full(
        (1,) * outer_count,
        sum(offsets.get(label, 0) * strides[label] for label in labels[outer_count:]),
        np.uint64,
    )
    for position, label in enumerate(labels[:outer_count]):
        index = offsets.get(label, 0) + np.arange(local_sizes[label], dtype=np.uint64)
        index = index.reshape([-1 if other == position else 1 for other in range(outer_count)])
        if label == BATCH:
            samples = samples + index
        else:
            starts = starts + index * np.uint64(strides[label])
    shape = [local_sizes[label] for label in labels[:outer_count]]
    return _Rows(
        samples=np.broadcast_to(samples, shape).reshape(-1),
        starts=np.broadcast_to(starts, shape).reshape(-1),
        length=length,
        has_samples=BATCH in labels,
    )


def rate_of(context: KernelContext) -> float:
    """Share of values that a dropout leaves out.

    Raises
    ------
    ExecutorError
        It is not from 0 up to, but less than, 1.
    """
    rate = float(context.attributes["rate"])
    if not 0 <= rate < 1:
        raise ExecutorError(
            f"dropout rate is {rate}: give one of 0 or more, below 1", actor=context.name
        )
    return rate


def dropout(context: KernelContext) -> Kernel:
    """Kernel of x / (1 − rate), or 0 with probability `rate`; raises as `rate_of` does."""
    rate = rate_of(context)
    rows = _rows(context)
    bits = _Bits(key_of(context.run.seed, str(context.attributes["op"])), round(rate * 2**32), rows)
    factor = 1 / (1 - rate)
    shape = (rows.samples.size, rows.length)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        x, y = inputs[0].reshape(shape), outputs[0].reshape(shape)
        for region, mask in bits.masks(_first_number(context, firing, rows.has_samples)):
            np.multiply(x[region], factor, out=y[region])
            np.multiply(y[region], mask, out=y[region])

    return kernel


def _first_number(context: KernelContext, firing: int, has_samples: bool) -> int:
    """Number of the microbatch's first sample, or of the firing, in the whole run."""
    run = context.run
    if not has_samples:
        return run.first_step * run.microbatches + firing
    step, microbatch = divmod(firing, run.microbatches)
    return (run.first_step + step) * run.global_batch + microbatch * run.batch


class _Bits:
    """Masks of the elements that are kept, by region; every region writes over its arrays."""

    def __init__(self, key: tuple[int, int], threshold: int, rows: _Rows) -> None:
        self._key = key
        self._threshold = np.uint64(threshold)
        self._rows = rows
        self._places = rows.starts % np.uint64(WORDS)
        self._is_aligned = not self._places.any()
        # a row that begins inside a counter's words needs one counter more
        self._columns = min(rows.length, CHUNK_ELEMENTS)
        self._rows_at_once = max(1, min(rows.samples.size, CHUNK_ELEMENTS // max(self._columns, 1)))
        shape = (self._rows_at_once, self._counters(self._columns))
        self._words = [np.empty(shape, np.uint64) for _ in range(WORDS)]
        self._spare = [np.empty(shape, np.uint64) for _ in range(2)]
        self._mask = np.empty((*shape, WORDS), np.bool_)
        self._moved = np.empty((self._rows_at_once, self._columns), np.bool_)

    def _counters(self, columns: int) -> int:
        return -(-columns // WORDS) + (not self._is_aligned)

    def masks(self, first: int) -> Iterator[tuple[tuple[slice, slice], Array]]:
        """Yield regions of [R, N] and what is kept there; `first` numbers the first sample."""
        rows = self._rows
        for part in chunks(rows.samples.size, self._rows_at_once):
            samples = rows.samples[part, None] + np.uint64(first)
            for columns in chunks(rows.length, self._columns):
                counters = rows.starts[part, None] // np.uint64(WORDS)
                counters = counters + np.uint64(columns.start // WORDS)
                yield (part, columns), self._of_region(part, columns, counters, samples)

    def _of_region(self, part: slice, columns: slice, counters: Array, samples: Array) -> Array:
        count, length = part.stop - part.start, columns.stop - columns.start
        width = self._counters(length)
        words = [array[:count, :width] for array in self._words]
        low, high = np.uint64(0xFFFFFFFF), np.uint64(32)
        np.add(counters, np.arange(width, dtype=np.uint64), out=words[1])
        np.bitwise_and(words[1], low, out=words[0])
        np.right_shift(words[1], high, out=words[1])
        words[2][...], words[3][...] = samples & low, samples >> high
        philox(words, self._key, [array[:count, :width] for array in self._spare])
        mask = self._mask[:count, :width]
        for word_index, word in enumerate(words):
            np.greater_equal(word, self._threshold, out=mask[..., word_index])
        flat_mask = mask.reshape(count, width * WORDS)
        if self._is_aligned:
            return flat_mask[:, :length]
        moved = self._moved[:count, :length]
        for row, place in enumerate(self._places[part].tolist()):
            moved[row] = flat_mask[row, place : place + length]
        return moved
