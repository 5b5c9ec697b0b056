"""GEMM: the time that a matrix product or a convolution takes, by tiles and waves.

A kernel cuts the output into tiles of one size; every multiprocessor does one at a time, so that
tiles come in waves, the last of which may be nearly empty. `sizes_of` says which product an op is:
`batch` of them, each of `m` by `k` times `k` by `n`.

Shapes: sizes and seconds are arrays [firings] that broadcast against each other, see
`millrace.planner.costs.op_batch`.

Notes
-----
NVIDIA, "Matrix Multiplication Background User's Guide" (2023): tile sizes, tile and wave
quantisation; section 4.2 has the requirement that dims are multiples of 16 bytes.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from millrace.models.arrays import Floats
from millrace.models.labels import parse
from millrace.models.ops import op_kind
from millrace.planner.cluster import Device
from millrace.planner.costs.op_batch import NARROW, OpFirings, peak_flops_per_s

Labels = tuple[str, ...]

# Tiles (rows, columns) and into how many parts the contraction is cut: those of NVIDIA's guide
# (above), smaller ones for a few rows or columns, and cut ones for small outputs of long
# contractions (CUTLASS, efficient_gemm.md, "Parallelized Reductions").
TILES = (
    *((256, 128, 1), (128, 256, 1), (128, 128, 1), (128, 64, 1), (64, 128, 1), (64, 64, 1)),
    *((64, 32, 1), (32, 64, 1), (32, 32, 1)),
    *((128, 128, 2), (128, 128, 4), (128, 128, 8), (128, 128, 16)),
    *((32, 64, 4), (64, 32, 4), (32, 32, 4), (32, 64, 16), (64, 32, 16), (32, 32, 16)),
)

# Points per element fetched at which a tile is computed half as fast as an endless one. Taken, not
# measured: 64 x 64 then reaches 0.85 of 256 x 128; the guide gives the order of tiles, no rates.
TILE_REUSE = 10.0

# Bytes of a row that could be multiplied while a tile is begun and ended: 128 16-bit elements, 1.4
# us of an H100. Taken, not measured: 64 KiB of results at a multiprocessor's share of its memory
# bandwidth take 2.9 us, about half of which the next tile hides.
TILE_ENDS_BYTES = 256

ITEM_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "mxfp8": 1}
ITEM_BYTES |= {"mxfp4": 1, "nvfp4": 1}  # a half; dims are as if they were whole bytes
ALIGNED_BYTES = 16  # dims are multiples of this in bytes (the guide, section 4.2)
PARTIAL_BYTES = 4  # parts of a cut contraction are summed in fp32

# Share of its bandwidth at which a depthwise convolution moves its tensors: the window is read from
# caches again and again. Fitted on published runs of MobileFaceNet on V100 (DLPerf, 2021); that
# such convolutions are slow: Tan and Le, "EfficientNetV2", arXiv 2104.00298 (2021), section 3.2.
DEPTHWISE_RATE = 0.35

# Precisions that no matrix units multiply in.
PLAIN = ("fp32", "fp64")

# A 3 x 3 convolution of stride 1 is so much faster by Winograd's algorithm than as a product: 2.25
# times fewer multiplications (Lavin and Gray, "Fast algorithms for convolutional neural networks",
# arXiv 1509.09308, 2015, section 4.1), less the transforms. Fitted on published runs of ResNet-100
# for faces in fp32 on V100 (DLPerf, 2021), which are faster than the device's peak. cuDNN 7 has it
# for fp32 only where there are tensor cores; few channels do not pay for the transforms.
WINOGRAD = 2.0
WINOGRAD_CHANNELS = 16

# Places of what is convolved, the weights and the result among the operands.
_CONVOLUTIONS = {"conv": (0, 1, 2), "conv_grad_input": (2, 1, 0), "conv_grad_weight": (0, 2, 1)}


# Batched 16-bit products whose rows do not begin at whole 16 bytes are so much slower: heads of 108
# and 150 features cost that without flash attention. Fitted on published runs of BLOOM's
# preparation (bigscience, 2022), of which four pairs of like configurations differ by 1.30 to 1.44
# times.
UNALIGNED = 13.8


class ProductSizes(NamedTuple):
    """`batch` products of [m, k] and [k, n]."""

    batch: Floats
    m: Floats
    n: Floats
    k: Floats


def sizes_of(firings: OpFirings) -> ProductSizes:
    """Sizes of the product that an op is; a convolution is that of its windows and its weights."""
    return ProductSizes(*(firings.size(labels) for labels in _roles(firings.kind, firings.labels)))


@lru_cache(maxsize=1024)
def _roles(kind: str, labels: str) -> tuple[Labels, Labels, Labels, Labels]:
    """Labels of the batch, of the rows, of the columns, and those contracted."""
    expression = parse(labels)
    sets = [{label for dim in operand for label in dim} for operand in expression.operands]

    def those(chosen: set[str]) -> Labels:
        return tuple(label for label in expression.labels if label in chosen)

    if kind not in _CONVOLUTIONS:
        first, second = op_kind(kind).products[0]
        left, right, out = sets[first], sets[second], sets[len(expression.inputs)]
        batch = left & right & out
        return (
            those(batch),
            those(left & out - batch),
            those(right & out - batch),
            those((left | right) - out),
        )
    image, weight, result = (sets[operand] for operand in _CONVOLUTIONS[kind])
    groups = image & weight & result
    pixels, outward = result - weight, (weight & result) - groups
    inward, window = (weight & image) - groups, weight - image - result
    if kind == "conv":
        return those(groups), those(pixels), those(outward), those(inward | window)
    if kind == "conv_grad_input":
        return those(groups), those(pixels), those(inward), those(outward | window)
    return those(groups), those(outward), those(inward | window), those(pixels)


def is_depthwise(firings: OpFirings) -> bool:
    """True if every channel of a convolution is convolved by itself."""
    if firings.kind not in _CONVOLUTIONS:
        return False
    expression = parse(firings.labels)
    image, weight, _ = (
        {label for dim in expression.operands[operand] for label in dim}
        for operand in _CONVOLUTIONS[firings.kind]
    )
    channels, _ = _filters(firings.kind, firings.labels)
    return len(image & weight) > 1 and bool(np.all(firings.size(channels) == 1))


@lru_cache(maxsize=1024)
def _filters(kind: str, labels: str) -> tuple[Labels, tuple[Labels, ...]]:
    """Labels of a convolution's weight: of the channels that it reads, of each side of windows."""
    operands = parse(labels).operands
    image, weight, result = (operands[operand] for operand in _CONVOLUTIONS[kind])
    read, written = ({label for dim in operand for label in dim} for operand in (image, result))
    inner = [dim for dim in weight if not written.intersection(dim)]
    (channels,) = (dim for dim in inner if read.intersection(dim))
    return channels, tuple(dim for dim in inner if dim != channels)


def winograd_speed(firings: OpFirings) -> float:
    """Speed of a convolution over the product that it is: 1 where Winograd has no say."""
    if firings.kind not in _CONVOLUTIONS or firings.precision != "fp32":
        return 1.0
    channels, window = _filters(firings.kind, firings.labels)
    strides = [firings.attributes.get(f"stride_{side}", 1) for side in "yx"]
    square = all(np.all(firings.size(side) == 3) for side in window)
    if not square or strides != [1, 1] or np.any(firings.size(channels) < WINOGRAD_CHANNELS):
        return 1.0
    return WINOGRAD


def product_seconds(sizes: ProductSizes, precision: str, device: Device) -> Floats:
    """Seconds of the arithmetic of products on one device, without launch and memory.

    Raises
    ------
    ClusterError
        The device has no rate for the precision.
    """
    item = ITEM_BYTES.get(precision, 4)
    efficiency = device.matmul_efficiency
    if precision in NARROW and device.narrow_efficiency is not None:
        efficiency = device.narrow_efficiency
    if precision in PLAIN and device.plain_efficiency is not None:
        efficiency = device.plain_efficiency
    flops_per_s = peak_flops_per_s(device, precision) * efficiency
    batch = sizes.batch
    m, n, k = (_padded(size, item) for size in sizes[1:])
    if item == 2:
        odd = (batch > 1) & ((k != sizes.k) | (n != sizes.n) | (m != sizes.m))
        batch = batch * np.where(odd, UNALIGNED, 1.0)
    if not device.multiprocessors:
        plain: Floats = 2 * batch * m * n * k / flops_per_s
        return plain
    count = device.multiprocessors
    rows = {size: np.ceil(m / size) for size in (256, 128, 64, 32)}
    columns = {size: np.ceil(n / size) for size in (256, 128, 64, 32)}
    written = batch * m * n * (2 * PARTIAL_BYTES / device.memory_bandwidth_bytes_per_s)
    fastest: Floats | None = None
    for tm, tn, parts in TILES:
        waves = np.ceil(batch * rows[tm] * columns[tn] * (parts / count))
        step_s = 2 * tm * tn * count / (flops_per_s * _tile_share(tm, tn))
        seconds = waves * (np.ceil(k / parts) + TILE_ENDS_BYTES / item) * step_s
        if parts > 1:
            seconds = seconds + written * parts
        fastest = seconds if fastest is None else np.minimum(fastest, seconds)
    assert fastest is not None, "there are tiles"
    return fastest


def _padded(size: Floats, item: int) -> Floats:
    """Size of a dim, filled up to whole 16 bytes where tensor cores do the work."""
    if item > 2:
        return size
    step = ALIGNED_BYTES // item
    padded: Floats = np.ceil(size / step) * step
    return padded


@lru_cache(maxsize=16)
def _tile_share(rows: int, columns: int) -> float:
    """Speed of a tile, as a share of the largest's: by the points per element fetched."""

    def speed(m: int, n: int) -> float:
        reuse = m * n / (m + n)
        return reuse / (reuse + TILE_REUSE)

    return speed(rows, columns) / speed(256, 128)
