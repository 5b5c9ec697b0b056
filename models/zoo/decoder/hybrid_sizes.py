"""Hybrid sizes: decoders with layers that go through the sequence by a state, as rows of data.

As in `sizes.py`, from the `config.json` released with each model's weights. Mixtures here drop no
token where their paper says so, else they have the places of `sizes.py`.
"""

from typing import Any

from millrace.models.spec import Config, Setting
from millrace.models.zoo.decoder.sizes import BYTES, DEMO_EXPERTS, PLACES, llama


def _nemotron3(pattern: str, hidden: int, mamba_heads: int, **other: Any) -> Config:
    """Sizes of bare layers: Mamba-2, experts without gates, attention without positions."""
    row = llama(len(pattern), hidden, 32, 2, 0, head_dim=128, **PLACES)
    state_space: dict[str, Setting] = {
        "heads": mamba_heads,
        "head_dim": 64,
        "groups": 8,
        "state": 128,
        "norm_groups": 8,
        "step_min": 0.001,
    }
    row |= {
        "rotary_dims": 0,
        "vocab": 131072,
        "positions": 262144,
        "pattern": pattern,
        "bare_layers": True,
        "activation": "relu2",
        "gated": False,
        "router": "sigmoid",
        "state_space": state_space,
    }
    return row | other


# NVIDIA, "Nemotron 3", arXiv 2512.20856 (2025), without the heads for further tokens; of Ultra
# (June 2026), Megatron-LM's examples/post_training/modelopt/conf/nvidia (d98e8a64, read 2026-11).
NEMOTRON: dict[str, Config] = {
    "nemotron-3-nano": _nemotron3(
        "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
        2688,
        64,
        experts=128,
        experts_per_token=6,
        expert_hidden=1856,
        shared_hidden=3712,
        weight_scale=2.5,
    ),
    "nemotron-3-super": _nemotron3(
        "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME",
        4096,
        128,
        experts=512,
        experts_per_token=22,
        expert_hidden=2688,
        expert_latent=1024,
        shared_hidden=5376,
        weight_scale=5.0,
    ),
    "nemotron-3-ultra-550b": _nemotron3(
        "MEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEM*EMEMEM*"
        "EMEMEMEM*EMEMEMEME",
        8192,
        256,
        heads=64,
        experts=512,
        experts_per_token=22,
        expert_hidden=5120,
        expert_latent=2048,
        shared_hidden=10240,
        weight_scale=5.0,
    ),
}


def _qwen(layers: int, kv_heads: int, vocab: int, **other: Any) -> Config:
    """Sizes of three gated delta nets to one attention with a gate."""
    row = llama(layers, 2048, 16, kv_heads, 5632, head_dim=256, **PLACES)
    row |= {
        "vocab": vocab,
        "positions": 262144,
        "epsilon": 1e-6,
        "rope_base": 10000000.0,
        "rotary_dims": 64,
        "qk_norm": "rms",
        "attention_gate": "sigmoid",
        "pattern": "GGG*" * (layers // 4),
        "delta_net": {"key_heads": 16, "value_heads": 32, "key_dim": 128, "value_dim": 128},
        "expert_hidden": 512,
        "shared_hidden": 512,
        "shared_gate": True,
    }
    return row | other


# Qwen team, "Qwen3-Next" (September 2025) and "Qwen3.5" (February 2026); of both, transformers'
# configuration classes have these sizes by default.
QWEN_HYBRIDS: dict[str, Config] = {
    "qwen3-next-80b-a3b": _qwen(48, 2, 151936, experts=512, experts_per_token=10),
    "qwen3.5-35b-a3b": _qwen(40, 2, 248320, experts=256, experts_per_token=8),
}

_KIMI_DELTA: dict[str, Setting] = {
    "key_heads": 32,
    "value_heads": 32,
    "key_dim": 128,
    "value_dim": 128,
    "gate_rank": 128,
}
# Kimi Team, "Kimi Linear", arXiv 2510.26692 (2025): latent attention without positions.
KIMI_LINEAR: dict[str, Config] = {
    "kimi-linear-48b-a3b": llama(27, 2304, 32, 32, 9216, head_dim=192, **PLACES)
    | {
        "vocab": 163840,
        "positions": 1048576,
        "rotary_dims": 64,
        "unturned_layers": tuple(range(27)),
        "value_dim": 128,
        "kv_lora": 512,
        "pattern": "KKK*" * 6 + "KK*",
        "delta_net": _KIMI_DELTA,
        "experts": 256,
        "experts_per_token": 8,
        "expert_hidden": 1024,
        "shared_hidden": 1024,
        "dense_layers": (0,),
        "router": "sigmoid",
        "weight_scale": 2.446,
    },
}

_DEMO_STATE: dict[str, Setting] = {"heads": 8, "head_dim": 32, "groups": 4, "state": 32}
_DEMO_DELTA: dict[str, Setting] = {
    "key_heads": 4,
    "value_heads": 8,
    "key_dim": 32,
    "value_dim": 32,
}
# Small enough to train on a few processors' cores, on bytes.
HYBRID_DEMO: dict[str, Config] = {
    "nemotron-demo": llama(8, 128, 4, 2, 512, **BYTES, **DEMO_EXPERTS)
    | {
        "rotary_dims": 0,
        "pattern": "MEM*MEM-",
        "bare_layers": True,
        "activation": "relu2",
        "gated": False,
        "router": "sigmoid",
        "state_space": _DEMO_STATE | {"norm_groups": 4},
    },
    "qwen3-next-demo": llama(4, 128, 4, 2, 0, **BYTES, **DEMO_EXPERTS)
    | {
        "rotary_dims": 8,
        "qk_norm": "rms",
        "attention_gate": "sigmoid",
        "pattern": "GGG*",
        "delta_net": _DEMO_DELTA,
        "shared_hidden": 256,
        "shared_gate": True,
    },
    "kimi-linear-demo": llama(4, 128, 4, 4, 512, **BYTES)
    | {
        "head_dim": 48,
        "rotary_dims": 16,
        "unturned_layers": (0, 1, 2, 3),
        "kv_lora": 64,
        "value_dim": 32,
        "pattern": "KKK*",
        "delta_net": _DEMO_DELTA | {"key_heads": 8, "gate_rank": 32},
    },
}

HYBRIDS: dict[str, Config] = {**HYBRID_DEMO, **NEMOTRON, **QWEN_HYBRIDS, **KIMI_LINEAR}
