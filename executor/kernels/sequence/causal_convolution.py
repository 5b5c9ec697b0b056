"""Causal convolution of every channel along the tokens by itself, and its gradients.

Seen as x [B, T, C] and w [C, K]: B samples, T tokens, C channels, K taps. Tap j meets the token
K - 1 - j places before.
"""

from collections.abc import Sequence
from math import prod

import numpy as np

from millrace.executor.kernels.chunks import CHUNK_ELEMENTS, chunks
from millrace.executor.kernels.context import Array, Kernel, KernelContext
from millrace.executor.kernels.dims import bind_operand_dims
from millrace.models.labels import SEQUENCE


def sizes_of(context: KernelContext) -> tuple[int, int, int, int]:
    """Samples, tokens, channels and taps of a causal convolution or a gradient of it."""
    dims = bind_operand_dims(context)
    labels, sizes = dims.inputs[0], dims.sizes
    weight = dims.outputs[0] if context.kind.endswith("weight") else dims.inputs[1]
    place = labels.index(SEQUENCE)
    return (
        prod(sizes[label] for label in labels[:place]),
        sizes[SEQUENCE],
        prod(sizes[label] for label in labels[place + 1 :]),
        sizes[weight[-1]],
    )


def causal_conv1d(context: KernelContext) -> Kernel:
    """Kernel of y[t] = Σ over j of w[j] x[t - (K - 1 - j)]."""
    return _filtered(context, -1)


def causal_conv1d_grad_input(context: KernelContext) -> Kernel:
    """Kernel of dx[t] = Σ over j of w[j] dy[t + (K - 1 - j)]."""
    return _filtered(context, 1)


def _rows(tokens: int, channels: int) -> list[slice]:
    """Tokens of one sample in blocks that stay in the cache."""
    return list(chunks(tokens, max(1, CHUNK_ELEMENTS // max(channels, 1))))


def _meeting(rows: slice, shift: int, tokens: int) -> tuple[slice, slice]:
    """Tokens of a block whose neighbour `shift` further on exists, and these neighbours."""
    first, last = max(rows.start, -shift), min(rows.stop, tokens - shift)
    last = max(first, last)
    return slice(first, last), slice(first + shift, last + shift)


def _filtered(context: KernelContext, direction: int) -> Kernel:
    """Kernel whose taps read backwards (direction -1) or forwards (1) in the sequence."""
    samples, tokens, channels, taps = sizes_of(context)
    dtype, blocks = context.outputs[0].dtype, _rows(tokens, channels)
    filters = np.empty((taps, channels), dtype)
    product = np.empty((blocks[0].stop, channels), dtype)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        sources, targets = (
            array.reshape(samples, tokens, channels) for array in (inputs[0], outputs[0])
        )
        np.copyto(filters, inputs[1].reshape(channels, taps).T)
        for x, y in zip(sources, targets, strict=True):
            for rows in blocks:
                np.multiply(x[rows], filters[-1], out=y[rows])
                for distance in range(1, taps):
                    here, there = _meeting(rows, direction * distance, tokens)
                    part = product[: here.stop - here.start]
                    np.multiply(x[there], filters[-1 - distance], out=part)
                    np.add(y[here], part, out=y[here])

    return kernel


def causal_conv1d_grad_weight(context: KernelContext) -> Kernel:
    """Kernel of dw[j] = Σ over samples and tokens of dy[t] x[t - (K - 1 - j)]."""
    samples, tokens, channels, taps = sizes_of(context)
    dtype, blocks = context.outputs[0].dtype, _rows(tokens, channels)
    totals, sums = np.empty((taps, channels), dtype), np.empty(channels, dtype)
    product = np.empty((blocks[0].stop, channels), dtype)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        given, slopes = (array.reshape(samples, tokens, channels) for array in inputs)
        totals.fill(0)
        for x, dy in zip(given, slopes, strict=True):
            for rows in blocks:
                for distance in range(taps):
                    here, there = _meeting(rows, -distance, tokens)
                    part = product[: here.stop - here.start]
                    np.multiply(x[there], dy[here], out=part)
                    np.add.reduce(part, out=sums)
                    np.add(totals[-1 - distance], sums, out=totals[-1 - distance])
        np.copyto(outputs[0].reshape(channels, taps), totals.T)

    return kernel
