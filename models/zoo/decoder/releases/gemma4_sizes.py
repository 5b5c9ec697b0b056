"""Gemma 4 sizes: the parts for text of Google's release of April 2026.

Sizes are those of transformers' script that converts Gemma 4's weights (commit 0f3f0632, read
2026-11), which writes the released `config.json` files.
"""

from math import sqrt
from typing import Any

from millrace.models.spec import Config
from millrace.models.zoo.decoder.sizes import BYTES, DEMO_EXPERTS, PLACES, llama

VOCAB = 262144


def _gemma4(
    layers: int, hidden: int, heads: int, kv_heads: int, ffn_hidden: int, **other: Any
) -> Config:
    """Sizes with a full layer of heads twice as wide behind every five with a window."""
    row = llama(layers, hidden, heads, kv_heads, ffn_hidden, head_dim=256)
    row |= {
        "full_head_dim": 512,
        "vocab": VOCAB,
        "positions": 131072,
        "epsilon": 1e-6,
        "tied": True,
        "activation": "gelu",
        "post_norms": True,
        "embedding_scale": sqrt(hidden),
        "attention_scale": 1.0,
        "qk_norm": "rms",
        "value_norm": True,
        "logit_cap": 30.0,
        "window": 512,
        "full_layers": tuple(range(5, layers, 6)),
        # A quarter of a wide head turns, by the first angles of a whole one.
        "rotary_dims": 128,
        "rope_base": 1000000.0**0.25,
        "window_rope_base": 10000.0,
        "window_rotary_dims": 256,
    }
    return row | other


_LARGE: Config = {"keys_as_values": True, "window": 1024, "positions": 262144}
_INPUTS: Config = {"layer_inputs": {"width": 256, "vocab": VOCAB}}
GEMMA4: dict[str, Config] = {
    "gemma4-2b": _gemma4(
        35,
        1536,
        8,
        1,
        6144,
        full_layers=tuple(range(4, 35, 5)),
        reusing_layers=20,
        reusing_ffn_hidden=12288,
        **_INPUTS,
    ),
    "gemma4-4b": _gemma4(42, 2560, 8, 2, 10240, reusing_layers=18, **_INPUTS),
    "gemma4-26b": _gemma4(
        30,
        2816,
        16,
        8,
        2112,
        full_kv_heads=2,
        dense_beside=True,
        experts=128,
        experts_per_token=8,
        expert_hidden=704,
        **_LARGE,
        **PLACES,
    ),
    # Small enough to train on a few processors' cores, with what the four above have.
    "gemma4-demo": _gemma4(4, 128, 4, 2, 256, **_LARGE)
    | BYTES
    | DEMO_EXPERTS
    | {"head_dim": 32, "full_head_dim": 64, "window": 16, "full_layers": (1, 3)}
    | {"rotary_dims": 16, "window_rotary_dims": 32, "dense_beside": True, "reusing_layers": 2}
    | {"layer_inputs": {"width": 32, "vocab": 256}},
    "gemma4-31b": _gemma4(60, 5376, 32, 16, 21504, full_kv_heads=4, **_LARGE),
}
