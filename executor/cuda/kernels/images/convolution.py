"""Convolution and its gradients: their calls.

A window of one place with stride 1 is a product of matrices and goes to the vendor's library. Of
all others those of 16 bits whose channels come last go to the matrix units (`units.py`), the rest,
and those of several groups, to `sources/convolution.cu`. Shape legend: see `windows.py`.
"""

from math import ceil, prod

import numpy as np

from millrace.executor.cuda.calls import (
    Calls,
    Launch,
    Matrices,
    Operand,
    ProductCall,
    elementwise,
    read,
    same_calls,
    table,
    types,
    workspace,
    write,
)
from millrace.executor.cuda.kernels.images import units
from millrace.executor.cuda.kernels.images.convolution_library import (
    FORWARD,
    GRAD_INPUT,
    GRAD_WEIGHT,
    with_library,
)
from millrace.executor.cuda.kernels.images.windows import (
    ConvolutionSizes,
    WindowsStruct,
    backward_windows,
    forward_windows,
    sizes_of,
    windows_table,
)
from millrace.executor.cuda.kernels.matmul import arithmetic_of
from millrace.executor.kernels.context import KernelContext

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

# These are the depth of a step, threads over channels, threads over places (or taps), and quads of
# places per thread.
_WIDE = "8, 16, 16, 2"
_NARROW = "4, 2, 64, 1"
_SUMS = {"float64": "float64"}  # dtype of partial sums; float32 for all others


def conv(context: KernelContext) -> Calls:
    """Calls of the convolution of (x, w)."""
    sizes = sizes_of(context)
    if sizes.is_pointwise:
        by_channel = Matrices(read(1), sizes.dtype, sizes.c, 1, 0)
        return same_calls(_by_place(context, sizes, by_channel, sizes.n, sizes.c))
    calls = _windows(sizes, (forward_windows(sizes),), backward=False)
    return _or_library(FORWARD, sizes, context, calls)


def conv_grad_input(context: KernelContext) -> Calls:
    """Calls of dx of (dy, w)."""
    sizes = sizes_of(context)
    if sizes.is_pointwise:
        by_channel = Matrices(read(1), sizes.dtype, 1, sizes.c, 0)
        return same_calls(_by_place(context, sizes, by_channel, sizes.c, sizes.n))
    calls = _windows(sizes, backward_windows(sizes), backward=True)
    return _or_library(GRAD_INPUT, sizes, context, calls)


def conv_grad_weight(context: KernelContext) -> Calls:
    """Calls of dw of (x, dy), added up over samples and places."""
    sizes = sizes_of(context)
    if sizes.is_pointwise:
        return _pointwise_grad_weight(context, sizes)
    return _or_library(GRAD_WEIGHT, sizes, context, _weight_calls(sizes))


def _or_library(
    direction: str, sizes: ConvolutionSizes, context: KernelContext, calls: Calls
) -> Calls:
    """Choice between the vendor's library and our kernels where channels come last."""
    if not sizes.channels_last:
        return calls
    return with_library(direction, sizes, context.run, calls)


def _weight_calls(sizes: ConvolutionSizes) -> Calls:
    """Calls of the sums of slabs of places, and of their sum."""
    windows = forward_windows(sizes)
    weights = sizes.g * windows.target_channels * windows.taps
    if units.is_supported(sizes):
        slab_places, slabs = units.slabs_of(windows)
    else:
        slab_places, slabs = _slabs(sizes, windows)
    partial = _SUMS.get(sizes.dtype, "float32") if slabs > 1 else sizes.dtype
    target = workspace() if slabs > 1 else write(0)
    if units.is_supported(sizes):
        launch = units.weight_product(sizes.dtype, partial, windows, target)
    else:
        launch = _weight_launch(sizes, windows, partial, slab_places, slabs, target)
    tables = (windows_table(windows),)
    if slabs == 1:
        return same_calls(launch, tables=tables)
    return same_calls(
        launch,
        _add_slabs(partial, sizes.dtype, slabs, weights),
        tables=tables,
        workspace_bytes=slabs * weights * np.dtype(partial).itemsize,
    )


def _has_few_weights(windows: WindowsStruct) -> bool:
    return windows.target_channels * windows.taps <= FEW_WEIGHTS


def _weight_tiles(sizes: ConvolutionSizes, windows: WindowsStruct) -> tuple[int, int]:
    """Tiles of channels and of taps, those of groups among the latter."""
    return ceil(windows.target_channels / 64), ceil(windows.taps / 128) * sizes.g


def _slabs(sizes: ConvolutionSizes, windows: WindowsStruct) -> tuple[int, int]:
    """Places of a slab, and number of slabs."""
    weights = sizes.g * windows.target_channels * windows.taps
    tiles = weights if _has_few_weights(windows) else prod(_weight_tiles(sizes, windows))
    slabs = max(1, min(ceil(BLOCKS / tiles), windows.places // SLAB_PLACES))
    slab_places = ceil(windows.places / slabs)
    return slab_places, ceil(windows.places / slab_places)


def _weight_launch(
    sizes: ConvolutionSizes,
    windows: WindowsStruct,
    partial: str,
    slab_places: int,
    slabs: int,
    target: Operand,
) -> Launch:
    """Launch of the sums of every slab."""
    chosen, last = types(sizes.dtype, partial), _last(sizes)
    operands = read(0), read(1), target, table(0)
    if _has_few_weights(windows):
        weights = sizes.g * windows.target_channels * windows.taps
        return Launch(
            SOURCE, f"conv_grad_weight_few{chosen[:-1]}, {last}>",
            (weights * slabs, 1, 1), (256, 1, 1),
            (*operands, np.int64(weights), np.int64(slab_places)),
        )  # fmt: skip
    channel_tiles, tap_tiles = _weight_tiles(sizes, windows)
    return Launch(
        SOURCE, f"conv_grad_weight{chosen[:-1]}, {_WIDE}, {last}>",
        (channel_tiles * tap_tiles * slabs, 1, 1), (256, 1, 1),
        (*operands, np.int64(channel_tiles), np.int64(tap_tiles // sizes.g),
         np.int64(slab_places)),
    )  # fmt: skip


def _windows(
    sizes: ConvolutionSizes, windows: tuple[WindowsStruct, ...], *, backward: bool
) -> Calls:
    """Calls of the sum over windows by weight of the image `read(0)`."""
    tables = (windows_table(*windows),)
    if units.is_supported(sizes):
        return same_calls(units.product(sizes.dtype, windows, backward=backward), tables=tables)
    out_channels = windows[0].target_channels
    narrow = out_channels <= FEW_CHANNELS
    channels, places, threads = (8, 256, 128) if narrow else (64, 128, 256)
    channel_tiles = ceil(out_channels / channels)
    place_tiles = ceil(max(window_class.places for window_class in windows) / places)
    blocks = channel_tiles * place_tiles * sizes.g * len(windows)
    launch = Launch(
        SOURCE,
        f"conv{types(sizes.dtype)[:-1]}, {_NARROW if narrow else _WIDE}, {_last(sizes)}>",
        (blocks, 1, 1),
        (threads, 1, 1),
        (read(0), read(1), write(0), table(0), np.int64(channel_tiles), np.int64(place_tiles)),
    )
    return same_calls(launch, tables=tables)


def _last(sizes: ConvolutionSizes) -> str:
    return "true" if sizes.channels_last else "false"


def _by_place(
    context: KernelContext, sizes: ConvolutionSizes, weight: Matrices, outputs: int, depth: int
) -> ProductCall:
    """Product of the weights [outputs, depth] and every place of the image.

    Where channels come last, all places are one matrix; else every sample's image is one.
    """
    arithmetic = arithmetic_of(sizes.dtype, context.run)
    if sizes.channels_last:
        turned = weight._replace(row_stride=weight.column_stride, column_stride=weight.row_stride)
        return ProductCall(
            Matrices(read(0), sizes.dtype, depth, 1, 0),
            turned,
            Matrices(write(0), sizes.dtype, outputs, 1, 0),
            m=sizes.b * sizes.places, n=outputs, k=depth, batch=1, arithmetic=arithmetic,
        )  # fmt: skip
    image, out = (
        Matrices(operand, sizes.dtype, sizes.places, 1, channels * sizes.places)
        for operand, channels in ((read(0), depth), (write(0), outputs))
    )
    return ProductCall(
        weight, image, out, m=outputs, n=sizes.places, k=depth, batch=sizes.b, arithmetic=arithmetic
    )


def _pointwise_grad_weight(context: KernelContext, sizes: ConvolutionSizes) -> Calls:
    """Calls of the sum over samples of dy [n, places] · x [c, places]ᵀ.

    Samples go in rounds: those of a round have a partial sum each, to which the next rounds add.
    """
    if sizes.channels_last:
        return same_calls(_all_places(context, sizes))
    weights = sizes.n * sizes.c
    partial = _SUMS.get(sizes.dtype, "float32") if sizes.b > 1 else sizes.dtype
    weight_bytes = weights * np.dtype(partial).itemsize if sizes.b > 1 else 0
    together = max(1, min(sizes.b, PARTIALS_BYTES // max(weight_bytes, 1)))
    item = 2 if sizes.dtype.endswith("16") else np.dtype(sizes.dtype).itemsize
    target = workspace() if sizes.b > 1 else write(0)

    def sample_matrices(
        operand: Operand, start: int, channels: int, strides: tuple[int, int]
    ) -> Matrices:
        sample = channels * sizes.places
        from_sample = operand._replace(offset_bytes=start * sample * item)
        return Matrices(from_sample, sizes.dtype, *strides, sample)

    products = [
        ProductCall(
            sample_matrices(read(1), start, sizes.n, (sizes.places, 1)),
            sample_matrices(read(0), start, sizes.c, (1, sizes.places)),
            Matrices(target, partial, sizes.c, 1, weights),
            m=sizes.n, n=sizes.c, k=sizes.places, batch=min(together, sizes.b - start),
            arithmetic=arithmetic_of(sizes.dtype, context.run), accumulate=start > 0,
        )
        for start in range(0, sizes.b, together)
    ]  # fmt: skip
    if sizes.b == 1:
        return same_calls(*products)
    return same_calls(
        *products,
        _add_slabs(partial, sizes.dtype, together, weights),
        workspace_bytes=together * weight_bytes,
    )


def _all_places(context: KernelContext, sizes: ConvolutionSizes) -> ProductCall:
    """Product dy [places, n]ᵀ · x [places, c]."""
    return ProductCall(
        Matrices(read(1), sizes.dtype, 1, sizes.n, 0),
        Matrices(read(0), sizes.dtype, sizes.c, 1, 0),
        Matrices(write(0), sizes.dtype, sizes.c, 1, 0),
        m=sizes.n, n=sizes.c, k=sizes.b * sizes.places, batch=1,
        arithmetic=arithmetic_of(sizes.dtype, context.run),
    )  # fmt: skip


def _add_slabs(partial: str, dtype: str, slabs: int, weights: int) -> Launch:
    """Launch of the sum of partial gradients in the workspace."""
    return elementwise(
        SOURCE, f"add_slabs{types(partial, dtype)}", weights,
        workspace(), write(0), np.int64(slabs),
    )  # fmt: skip
