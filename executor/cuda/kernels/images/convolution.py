"""Calls of convolution and its gradients.

A window of one place with stride 1 is a product of matrices, sample by sample, and goes to the
vendor's library; all others go to `sources/convolution.cu`. Shape legend: see `windows.py`.
"""

from math import ceil

import numpy as np

from executor.cuda.calls import (
    Calls,
    Launch,
    Matrices,
    Operand,
    Product,
    always,
    elementwise,
    read,
    table,
    types,
    workspace,
    write,
)
from executor.cuda.kernels.images.windows import (
    Sizes,
    Windows,
    backward_windows,
    forward_windows,
    sizes_of,
    windows_table,
)
from executor.cuda.kernels.matmul import arithmetic_of
from executor.kernels.context import KernelContext

SOURCE = "convolution"
FEW_CHANNELS = 8
"""Output channels of a group up to which tiles are low and wide."""
FEW_WEIGHTS = 128
"""Weights of a group up to which each has blocks of its own: a tile would be mostly empty."""
BLOCKS = 528
"""Blocks that fill a device: four on each of 132 multiprocessors (H100 SXM data sheet, 2022)."""
SLAB_PLACES = 1024
"""Least places of a slab: fewer do not pay for writing and reading its partial sums."""
PARTIALS_BYTES = 16 << 20
"""Most bytes of partial gradients of pointwise weights, at least one sample's; a third of L2."""

# depth of a step, threads over channels, threads over places (or taps), quads of these per thread
_WIDE = "8, 16, 16, 2"
_NARROW = "4, 2, 64, 1"
_SUMS = {"float64": "float64"}  # what partial sums are kept in; float32 for all others


def conv(context: KernelContext) -> Calls:
    """Return the convolution of (x, w)."""
    x, weight = context.inputs
    sizes = sizes_of(context, x, weight, context.outputs[0])
    if sizes.is_pointwise:
        by_channel = Matrices(read(1), sizes.dtype, sizes.c, 1, 0)
        product = _by_sample(context, sizes, by_channel, sizes.n, sizes.c)
        return always(product)
    return _windows(sizes, (forward_windows(sizes),))


def conv_grad_input(context: KernelContext) -> Calls:
    """Return dx of (dy, w)."""
    dy, weight = context.inputs
    sizes = sizes_of(context, context.outputs[0], weight, dy)
    if sizes.is_pointwise:
        by_channel = Matrices(read(1), sizes.dtype, 1, sizes.c, 0)
        return always(_by_sample(context, sizes, by_channel, sizes.c, sizes.n))
    return _windows(sizes, backward_windows(sizes))


def conv_grad_weight(context: KernelContext) -> Calls:
    """Return dw of (x, dy), added up over samples and places."""
    x, dy = context.inputs
    sizes = sizes_of(context, x, context.outputs[0], dy)
    if sizes.is_pointwise:
        return _pointwise_grad_weight(context, sizes)
    windows = forward_windows(sizes)
    weights = sizes.g * windows.made * windows.taps
    few = windows.made * windows.taps <= FEW_WEIGHTS
    channel_tiles, tap_tiles = ceil(windows.made / 64), ceil(windows.taps / 128)
    tiles = weights if few else channel_tiles * tap_tiles * sizes.g
    slabs = max(1, min(ceil(BLOCKS / tiles), windows.places // SLAB_PLACES))
    slab_places = ceil(windows.places / slabs)
    slabs = ceil(windows.places / slab_places)
    partial = _SUMS.get(sizes.dtype, "float32") if slabs > 1 else sizes.dtype
    chosen = types(sizes.dtype, partial)
    operands = read(0), read(1), workspace() if slabs > 1 else write(0), table(0)
    if few:
        launch = Launch(
            SOURCE, f"conv_grad_weight_few{chosen}", (weights * slabs, 1, 1), (256, 1, 1),
            (*operands, np.int64(weights), np.int64(slab_places)),
        )  # fmt: skip
    else:
        launch = Launch(
            SOURCE, f"conv_grad_weight{chosen[:-1]}, {_WIDE}>", (tiles * slabs, 1, 1), (256, 1, 1),
            (*operands, np.int64(channel_tiles), np.int64(tap_tiles), np.int64(slab_places)),
        )  # fmt: skip
    tables = (windows_table(windows),)
    if slabs == 1:
        return always(launch, tables=tables)
    return always(
        launch,
        _add_slabs(partial, sizes.dtype, slabs, weights),
        tables=tables,
        workspace_bytes=slabs * weights * np.dtype(partial).itemsize,
    )


def _windows(sizes: Sizes, windows: tuple[Windows, ...]) -> Calls:
    """Return the sum over windows by weight of the image `read(0)`."""
    made = windows[0].made
    narrow = made <= FEW_CHANNELS
    channels, places, threads = (8, 256, 128) if narrow else (64, 128, 256)
    channel_tiles = ceil(made / channels)
    place_tiles = ceil(max(one.places for one in windows) / places)
    blocks = channel_tiles * place_tiles * sizes.g * len(windows)
    launch = Launch(
        SOURCE,
        f"conv{types(sizes.dtype)[:-1]}, {_NARROW if narrow else _WIDE}>",
        (blocks, 1, 1),
        (threads, 1, 1),
        (read(0), read(1), write(0), table(0), np.int64(channel_tiles), np.int64(place_tiles)),
    )
    return always(launch, tables=(windows_table(*windows),))


def _by_sample(
    context: KernelContext, sizes: Sizes, weight: Matrices, made: int, depth: int
) -> Product:
    """Return the weights [made, depth] times every sample's image [depth, places]."""
    image, out = (
        Matrices(operand, sizes.dtype, sizes.places, 1, channels * sizes.places)
        for operand, channels in ((read(0), depth), (write(0), made))
    )
    return Product(
        weight, image, out, m=made, n=sizes.places, k=depth, batch=sizes.b,
        arithmetic=arithmetic_of(sizes.dtype, context.run),
    )  # fmt: skip


def _pointwise_grad_weight(context: KernelContext, sizes: Sizes) -> Calls:
    """Return the sum over samples of dy [n, places] · x [c, places]ᵀ.

    Samples go in rounds: those of a round have a partial sum each, to which the next rounds add.
    """
    weights = sizes.n * sizes.c
    partial = _SUMS.get(sizes.dtype, "float32") if sizes.b > 1 else sizes.dtype
    weight_bytes = weights * np.dtype(partial).itemsize if sizes.b > 1 else 0
    together = max(1, min(sizes.b, PARTIALS_BYTES // max(weight_bytes, 1)))
    item = 2 if sizes.dtype.endswith("16") else np.dtype(sizes.dtype).itemsize
    target = workspace() if sizes.b > 1 else write(0)

    def given(operand: Operand, start: int, channels: int, strides: tuple[int, int]) -> Matrices:
        sample = channels * sizes.places
        from_sample = operand._replace(offset_bytes=start * sample * item)
        return Matrices(from_sample, sizes.dtype, *strides, sample)

    products = [
        Product(
            given(read(1), start, sizes.n, (sizes.places, 1)),
            given(read(0), start, sizes.c, (1, sizes.places)),
            Matrices(target, partial, sizes.c, 1, weights),
            m=sizes.n, n=sizes.c, k=sizes.places, batch=min(together, sizes.b - start),
            arithmetic=arithmetic_of(sizes.dtype, context.run), accumulate=start > 0,
        )
        for start in range(0, sizes.b, together)
    ]  # fmt: skip
    if sizes.b == 1:
        return always(*products)
    return always(
        *products,
        _add_slabs(partial, sizes.dtype, together, weights),
        workspace_bytes=together * weight_bytes,
    )


def _add_slabs(partial: str, dtype: str, slabs: int, weights: int) -> Launch:
    """Return the sum of partial gradients in the workspace."""
    return elementwise(
        SOURCE, f"add_slabs{types(partial, dtype)}", weights,
        workspace(), write(0), np.int64(slabs),
    )  # fmt: skip
