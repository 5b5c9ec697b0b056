"""input: the rows of the dataset that belong to this rank's shard of the batch."""

from collections.abc import Sequence

import numpy as np

from executor.errors import ExecutorError
from executor.kernels.context import Array, Kernel, KernelContext, Source


def input_(context: KernelContext) -> Kernel:
    """Return the shard's samples of the attribute `source`, dim 0 being the batch.

    Sample i of microbatch m of step s is number (s · global_batch + m · batch + i) of the run.

    Raises
    ------
    ExecutorError
        The run has no dataset.
    """
    run, shard = context.run, context.outputs[0]
    dataset = run.dataset
    source = Source(
        name=str(context.attributes["source"]),
        values=int(context.attributes.get("values", 0)),
        shape=shard.global_shape[1:],
        region=tuple(
            slice(start, start + size)
            for start, size in zip(shard.offsets[1:], shard.shape[1:], strict=True)
        ),
    )
    if dataset is None:
        raise ExecutorError(f"no dataset to read `{source.name}` from", actor=context.name)
    rows = shard.offsets[0] + np.arange(shard.shape[0], dtype=np.int64)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        step, microbatch = divmod(firing, run.microbatches)
        first = (run.first_step + step) * run.global_batch + microbatch * run.batch
        outputs[0][...] = dataset.read(source, first + rows)

    return kernel
