"""Attention: how long a flash kernel takes, forward and backward.

The scores are never stored: a multiprocessor takes 128 queries of one head and passes over the keys
that they see. Products run at `Device.attention_efficiency`; exponentials, the ends of a tile and
what a mask cuts off cost besides.

Shapes: arrays [firings], see `millrace.planner.costs.op_batch`.

Notes
-----
Dao, "FlashAttention-2", arXiv 2307.08691 (2023), section 3: five products backward where there are
two forward. Constants are fitted on the forward and backward speeds on an H100 that figures 5 and 6
of Shah et al., "FlashAttention-3", arXiv 2407.08608 (2024), print: FlashAttention-2, -3 and cuDNN,
head sizes 64 to 256, 512 to 16k tokens, causal and not; one efficiency for each implementation.
"""

import numpy as np

from millrace.models.arrays import Floats
from millrace.models.labels import parse
from millrace.planner.cluster import Device, Software
from millrace.planner.costs.gemm import ITEM_BYTES, ProductSizes, product_seconds
from millrace.planner.costs.memory_bound import bandwidth_bytes_per_s
from millrace.planner.costs.op_batch import NARROW, OpFirings, peak_flops_per_s

KINDS = {
    "attention": False,
    "biased_attention": False,
    "attention_round": False,
    "attention_grad": True,
    "biased_attention_grad": True,
    "attention_grad_round": True,
}

SPARSE = {"sparse_attention": False, "sparse_attention_grad": True}
CHOICE = "choose_keys"

# Query heads of a tile of sparse attention, whose keys are one query's: rows of a product of
# Hopper's matrix units (CUDA, PTX ISA, `wgmma`).
HEADS = 64

# Bytes that add a value of a key's gradient, read and written in float32, to those of others.
ADDED_BYTES = 8

# Bytes of a score of the indexer, which one kernel writes and the next reads (float32, twice).
SCORE_BYTES = 8

QUERIES = 128  # of a tile: FlashAttention-2, section 3.3, and FlashAttention-3, table 6

# Head sizes that kernels are made for: flash-attention 2.x, `HEADDIM_SWITCH`, read 2026-11.
HEAD_SIZES = np.array([32, 64, 96, 128, 192, 256])

# Smaller heads run slower: a score takes its exponential whatever they have, the time of so many
# features of each product (`Device.softmax_features`): an H100's, 32, is fitted as above. Others'
# follow from it by their FLOPs over their exponentials: an H100 has 4,096 in 16 bits and 16 a clock
# and multiprocessor (Shah et al., section 3.1: 989 TFLOP/s of products, 3.9 of exponentials).
REFERENCE_HEAD_SIZE = 128  # of `Device.attention_efficiency`

# Share of the peak beyond which no framework's kernels gain, fitted as they are on other devices:
# FlashAttention-2 reaches 0.73 of an A100's (Dao, 2023), -3 0.75 of an H100's (Shah et al., 2024).
EFFICIENCY_MAX = 0.75

# Keys that could be passed over while a tile is begun and ended; backward, sums of dq leave it too.
# Fitted as above.
TILE_ENDS_KEYS = 120.0
TILE_ENDS_KEYS_BACKWARD = 340.0

# Keys of the tiles that a causal mask cuts, which count in full, and what the longest tiles are
# waited for. Fitted as above.
DIAGONAL_KEYS = 128.0

# Speed of attention whose 8-bit factors are scaled by blocks of 32, over such as are scaled whole:
# medians over 4k to 32k tokens of DeepSeek-V3's heads on GB300 and GB200, forward and backward
# (NVIDIA/cudnn-frontend, benchmark/sdpa_benchmark_training/results/dsv3, cuDNN 9.22, 2026-04).
BLOCK_SCALED, BLOCK_SCALED_BACKWARD = 0.90, 0.77

# Features of queries and keys, and of values, that smaller heads cost the time of backward in 8
# bits: heads of 128 take as long as these there, not in 16 bits (the same, results/llama3.1).
NARROW_SCORED, NARROW_MIXED = 192, 128

# Speed of long sequences backward over forward: 561 and 474 TFLOP/s against 648 and 497, head
# sizes 128 and 64 (FlashAttention-3, figures 5 and 6).
BACKWARD_SPEED = 0.91


def attention_seconds(firings: OpFirings, device: Device, software: Software) -> Floats:
    """Seconds of an attention's arithmetic on one device, without launch and memory.

    A cap of the scores takes the unit of exponentials once more for every score (its tanh).
    Under a causal mask half of the scores count, and in full those of the tiles on the diagonal;
    within a window what lies in it. Where devices share a sequence, each is taken to see as much
    of it as any other, as if early and late queries were mixed (Brandon et al., "Striped
    Attention", 2023; Megatron-LM's and Llama 3's halves from both ends).

    Raises
    ------
    ClusterError
        The device has no rate for the precision.
    """
    backward = KINDS[firings.kind]
    queries, keys, values = parse(firings.labels).operands[:3]
    tokens = firings.size(queries[1])
    heads = firings.size(
        [label for position, dim in enumerate(queries[:-1]) for label in dim if position != 1]
    )
    scored, mixed = _filled(firings.size(queries[-1])), _filled(firings.size(values[-1]))
    seen = _keys_seen(firings, firings.size(keys[1]), backward=backward)
    features, flops_per_s = _rates(firings, device, software, scored, mixed, backward=backward)
    if not device.multiprocessors:
        plain: Floats = 2 * heads * tokens * seen * features / flops_per_s
        return plain
    waves = np.ceil(heads * np.ceil(tokens / QUERIES) / device.multiprocessors)
    passes = seen + (TILE_ENDS_KEYS_BACKWARD if backward else TILE_ENDS_KEYS)
    rows = waves * device.multiprocessors * QUERIES
    seconds: Floats = 2 * rows * passes * features / flops_per_s
    return seconds


def sparse_seconds(firings: OpFirings, device: Device, software: Software) -> Floats:
    """Seconds of attention to chosen keys: its products, or what a query fetches of its keys.

    A key is fetched once for all heads of a query here, and a value is part of its key, as with
    latent attention. Backward the gradients of a query's keys are added to those of other queries.

    Raises
    ------
    ClusterError
        The device has no rate for the precision.
    """
    backward = SPARSE[firings.kind]
    queries, _, values, chosen = parse(firings.labels).operands[:4]
    tokens = firings.size([label for dim in queries[:2] for label in dim])
    heads = firings.size([label for dim in queries[2:-1] for label in dim])
    count, head_dim = firings.size(chosen[-1]), firings.size(queries[-1])
    scored, mixed = _filled(head_dim), _filled(firings.size(values[-1]))
    features, flops_per_s = _rates(firings, device, software, scored, mixed, backward=backward)
    rows = tokens * np.ceil(heads / HEADS) * HEADS
    fetched = tokens * count * head_dim * ITEM_BYTES.get(firings.precision, ITEM_BYTES["fp32"])
    if backward:
        fetched = fetched + tokens * count * head_dim * ADDED_BYTES
    moving_s = fetched / bandwidth_bytes_per_s(device)
    seconds: Floats = np.maximum(2 * rows * count * features / flops_per_s, moving_s)
    return seconds


def choice_seconds(firings: OpFirings, device: Device) -> Floats:
    """Seconds of a choice of keys: products of the indexer, then its scores written and read.

    A query meets the keys up to its own, half of all on average.

    Raises
    ------
    ClusterError
        The device has no rate for the precision.
    """
    queries, _, keys = parse(firings.labels).inputs
    samples, tokens, heads, features = (firings.size(dim) for dim in queries)
    seen = (firings.size(keys[1]) + 1) / 2
    sizes = ProductSizes(batch=samples, m=tokens * heads, n=seen, k=features)
    moved: Floats = samples * tokens * seen * SCORE_BYTES
    product_s = product_seconds(sizes, firings.precision, device)
    return product_s + moved / bandwidth_bytes_per_s(device)


def _rates(
    firings: OpFirings,
    device: Device,
    software: Software,
    scored: Floats,
    mixed: Floats,
    *,
    backward: bool,
) -> tuple[Floats, float]:
    """Features that a pair of a query and a key costs the time of, and the rate of their FLOPs."""
    share = device.attention_efficiency
    efficiency = min(share * software.attention, max(share, EFFICIENCY_MAX))
    peak = peak_flops_per_s(device, firings.precision) * efficiency
    peak *= 1 + device.softmax_features / REFERENCE_HEAD_SIZE
    # Exponentials take as long in any precision: the time of more features where these are quick.
    softmax = device.softmax_features
    if firings.precision in NARROW:
        softmax *= peak_flops_per_s(device, firings.precision) / peak_flops_per_s(device, "bf16")
        if backward:
            scored, mixed = np.maximum(scored, NARROW_SCORED), np.maximum(mixed, NARROW_MIXED)
    if firings.precision == "mxfp8":
        peak *= BLOCK_SCALED_BACKWARD if backward else BLOCK_SCALED
    capping = 2 * softmax if firings.attributes.get("cap") else 0
    features = scored + mixed + 2 * softmax + capping
    if backward:
        features = (3 * scored + 2 * mixed + 5 * softmax + capping) / BACKWARD_SPEED
    return features, peak


def _keys_seen(firings: OpFirings, keys: Floats, *, backward: bool) -> Floats:
    """Keys that a query of a tile is multiplied with, on average.

    Backward in 8 bits no kernel leaves out what lies before a window (the measurements of
    `BLOCK_SCALED`, results/gpt_oss: with windows of 128 as long as without).
    """
    if not firings.attributes.get("causal"):
        return keys
    unwindowed = backward and firings.precision in NARROW
    window = np.inf if unwindowed else float(firings.attributes.get("window", 0)) or np.inf
    reach = np.minimum(window, keys)
    # Each of the first `reach` queries sees one key more than the one before it.
    seen: Floats = reach - reach * reach / (2 * np.maximum(keys, 1)) + DIAGONAL_KEYS
    return np.minimum(seen, keys)


def _filled(size: Floats) -> Floats:
    """Head size of the kernel that serves heads of `size` features."""
    place = np.searchsorted(HEAD_SIZES, size)
    beyond = np.ceil(size / 64) * 64
    last = len(HEAD_SIZES) - 1
    kernel_sizes: Floats = np.where(place > last, beyond, HEAD_SIZES[np.minimum(place, last)])
    return kernel_sizes
