"""Sinkhorn's rounds: matrices divided by the sums of their columns and rows, and the gradient.

Shapes: arrays [..., m, n], of which the last two are the matrices; a, s of a round are the matrix
that it makes and the sums that it divides by.
"""

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from millrace.executor.kernels.chunks import chunks, rows_per_chunk
from millrace.executor.kernels.context import Array, Kernel, KernelContext

COLUMNS, ROWS = -2, -1
"""Axes that are added up for the sums of columns and of rows."""


def sinkhorn(context: KernelContext) -> Kernel:
    """Kernel of the matrices behind all rounds, from (x)."""
    rounds, epsilon = int(context.number("rounds", 1)), context.number("epsilon", 0.0)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        for x, shares in _in_chunks(*inputs, *outputs):
            shares[...] = x
            for axis in _axes(rounds):
                sums = np.add.reduce(shares, axis=axis, keepdims=True) + epsilon
                np.divide(shares, sums, out=shares)

    return kernel


def sinkhorn_grad(context: KernelContext) -> Kernel:
    """Kernel of dx from (x, dy): (da - Σ da a) / s through the rounds from the last on."""
    rounds, epsilon = int(context.number("rounds", 1)), context.number("epsilon", 0.0)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        for shares, dy, slope in _in_chunks(*inputs, *outputs):
            steps = []
            for axis in _axes(rounds):
                sums = np.add.reduce(shares, axis=axis, keepdims=True) + epsilon
                shares = shares / sums
                steps.append((axis, sums, shares))
            slope[...] = dy
            for axis, sums, shares in reversed(steps):
                along = np.add.reduce(slope * shares, axis=axis, keepdims=True)
                np.divide(np.subtract(slope, along, out=slope), sums, out=slope)

    return kernel


def _in_chunks(*arrays: Array) -> Iterator[list[Array]]:
    """Matrices of all arrays, as many at a time as make a chunk."""
    shape = arrays[0].shape[-2:]
    matrices = [array.reshape(-1, *shape) for array in arrays]
    step = rows_per_chunk(prod(shape), len(matrices[0]))
    for part in chunks(len(matrices[0]), step):
        yield [array[part] for array in matrices]


def _axes(rounds: int) -> Iterator[int]:
    yield COLUMNS
    for _ in range(rounds - 1):
        yield ROWS
        yield COLUMNS
