"""Sizes of the published decoders but for the large mixtures of experts, as rows of data.

Sizes are those of the `config.json` released with each model's weights; the paper stands beside it.
The longest sequence is the released one. Mixtures of experts train with 1.25 times an even share of
places per expert (the capacity of Lepikhin et al., arXiv 2006.16668, is twice, that of Fedus et
al., arXiv 2101.03961, 1 to 2), as none of their papers names one.
"""

from math import log, sqrt
from typing import Any

from millrace.models.spec import Config


def llama(
    layers: int, hidden: int, heads: int, kv_heads: int, ffn_hidden: int, **other: Any
) -> Config:
    """Sizes with RMS norm, SwiGLU and no biases; rotary over whole heads.

    Parameters
    ----------
    layers, hidden, heads, kv_heads, ffn_hidden
        As in DecoderConfig.
    other
        Further fields; `head_dim` is that of the hidden size over the heads where it is not named.
    """
    head_dim = other.get("head_dim", hidden // heads)
    row: Config = {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "ffn_hidden": ffn_hidden,
        "rotary_dims": head_dim,
    }
    return row | other


# A mixture's places per expert, in multiples of an even share (see above).
PLACES: Config = {"capacity_factor": 1.25}

# Touvron et al., "LLaMA", arXiv 2302.13971 (2023), and "Llama 2", arXiv 2307.09288 (2023). "The
# Llama 3 herd of models", arXiv 2407.21783 (2024); release 3.1, to which the 405B belongs, is
# stretched from 8,192 positions.
_LLAMA1: Config = {"vocab": 32000, "positions": 2048}
_LLAMA2: Config = {"vocab": 32000, "positions": 4096, "epsilon": 1e-5}
_LLAMA3: Config = {"vocab": 128256, "positions": 8192, "epsilon": 1e-5, "rope_base": 500000.0}
_LLAMA31: Config = _LLAMA3 | {
    "positions": 131072,
    "rope_scaling": "llama3",
    "rope_factor": 8.0,
    "rope_low": 1.0,
    "rope_high": 4.0,
    "rope_original": 8192,
}
LLAMA: dict[str, Config] = {
    "llama-7b": llama(32, 4096, 32, 32, 11008, epsilon=1e-6, **_LLAMA1),
    "llama-13b": llama(40, 5120, 40, 40, 13824, epsilon=1e-6, **_LLAMA1),
    "llama-33b": llama(60, 6656, 52, 52, 17920, epsilon=1e-6, **_LLAMA1),
    "llama-65b": llama(80, 8192, 64, 64, 22016, epsilon=1e-5, **_LLAMA1),
    "llama2-7b": llama(32, 4096, 32, 32, 11008, **_LLAMA2),
    "llama2-13b": llama(40, 5120, 40, 40, 13824, **_LLAMA2),
    "llama2-70b": llama(80, 8192, 64, 8, 28672, **_LLAMA2),
    "llama3-8b": llama(32, 4096, 32, 8, 14336, **_LLAMA3),
    "llama3-70b": llama(80, 8192, 64, 8, 28672, **_LLAMA3),
    "llama3.1-8b": llama(32, 4096, 32, 8, 14336, **_LLAMA31),
    "llama3.1-70b": llama(80, 8192, 64, 8, 28672, **_LLAMA31),
    "llama3-405b": llama(126, 16384, 128, 8, 53248, **_LLAMA31),
}

# Jiang et al., "Mistral 7B", arXiv 2310.06825 (2023), release 0.1 with its window; "Mixtral of
# experts", arXiv 2401.04088 (2024). Their balance loss is not published; it is off here.
_MISTRAL: Config = {"vocab": 32000, "epsilon": 1e-5}
_MIXTRAL: Config = _MISTRAL | {
    **PLACES,
    "rope_base": 1000000.0,
    "experts": 8,
    "experts_per_token": 2,
}
MISTRAL: dict[str, Config] = {
    "mistral-7b": llama(32, 4096, 32, 8, 14336, positions=32768, window=4096, **_MISTRAL),
    "mixtral-8x7b": llama(32, 4096, 32, 8, 0, positions=32768, expert_hidden=14336, **_MIXTRAL),
    "mixtral-8x22b": llama(56, 6144, 48, 8, 0, positions=65536, expert_hidden=16384, **_MIXTRAL),
}

# "Qwen2 technical report", arXiv 2407.10671 (2024); "Qwen3 technical report", arXiv 2505.09388
# (2025).
_QWEN2: Config = {
    "positions": 131072,
    "epsilon": 1e-6,
    "rope_base": 1000000.0,
    "qkv_bias": True,
}
_QWEN3: Config = {
    "vocab": 151936,
    "positions": 40960,
    "epsilon": 1e-6,
    "rope_base": 1000000.0,
    "head_dim": 128,
    "qk_norm": "rms",
}
_QWEN3_EXPERTS: Config = _QWEN3 | PLACES | {"experts": 128, "experts_per_token": 8}
QWEN: dict[str, Config] = {
    "qwen2-0.5b": llama(24, 896, 14, 2, 4864, vocab=151936, tied=True, **_QWEN2),
    "qwen2-1.5b": llama(28, 1536, 12, 2, 8960, vocab=151936, tied=True, **_QWEN2),
    "qwen2-7b": llama(28, 3584, 28, 4, 18944, vocab=152064, **_QWEN2),
    "qwen2-72b": llama(80, 8192, 64, 8, 29568, vocab=152064, **_QWEN2),
    "qwen3-0.6b": llama(28, 1024, 16, 8, 3072, tied=True, **_QWEN3),
    "qwen3-1.7b": llama(28, 2048, 16, 8, 6144, tied=True, **_QWEN3),
    "qwen3-4b": llama(36, 2560, 32, 8, 9728, tied=True, **_QWEN3),
    "qwen3-8b": llama(36, 4096, 32, 8, 12288, **_QWEN3),
    "qwen3-14b": llama(40, 5120, 40, 8, 17408, **_QWEN3),
    "qwen3-32b": llama(64, 5120, 64, 8, 25600, **_QWEN3),
    "qwen3-30b-a3b": llama(48, 2048, 32, 4, 6144, expert_hidden=768, **_QWEN3_EXPERTS),
    "qwen3-235b-a22b": llama(94, 4096, 64, 4, 12288, expert_hidden=1536, **_QWEN3_EXPERTS),
}

# Abdin et al., "Phi-3 technical report", arXiv 2404.14219 (2024), the 4,096-position release.
_PHI3: Config = {"vocab": 32064, "positions": 4096, "epsilon": 1e-5, "window": 2047}


def _gemma(
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    ffn_hidden: int,
    scalar: int,
    **other: Any,
) -> Config:
    """Sizes with four norms a layer; scores are divided by the root of `scalar`."""
    row = llama(
        layers, hidden, heads, kv_heads, ffn_hidden, head_dim=other.pop("head_dim", 256), **other
    )
    return row | {
        "epsilon": 1e-6,
        "tied": True,
        "activation": "gelu",
        "post_norms": True,
        "embedding_scale": sqrt(hidden),
        "attention_scale": 1 / sqrt(scalar),
    }


def _gemma2(layers: int, *sizes: int, **other: Any) -> Config:
    """Windows in every other layer, the first one included, and soft caps."""
    return _gemma(layers, *sizes, **other) | {
        "vocab": 256000,
        "positions": 8192,
        "window": 4096,
        "full_layers": tuple(range(1, layers, 2)),
        "logit_cap": 30.0,
        "score_cap": 50.0,
    }


def _gemma3(layers: int, *sizes: int, **other: Any) -> Config:
    """Windows in five of six layers, which turn by other angles, and normed queries and keys."""
    row: Config = {
        "vocab": 262208,
        "positions": 131072,
        "window": 1024,
        "full_layers": tuple(range(5, layers, 6)),
        "window_rope_base": 10000.0,
        "rope_base": 1000000.0,
        "rope_scaling": "linear",
        "rope_factor": 8.0,
        "qk_norm": "rms",
    }
    return row | _gemma(layers, *sizes, **other)


# Gemma team, "Gemma 2", arXiv 2408.00118 (2024), table 1, and "Gemma 3", arXiv 2503.19786 (2025),
# of which the part for text.
GEMMA: dict[str, Config] = {
    "gemma2-2b": _gemma2(26, 2304, 8, 4, 9216, 256),
    "gemma2-9b": _gemma2(42, 3584, 16, 8, 14336, 256),
    "gemma2-27b": _gemma2(46, 4608, 32, 16, 36864, 144, head_dim=128),
    "gemma3-1b": _gemma3(26, 1152, 4, 1, 6912, 256, vocab=262144, positions=32768, window=512)
    | {"rope_scaling": "", "rope_factor": 1.0},
    "gemma3-4b": _gemma3(34, 2560, 8, 4, 10240, 256),
    "gemma3-12b": _gemma3(48, 3840, 16, 8, 15360, 256),
    "gemma3-27b": _gemma3(62, 5376, 32, 16, 21504, 168, head_dim=128),
}


# Olmo team, "Olmo 3", arXiv 2512.13961 (2025): norms behind the parts, windows in three of four
# layers, whose angles are not stretched (huggingface.co's config.json and OLMo-core's olmo3_32B,
# read 2026-11). ByteDance Seed, Seed-OSS (August 2025), which has no paper (its model card and
# transformers' configuration class, 5.24).
OTHERS: dict[str, Config] = {
    "olmo3-32b": llama(64, 5120, 40, 8, 27648, vocab=100278, positions=65536, epsilon=1e-6)
    | {
        "pre_norms": False,
        "post_norms": True,
        "qk_norm": "rms",
        "qk_norm_whole": True,
        "window": 4096,
        "full_layers": tuple(range(3, 64, 4)),
        "rope_base": 500000.0,
        "window_rope_base": 500000.0,
        "rope_scaling": "yarn",
        "rope_factor": 8.0,
        "rope_amplitude": 0.1 * log(8) + 1,
        "rope_original": 8192,
    },
    "seed-oss-36b": llama(64, 5120, 80, 8, 27648, vocab=155136, positions=524288, epsilon=1e-6)
    | {"head_dim": 128, "rotary_dims": 128, "rope_base": 10000000.0, "qkv_bias": True},
}


def _neox(layers: int, hidden: int, heads: int, vocab: int, activation: str) -> Config:
    """Sizes with layer norms and parallel parts, a quarter of every head turned."""
    head_dim = hidden // heads
    return {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": heads,
        "head_dim": head_dim,
        "ffn_hidden": 4 * hidden,
        "vocab": vocab,
        "positions": 2048,
        "norm": "layer",
        "parallel": True,
        "qkv_bias": True,
        "out_bias": True,
        "ffn_bias": True,
        "rotary_dims": head_dim // 4,
        "activation": activation,
        "gated": False,
    }


# Black et al., "GPT-NeoX-20B", arXiv 2204.06745 (2022); Biderman et al., "Pythia", arXiv 2304.01373
# (2023).
NEOX: dict[str, Config] = {
    "gpt-neox-20b": _neox(44, 6144, 64, 50432, "gelu"),
    "pythia-70m": _neox(6, 512, 8, 50304, "gelu_erf"),
    "pythia-160m": _neox(12, 768, 12, 50304, "gelu_erf"),
    "pythia-410m": _neox(24, 1024, 16, 50304, "gelu_erf"),
    "pythia-1b": _neox(16, 2048, 8, 50304, "gelu_erf"),
    "pythia-1.4b": _neox(24, 2048, 16, 50304, "gelu_erf"),
    "pythia-2.8b": _neox(32, 2560, 32, 50304, "gelu_erf"),
    "pythia-6.9b": _neox(32, 4096, 32, 50432, "gelu_erf"),
    "pythia-12b": _neox(36, 5120, 40, 50688, "gelu_erf"),
}


def _phi(layers: int, hidden: int, rotary_dims: int) -> Config:
    """Sizes like GPT-NeoX's, with one norm for both parts and a head that has a bias."""
    row = _neox(layers, hidden, 32, 51200, "gelu")
    return row | {"shared_norm": True, "head_bias": True, "rotary_dims": rotary_dims}


# "Phi-1.5", arXiv 2309.05463 (2023); Phi-2 (Microsoft, December 2023) has no paper.
PHI: dict[str, Config] = {
    "phi-1.5": _phi(24, 2048, 32),
    "phi-2": _phi(32, 2560, 32),
    "phi-3-mini": llama(32, 3072, 32, 32, 8192, **_PHI3),
}


def _mpt(layers: int, hidden: int, heads: int, positions: int) -> Config:
    """Sizes with ALiBi, no bias anywhere (not even in norms) and a tied head."""
    return {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": heads,
        "head_dim": hidden // heads,
        "ffn_hidden": 4 * hidden,
        "vocab": 50432,
        "positions": positions,
        "norm": "scale",
        "tied": True,
        "alibi": 8.0,
        "activation": "gelu_erf",
        "gated": False,
    }


# MosaicML NLP team, "MPT-7B" (May 2023) and "MPT-30B" (June 2023).
MPT: dict[str, Config] = {
    "mpt-7b": _mpt(32, 4096, 32, 2048),
    "mpt-30b": _mpt(48, 7168, 64, 8192),
}

# Small enough to train on a few processors' cores, on bytes.
BYTES: Config = {"vocab": 256, "positions": 128}
DEMO_EXPERTS: Config = {"experts": 4, "experts_per_token": 2, "expert_hidden": 256}
_DEEPSEEK_DEMO = llama(4, 128, 4, 4, 512, **BYTES, **DEMO_EXPERTS) | {
    "head_dim": 48,
    "rotary_dims": 16,
    "rope_interleaved": True,
    "kv_lora": 64,
    "q_lora": 96,
    "value_dim": 32,
    "shared_hidden": 256,
    "dense_layers": (0,),
    "router": "sigmoid",
    "weight_scale": 2.5,
    "balance_loss": 0.01,
}
DEMO: dict[str, Config] = {
    "llama-demo": llama(4, 192, 8, 4, 512, **BYTES),
    "mixtral-demo": llama(4, 128, 4, 2, 0, **BYTES, **DEMO_EXPERTS),
    "deepseek-demo": _DEEPSEEK_DEMO,
    "deepseek-v3.2-demo": _DEEPSEEK_DEMO | {"index_topk": 16, "index_heads": 4, "index_dim": 32},
}

PLAIN: dict[str, Config] = {
    **DEMO,
    **LLAMA,
    **MISTRAL,
    **QWEN,
    **GEMMA,
    **OTHERS,
    **NEOX,
    **PHI,
    **MPT,
}
