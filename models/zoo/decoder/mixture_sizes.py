"""Mixture sizes: the large mixtures of experts as rows of data, from the sources of `sizes.py`."""

from math import log, sqrt
from typing import Any

from millrace.models.spec import Config
from millrace.models.zoo.decoder.sizes import PLACES, llama


def _latent(
    layers: int, hidden: int, heads: int, ffn_hidden: int, kv_lora: int, **other: Any
) -> Config:
    """Sizes with DeepSeek's attention and experts: 64 turned, 128 other features of a head."""
    row: Config = {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": heads,
        "head_dim": 192,
        "value_dim": 128,
        "kv_lora": kv_lora,
        "rotary_dims": 64,
        "rope_interleaved": True,
        "rope_scaling": "yarn",
        "rope_factor": 40.0,
        "rope_original": 4096,
        "positions": 163840,
        "ffn_hidden": ffn_hidden,
        "epsilon": 1e-6,
        **PLACES,
    }
    return row | other


# DeepSeek-AI, "DeepSeek-V3", arXiv 2412.19437 (2024), without its second head for the token after
# next; "DeepSeek-V3.2", arXiv 2512.02556 (2025): the same with an indexer, whose sizes are those of
# transformers' configuration class (5.24); "DeepSeek-V2", arXiv 2405.04434 (2024), the small
# release. The scale of attention is YaRN's (arXiv 2309.00071, equation 15):
# (0.1 m ln 40 + 1)^2 / sqrt(192), m 1 and 0.707.
_DEEPSEEK_V3 = _latent(
    61,
    7168,
    128,
    18432,
    512,
    vocab=129280,
    q_lora=1536,
    attention_scale=(0.1 * 1.0 * log(40) + 1) ** 2 / sqrt(192),
    experts=256,
    experts_per_token=8,
    expert_hidden=2048,
    shared_hidden=2048,
    dense_layers=(0, 1, 2),
    router="sigmoid",
    router_groups=8,
    kept_groups=4,
    weight_scale=2.5,
)
DEEPSEEK: dict[str, Config] = {
    "deepseek-v3": _DEEPSEEK_V3,
    "deepseek-v3.2": _DEEPSEEK_V3 | {"index_topk": 2048, "index_heads": 64, "index_dim": 128},
    "deepseek-v2-lite": _latent(
        27,
        2048,
        16,
        10944,
        512,
        vocab=102400,
        attention_scale=(0.1 * 0.707 * log(40) + 1) ** 2 / sqrt(192),
        experts=64,
        experts_per_token=6,
        expert_hidden=1408,
        shared_hidden=2816,
        dense_layers=(0,),
        normalize_weights=False,
    ),
}

# Moonshot AI: "Kimi K2", arXiv 2507.20534 (2025), release Instruct of July 2025: DeepSeek-V3's
# parts with more experts, fewer heads and no groups of experts, positions stretched 32 times. "Kimi
# K2.5", arXiv 2602.02276 (2026), of which the part for text, stretched 64 times (epsilon and factor
# as in slime's scripts/models/kimi-k2-thinking.sh, read 2026-11). Moonlight, arXiv 2502.16982
# (2025): DeepSeek-V2-Lite's shape, not stretched (slime's scripts/models/moonlight.sh, read
# 2026-11).
_KIMI_K2 = _latent(
    61,
    7168,
    64,
    18432,
    512,
    vocab=163840,
    positions=131072,
    q_lora=1536,
    rope_base=50000.0,
    rope_factor=32.0,
    rope_fast=1.0,
    attention_scale=(0.1 * 1.0 * log(32) + 1) ** 2 / sqrt(192),
    experts=384,
    experts_per_token=8,
    expert_hidden=2048,
    shared_hidden=2048,
    dense_layers=(0,),
    router="sigmoid",
    weight_scale=2.827,
)
_UNSTRETCHED: Config = {"rope_scaling": "", "rope_factor": 1.0, "rope_original": 0}
KIMI: dict[str, Config] = {
    "kimi-k2": _KIMI_K2,
    "kimi-k2.5": _KIMI_K2
    | {
        "positions": 262144,
        "epsilon": 1e-5,
        "rope_factor": 64.0,
        "rope_fast": 32.0,
        "attention_scale": (0.1 * 1.0 * log(64) + 1) ** 2 / sqrt(192),
    },
    "moonlight-16b-a3b": _latent(
        27,
        2048,
        16,
        11264,
        512,
        vocab=163840,
        positions=8192,
        epsilon=1e-5,
        rope_base=50000.0,
        experts=64,
        experts_per_token=6,
        expert_hidden=1408,
        shared_hidden=2816,
        dense_layers=(0,),
        router="sigmoid",
        weight_scale=2.446,
        **_UNSTRETCHED,
    ),
}

# GLM-4.5 team, "GLM-4.5", arXiv 2508.06471 (2025), table 1, without the head for the token after
# next: half of a head's features turn, biases on queries, keys and values.
_GLM: Config = PLACES | {
    "vocab": 151552,
    "positions": 131072,
    "epsilon": 1e-5,
    "rope_base": 1000000.0,
    "head_dim": 128,
    "rotary_dims": 64,
    "qkv_bias": True,
    "experts_per_token": 8,
    "router": "sigmoid",
}
GLM: dict[str, Config] = {
    "glm-4.5": llama(92, 5120, 96, 8, 12288, qk_norm="rms", weight_scale=2.5, **_GLM)
    | {"experts": 160, "expert_hidden": 1536, "shared_hidden": 1536, "dense_layers": (0, 1, 2)},
    "glm-4.5-air": llama(46, 4096, 96, 8, 10944, **_GLM)
    | {"experts": 128, "expert_hidden": 1408, "shared_hidden": 1408, "dense_layers": (0,)},
    # "GLM-5", arXiv 2602.15763 (2026), without the same head, as transformers' class has it by
    # default (5.24) but for the base of its angles (slime's scripts/models/glm5-744B-A40B.sh, read
    # 2026-11). Its indexer turns neighbours.
    "glm-5": _latent(
        78,
        6144,
        64,
        12288,
        512,
        vocab=154880,
        positions=202752,
        epsilon=1e-5,
        rope_base=1000000.0,
        q_lora=2048,
        head_dim=256,
        value_dim=256,
        index_topk=2048,
        index_heads=32,
        index_dim=128,
        index_interleaved=True,
        experts=256,
        experts_per_token=8,
        expert_hidden=2048,
        shared_hidden=2048,
        dense_layers=(0, 1, 2),
        router="sigmoid",
        weight_scale=2.5,
        **_UNSTRETCHED,
    ),
}

# MiniMax-M2 (October 2025) has no paper: transformers' configuration class has these sizes by
# default (5.24); half of a head's features turn (slime's scripts/models/minimax-m2.sh, read
# 2026-11). Queries and keys are normed over all heads; no expert is shared.
MINIMAX: dict[str, Config] = {
    "minimax-m2": llama(62, 3072, 48, 8, 0, head_dim=128, **PLACES)
    | {
        "vocab": 200064,
        "positions": 196608,
        "epsilon": 1e-6,
        "rotary_dims": 64,
        "rope_base": 5000000.0,
        "qk_norm": "rms",
        "qk_norm_whole": True,
        "experts": 256,
        "experts_per_token": 8,
        "expert_hidden": 1536,
        "router": "sigmoid",
    },
}

# OpenAI, "gpt-oss-120b & gpt-oss-20b model card", arXiv 2508.10925 (2025): windows in every other
# layer, the first one included, biases everywhere, and sinks.
_GPT_OSS: Config = PLACES | {
    "vocab": 201088,
    "positions": 131072,
    "epsilon": 1e-5,
    "head_dim": 64,
    "rotary_dims": 64,
    "rope_base": 150000.0,
    "rope_scaling": "yarn",
    "rope_factor": 32.0,
    "rope_amplitude": 0.1 * log(32) + 1,
    "rope_original": 4096,
    "rope_truncate": False,
    "window": 128,
    "sinks": True,
    "gate_cap": 7.0,
    "qkv_bias": True,
    "out_bias": True,
    "expert_bias": True,
    "router_bias": True,
    "experts_per_token": 4,
    "expert_hidden": 2880,
}
GPT_OSS: dict[str, Config] = {
    "gpt-oss-20b": llama(24, 2880, 64, 8, 2880, experts=32, **_GPT_OSS)
    | {"full_layers": tuple(range(1, 24, 2))},
    "gpt-oss-120b": llama(36, 2880, 64, 8, 2880, experts=128, **_GPT_OSS)
    | {"full_layers": tuple(range(1, 36, 2))},
}

# Meta, "The Llama 4 herd" (April 2025), which has no paper: the releases Instruct, their part for
# text. Every fourth layer turns nothing and sees all keys, the others those of their chunk.
_LLAMA4: Config = PLACES | {
    "vocab": 202048,
    "epsilon": 1e-5,
    "head_dim": 128,
    "rope_base": 500000.0,
    "rope_interleaved": True,
    "unturned_layers": tuple(range(3, 48, 4)),
    "full_layers": tuple(range(3, 48, 4)),
    "chunk": 8192,
    "tempered_from": 8192,
    "experts_per_token": 1,
    "expert_hidden": 8192,
    "shared_hidden": 8192,
    "router": "sigmoid",
    "normalize_weights": False,
    "weigh_inputs": True,
}
LLAMA4: dict[str, Config] = {
    "llama4-scout": llama(48, 5120, 40, 8, 16384, experts=16, positions=10485760, **_LLAMA4)
    | {
        "qk_norm": "unscaled",
        "rope_scaling": "llama3",
        "rope_factor": 16.0,
        "rope_low": 1.0,
        "rope_high": 1.0,
        "rope_original": 8192,
    },
    "llama4-maverick": llama(48, 5120, 40, 8, 16384, experts=128, positions=1048576, **_LLAMA4)
    | {"dense_layers": tuple(range(0, 48, 2))},
}

MIXTURES: dict[str, Config] = {**DEEPSEEK, **KIMI, **GLM, **MINIMAX, **GPT_OSS, **LLAMA4}
