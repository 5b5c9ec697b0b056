"""Dropout on a GPU, with the bits of `millrace.executor.kernels.elementwise.dropout`.

Element i of sample n of the run is kept by word i mod 4 of the Philox counter (i div 4, n) under a
key of seed and op. The step comes from the rank's `Control`, so that a captured step draws anew
each time; all else is known when the calls are made.
"""

import numpy as np

from millrace.executor.cuda.calls import CONTROL, TYPES, Calls, Launch, by_packs, read, table, write
from millrace.executor.cuda.kernels.strides import Walk, contiguous, index_type, merged
from millrace.executor.kernels.context import KernelContext
from millrace.executor.kernels.elementwise.dropout import labels_of, rate_of
from millrace.executor.kernels.random_bits import key_of
from millrace.models.labels import BATCH

WORDS = 4  # words that a counter gives


def dropout(context: KernelContext) -> Calls:
    """Calls of x / (1 − rate), or 0 with probability `rate`; raises as `rate_of` does."""
    rate = rate_of(context)
    path, first_sample, first_index = _places(context)
    run, count = context.run, context.inputs[0].size
    keys = key_of(run.seed, str(context.attributes["op"]))
    per_step = run.microbatches if first_sample is None else run.global_batch
    name = f"dropout<{TYPES[context.inputs[0].dtype]}, {index_type(count)}>"

    def launch(firing: int) -> Launch:
        in_step = firing if first_sample is None else firing * run.batch + first_sample
        return by_packs(
            "dropout",
            name,
            count,
            (context.inputs[0].dtype,),
            read(0),
            write(0),
            CONTROL,
            table(0),
            path.dims,
            np.int64(first_index),
            np.int64(in_step),
            np.int64(per_step),
            np.uint32(keys[0]),
            np.uint32(keys[1]),
            np.int64(round(rate * 2**32)),
            np.int32(_is_by_counter(path, first_index)),
            np.float64(1 / (1 - rate)),
        )

    return Calls(of=lambda firing: (launch(firing),), tables=(path.table(context.name),))


def _places(context: KernelContext) -> tuple[Walk, int | None, int]:
    """Walk over samples and indexes in them, the first sample and the first index.

    Samples are those of the microbatch; None: no dim numbers them.
    """
    labels, local_sizes, global_sizes, offsets = labels_of(context)
    inside = [label for label in labels if label != BATCH]
    steps = dict(zip(inside, contiguous([global_sizes[label] for label in inside]), strict=True))
    path = merged(
        [local_sizes[label] for label in labels],
        [int(label == BATCH) for label in labels],
        [steps.get(label, 0) for label in labels],
    )
    first_index = sum(offsets.get(label, 0) * step for label, step in steps.items())
    return path, offsets.get(BATCH, 0) if BATCH in labels else None, first_index


def _is_by_counter(path: Walk, first_index: int) -> bool:
    """True if four neighbours, from a multiple of four on, are one counter's words."""
    if path.first[-1] or path.second[-1] != 1:
        return False
    return not any(number % WORDS for number in (first_index, path.sizes[-1], *path.second[:-1]))
