"""Fused actors on a CPU: their parts one after the other, with room for what passes between."""

from collections.abc import Sequence

import numpy as np

from millrace.executor.kernels.context import Array, Kernel, KernelContext


def fused(context: KernelContext, kernels: Sequence[Kernel]) -> Kernel:
    """Kernel of a fused actor, made of those of its parts."""
    inner = [np.empty(shard.shape, shard.dtype) for shard in context.inner]
    parts = [
        (kernel, part.inputs, part.outputs)
        for kernel, part in zip(kernels, context.parts, strict=True)
    ]

    def run(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        operands = (*inputs, *outputs, *inner)
        for kernel, read, written in parts:
            kernel(
                firing,
                [operands[number] for number in read],
                [operands[number] for number in written],
            )

    return run
