"""Matrix units for convolution of 16 bits: launches of `sources/convolution_units.cu`.

Shape legend: see `windows.py`.
"""

from math import ceil, prod

import numpy as np

from millrace.executor.cuda.calls import TYPES, Launch, Operand, read, table, write
from millrace.executor.cuda.kernels.images.windows import ConvolutionSizes, WindowsStruct

SOURCE = "convolution_units"
DTYPES = ("bfloat16", "float16")
THREADS = 256
PLACES = 128
"""Places of a tile; of the gradient of the weight, values under a window."""
STEP = 32
"""Values along the contracted dim that a step multiplies."""
MULTIPROCESSORS = 132  # H100 SXM data sheet, 2022
ALIGNED_CHANNELS = 8
"""Channels of which 16 bytes hold a multiple."""
SLAB_STEPS = 16
"""Least steps of a slab: fewer do not pay for writing and reading its partial sums."""


def is_supported(sizes: ConvolutionSizes) -> bool:
    """True if the matrix units compute a convolution, which then needs no other kernels."""
    image = sizes.g * max(
        sizes.c * sizes.y.input_size * sizes.x.input_size,
        sizes.n * sizes.y.output_size * sizes.x.output_size,
    )
    weights = sizes.n * sizes.c * sizes.y.size * sizes.x.size
    return (
        sizes.channels_last
        and sizes.dtype in DTYPES
        and sizes.g == 1
        and max(image, weights) < 2**31
    )


def product(dtype: str, windows: tuple[WindowsStruct, ...], *, backward: bool) -> Launch:
    """Launch of the sum over windows by weight of the image `read(0)`."""
    first = windows[0]
    aligned = first.depth % ALIGNED_CHANNELS == 0, first.target_channels % ALIGNED_CHANNELS == 0
    place_tiles = ceil(max(window_class.places for window_class in windows) / PLACES)
    wide = place_tiles * ceil(first.target_channels / 128) * len(windows) >= 2 * MULTIPROCESSORS
    channels = 128 if wide and first.target_channels > 64 and all(aligned) else 64
    channel_tiles = ceil(first.target_channels / channels)
    return Launch(
        SOURCE,
        f"conv_units<{TYPES[dtype]}, {channels}, {_cpp(backward, *aligned)}>",
        (channel_tiles * place_tiles * len(windows), 1, 1),
        (THREADS, 1, 1),
        (read(0), read(1), write(0), table(0), np.int32(channel_tiles),
         np.int32(place_tiles)),
    )  # fmt: skip


def slabs_of(windows: WindowsStruct) -> tuple[int, int]:
    """Places of a slab of the weight's gradient, and number of slabs."""
    tiles = prod(_weight_tiles(windows))
    steps = ceil(windows.places / STEP)
    most = max(1, min(ceil(2 * MULTIPROCESSORS / tiles), steps // SLAB_STEPS))
    slab_places = ceil(steps / most) * STEP
    return slab_places, ceil(windows.places / slab_places)


def weight_product(dtype: str, partial: str, windows: WindowsStruct, target: Operand) -> Launch:
    """Launch of the sums of every slab of places, as `partial`, of `read(0)` and dy `read(1)`."""
    aligned = windows.depth % ALIGNED_CHANNELS == 0, windows.target_channels % ALIGNED_CHANNELS == 0
    slab_places, slabs = slabs_of(windows)
    channel_tiles, tap_tiles = _weight_tiles(windows)
    chosen = f"{TYPES[dtype]}, {TYPES[partial]}, {_weight_rows(windows)}, {_cpp(*aligned)}"
    return Launch(
        SOURCE,
        f"conv_units_weight<{chosen}>",
        (channel_tiles * tap_tiles * slabs, 1, 1),
        (THREADS, 1, 1),
        (read(0), read(1), target, table(0), np.int64(channel_tiles), np.int64(tap_tiles),
         np.int64(slab_places)),
    )  # fmt: skip


def _weight_rows(windows: WindowsStruct) -> int:
    return 128 if windows.target_channels > 64 else 64


def _weight_tiles(windows: WindowsStruct) -> tuple[int, int]:
    return ceil(windows.target_channels / _weight_rows(windows)), ceil(windows.taps / PLACES)


def _cpp(*flags: bool) -> str:
    return ", ".join("true" if flag else "false" for flag in flags)
