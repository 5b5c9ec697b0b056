"""Attention: how long a flash kernel takes, forward and backward.

The scores are never stored: a multiprocessor takes 128 queries of one head and passes over the keys
that they see.

Notes
-----
Dao, "FlashAttention-2", arXiv 2307.08691 (2023): forward at 50-73 % of an A100's peak, backward at
up to 63 %, five products where the forward has two (sections 3 and 4). Shah et al.,
"FlashAttention-3", arXiv 2407.08608 (2024): forward at up to 75 % of an H100's.
"""

import numpy as np

from models.labels import parse
from planner.cluster import Device
from planner.costs.firings import Firings, peak_flops_per_s
from planner.costs.measured import Floats

KINDS = {
    "attention": False,
    "biased_attention": False,
    "attention_round": False,
    "attention_grad": True,
    "biased_attention_grad": True,
    "attention_grad_round": True,
}

QUERIES = 128  # of a tile: FlashAttention-2, section 3.3, and FlashAttention-3, table 6

# Head sizes that kernels are made for: flash-attention 2.x, `HEADDIM_SWITCH`, read 2026-11.
HEAD_SIZES = np.array([32, 64, 96, 128, 192, 256])

# Features per score that take as long as the exponential of the score: speed falls with smaller
# heads. Fitted on FlashAttention-3, figure 5: 497, 648 and 756 TFLOP/s at 64, 128 and 256.
SOFTMAX_FEATURES = 56.0
REFERENCE_HEAD_SIZE = 128  # of `Device.attention_efficiency`

# Keys that could be passed over while a tile is begun and ended. Fitted on FlashAttention-3,
# figure 5: at head size 128, 1k tokens run at 0.83 of the speed of 16k.
TILE_ENDS_KEYS = 96.0

# Speed of the backward pass over that of the forward: FlashAttention-2, figures 5 and 6 (170 to 196
# against 203 to 227 TFLOP/s), FlashAttention-3, figures 5 and 6 (561 against 648).
BACKWARD_SPEED = 0.85


def attention_seconds(firings: Firings, device: Device) -> Floats:
    """Arithmetic of an attention on one device, without launch and memory.

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
    heads = firings.size([x for at, dim in enumerate(queries[:-1]) for x in dim if at != 1])
    scored, mixed = _filled(firings.size(queries[-1])), _filled(firings.size(values[-1]))
    seen = _keys_seen(firings, firings.size(keys[1])) + TILE_ENDS_KEYS
    products = 3 * scored + 2 * mixed if backward else scored + mixed
    # Of the head size that a product has on average.
    mean = (scored + mixed) / 2
    share = (1 + SOFTMAX_FEATURES / REFERENCE_HEAD_SIZE) / (1 + SOFTMAX_FEATURES / mean)
    if backward:
        share = share * BACKWARD_SPEED
    peak = peak_flops_per_s(device, firings.precision)
    flops_per_s = peak * device.attention_efficiency * share
    if not device.multiprocessors:
        plain: Floats = 2 * heads * tokens * seen * products / flops_per_s
        return plain
    tiles = heads * np.ceil(tokens / QUERIES)
    waves = np.ceil(tiles / device.multiprocessors)
    found: Floats = waves * device.multiprocessors * 2 * QUERIES * seen * products / flops_per_s
    return found


def _keys_seen(firings: Firings, keys: Floats) -> Floats:
    """Keys that a query of a tile is multiplied with, on average."""
    if not firings.attributes.get("causal"):
        return keys
    window = float(firings.attributes.get("window", 0)) or np.inf
    reach = np.minimum(window, keys)
    # The first `reach` queries see one key more each; a tile sees what any of its queries does.
    found: Floats = reach - reach * reach / (2 * np.maximum(keys, 1)) + QUERIES / 2
    return np.minimum(found, keys)


def _filled(size: Floats) -> Floats:
    """The head size of the kernel that serves one."""
    place = np.searchsorted(HEAD_SIZES, size)
    beyond = np.ceil(size / 64) * 64
    last = len(HEAD_SIZES) - 1
    found: Floats = np.where(place > last, beyond, HEAD_SIZES[np.minimum(place, last)])
    return found
