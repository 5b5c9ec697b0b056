"""DeepSeek-V4 sizes: both models of the release of April 2026.

Their module for the token after next is left out, as transformers leaves it out.
Sizes are those of the `config.json` released with each model's weights (read 2026-11), whose first
three layers choose experts by a table of tokens that comes with the weights.
"""

from typing import Any

from millrace.models.spec import Config
from millrace.models.zoo.decoder.sizes import BYTES, DEMO_EXPERTS, PLACES, llama


def _deepseek4(hidden: int, heads: int, ratios: tuple[int, ...], **other: Any) -> Config:
    """Sizes with four streams, an eighth of every head turned, keys of 4 or of 128 tokens."""
    row = llama(len(ratios), hidden, heads, 1, 0, head_dim=512, **PLACES)
    row |= {
        "vocab": 129280,
        "positions": 1048576,
        "epsilon": 1e-6,
        "rotary_dims": 64,
        "rope_interleaved": True,
        "rope_base": 160000.0,
        "rope_scaling": "yarn",
        "rope_factor": 16.0,
        "rope_original": 65536,
        "window_rope_base": 10000.0,
        "window": 128,
        "full_layers": tuple(layer for layer, ratio in enumerate(ratios) if ratio),
        "compression": {"ratios": ratios, "out_groups": heads // 8, "out_rank": 1024},
        "connections": {"streams": 4},
        "sinks": True,
        "index_heads": 64,
        "index_dim": 128,
        "experts_per_token": 6,
        "router": "sqrt_softplus",
        "gate_cap": 10.0,
        "gate_slope": 1.0,
        "gate_shift": 0.0,
        "hash_layers": (0, 1, 2),
    }
    return row | other


# DeepSeek-AI, "DeepSeek-V4", arXiv 2606.19348 (2026).
DEEPSEEK4: dict[str, Config] = {
    "deepseek-v4-flash": _deepseek4(
        4096,
        64,
        (0, 0, *(4, 128) * 20, 4),
        q_lora=1024,
        index_topk=512,
        experts=256,
        expert_hidden=2048,
        shared_hidden=2048,
        weight_scale=1.5,
    ),
    "deepseek-v4-pro": _deepseek4(
        7168,
        128,
        (128, 128, *(4, 128) * 29, 4),
        q_lora=1536,
        index_topk=1024,
        experts=384,
        expert_hidden=3072,
        shared_hidden=3072,
        weight_scale=2.5,
    ),
    # Small enough to train on a few processors' cores.
    "deepseek-v4-demo": _deepseek4(128, 4, (0, 16, 4), q_lora=96, index_topk=8)
    | BYTES
    | DEMO_EXPERTS
    | {"head_dim": 48, "rotary_dims": 16, "rope_scaling": "", "window": 16, "shared_hidden": 256}
    | {"compression": {"ratios": (0, 16, 4), "out_groups": 2, "out_rank": 32}, "hash_layers": ()}
    | {"index_heads": 4, "index_dim": 32, "connections": {"streams": 2}, "balance_loss": 0.01},
}
