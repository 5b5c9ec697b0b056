"""One model of every family, small enough to train in a test; what is split comes in fours."""

from millrace.models.spec import Config, ModelSpec

_DECODER: Config = {
    "layers": 2,
    "hidden": 32,
    "vocab": 256,
    "positions": 16,
    "heads": 4,
    "kv_heads": 4,
    "head_dim": 8,
    "ffn_hidden": 64,
}
_ROTARY: Config = {"rotary_dims": 8}
_EXPERTS: Config = {"experts": 4, "experts_per_token": 2, "expert_hidden": 32}

_DEEPSEEK: Config = {
    "head_dim": 12,
    "rotary_dims": 4,
    "rope_interleaved": True,
    "kv_lora": 16,
    "q_lora": 24,
    "value_dim": 8,
}

_CONFIGS: dict[str, tuple[str, int, Config]] = {
    "gpt": (
        "gpt",
        16,
        {"layers": 4, "hidden": 32, "heads": 4, "ffn_hidden": 64, "vocab": 256, "positions": 16},
    ),
    "llama": ("decoder", 16, _DECODER | _ROTARY | {"kv_heads": 2}),
    "mistral": ("decoder", 16, _DECODER | _ROTARY | {"kv_heads": 2, "window": 5}),
    "mpt": ("decoder", 16, _DECODER | {"alibi": 8.0, "gated": False, "activation": "gelu"}),
    "mixtral": ("decoder", 16, _DECODER | _ROTARY | _EXPERTS | {"kv_heads": 2}),
    "gpt-oss": (
        "decoder",
        16,
        _DECODER
        | _ROTARY
        | _EXPERTS
        | {"kv_heads": 2, "window": 5, "full_layers": (1,), "sinks": True, "gate_cap": 0.5}
        | {"score_cap": 0.7},
    ),
    "deepseek": (
        "decoder",
        16,
        _DECODER
        | _EXPERTS
        | _DEEPSEEK
        | {
            "layers": 3,
            "experts": 8,
            "shared_hidden": 32,
            "router": "sigmoid",
            "router_groups": 2,
            "dense_layers": (0,),
            "weight_scale": 2.5,
            "balance_loss": 0.01,
        },
    ),
    "nemotron-h": (
        "decoder",
        16,
        _DECODER
        | _EXPERTS
        | {"layers": 4, "kv_heads": 2, "pattern": "M*E-", "bare_layers": True, "gated": False}
        | {"state_space": {"heads": 8, "head_dim": 8, "groups": 4, "state": 8, "norm_groups": 4}},
    ),
    "qwen3-next": (
        "decoder",
        16,
        _DECODER
        | _ROTARY
        | _EXPERTS
        | {"kv_heads": 2, "pattern": "G*", "attention_gate": "sigmoid", "shared_hidden": 32}
        | {"shared_gate": True}
        | {"delta_net": {"key_heads": 4, "value_heads": 8, "key_dim": 8, "value_dim": 4}},
    ),
    "kimi-linear": (
        "decoder",
        16,
        _DECODER
        | {"head_dim": 12, "rotary_dims": 4, "kv_lora": 16, "value_dim": 8, "pattern": "K*"}
        | {"unturned_layers": (0, 1)}
        | {
            "delta_net": {"key_heads": 4, "value_heads": 4, "key_dim": 8, "value_dim": 8}
            | {"gate_rank": 8}
        },
    ),
    "deepseek-sparse": (
        "decoder",
        16,
        _DECODER
        | _DEEPSEEK
        | {"index_topk": 5, "index_heads": 4, "index_dim": 8}
        | {"index_reusing_layers": (1,)},
    ),
    "bert": (
        "bert",
        16,
        {"layers": 2, "hidden": 32, "heads": 4, "ffn_hidden": 64, "vocab": 256, "positions": 16}
        | {"masked": 4, "dropout": 0.1},
    ),
    "t5": (
        "t5",
        16,
        {"layers": 2, "hidden": 32, "heads": 4, "head_dim": 8, "ffn_hidden": 64, "vocab": 256}
        | {"buckets": 8, "max_distance": 16, "dropout": 0.1},
    ),
    "vit": (
        "vit",
        1,
        {"layers": 2, "hidden": 32, "heads": 4, "ffn_hidden": 64, "classes": 12}
        | {"image": (8, 8), "patch": (2, 2), "channels": 1},
    ),
    "resnet": (
        "resnet",
        1,
        {"block": "bottleneck", "depths": (2, 1), "widths": (32, 64), "stem": 8}
        | {"image_size": 16, "channels": 1, "classes": 12},
    ),
    "wide-deep": (
        "wide_deep",
        1,
        {"vocab": 416, "fields": 26, "numbers": 12, "embedding": 8, "hidden": 32, "layers": 2},
    ),
    "dlrm": (
        "dlrm",
        1,
        {"tables": (100,) * 8, "bottom": (16, 8), "top": (32, 16), "numbers": 12}
        | {"rows_multiple": 32},
    ),
    "face": (
        "face",
        1,
        {"network": "iresnet", "depths": (1, 1), "widths": (8, 16), "features": 16}
        | {"classes": 32, "image_size": 16, "scale": 8.0},
    ),
}

NAMES = tuple(_CONFIGS)


def small(name: str, precision: str = "fp32") -> ModelSpec:
    """The small model called `name`."""
    family, seq_len, config = _CONFIGS[name]
    return ModelSpec(
        name=f"small-{name}", family=family, config=config, seq_len=seq_len, precision=precision
    )


def gpt_of(
    layers: int, hidden: int, heads: int, *, vocab: int, positions: int, **fields: str
) -> ModelSpec:
    """GPT of some size, whose sequences are as long as they can be."""
    config: Config = {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "ffn_hidden": 4 * hidden,
        "vocab": vocab,
        "positions": positions,
    }
    return ModelSpec(family="gpt", config=config, seq_len=positions, **{"name": "tiny", **fields})
