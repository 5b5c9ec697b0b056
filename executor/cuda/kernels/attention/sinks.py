"""Sinks: calls that join a score more per head to what attention made, and of its gradient."""

from math import ceil

import numpy as np

from millrace.executor.cuda.calls import (
    BLOCK_THREADS,
    WARP_THREADS,
    Calls,
    Launch,
    read,
    same_calls,
    types,
    write,
)
from millrace.executor.kernels.context import KernelContext

SOURCE = "attention_sink"


def attention_sink(context: KernelContext) -> Calls:
    """Calls of output and logsumexp with the sink, of (out, logsumexp, sink); a warp per row."""
    out, logsumexp, sink = context.inputs
    shards = (*context.inputs, *context.outputs)
    blocks = ceil(logsumexp.size / (BLOCK_THREADS // WARP_THREADS))
    launch = Launch(
        SOURCE,
        "attention_sink" + types(*(shard.dtype for shard in shards)),
        (blocks, 1, 1),
        (BLOCK_THREADS, 1, 1),
        (
            *(read(number) for number in range(3)),
            *(write(number) for number in range(2)),
            *(np.int64(size) for size in (sink.size, logsumexp.size, out.shape[-1])),
        ),
    )
    return same_calls(*((launch,) if blocks else ()))


def attention_sink_grad(context: KernelContext) -> Calls:
    """Calls of dsink, of (out, logsumexp, sink, dout); a block per head."""
    out, logsumexp, sink, _ = context.inputs
    shards = (*context.inputs, *context.outputs)
    tokens = logsumexp.size // max(sink.size, 1)
    launch = Launch(
        SOURCE,
        "attention_sink_grad" + types(*(shard.dtype for shard in shards)),
        (sink.size, 1, 1),
        (BLOCK_THREADS, 1, 1),
        (
            *(read(number) for number in range(4)),
            *(write(0), np.int64(tokens), np.int64(out.shape[-1])),
        ),
    )
    return same_calls(*((launch,) if sink.size else ()))
