"""Decoders with layer norms and plain feed-forward parts: GPT-2, GPT-NeoX, Phi and MPT."""

from typing import Any

from millrace.models.importers.huggingface.decoders import ACTIVATIONS, head_features, with_defaults
from millrace.models.importers.huggingface.keys import LAYERS_MAX, Keys
from millrace.models.importers.huggingface.mapping import Mapped, ModelType
from millrace.models.importers.huggingface.rotary_configs import rotary_fields
from millrace.models.spec import Config

GPT2: dict[str, Any] = {
    "vocab_size": 50257,
    "n_positions": 1024,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_inner": None,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "initializer_range": 0.02,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}
GPT2_ALSO = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}
GPT_NEOX: dict[str, Any] = {
    "vocab_size": 50432,
    "hidden_size": 6144,
    "num_hidden_layers": 44,
    "num_attention_heads": 64,
    "intermediate_size": 24576,
    "hidden_act": "gelu",
    "max_position_embeddings": 2048,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "use_parallel_residual": True,
    "attention_bias": True,
}
PHI: dict[str, Any] = GPT_NEOX | {
    "vocab_size": 51200,
    "hidden_size": 2048,
    "num_hidden_layers": 24,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "intermediate_size": 8192,
    "hidden_act": "gelu_new",
    "qk_layernorm": False,
}
MPT: dict[str, Any] = {
    "d_model": 2048,
    "n_heads": 16,
    "n_layers": 24,
    "expansion_ratio": 4,
    "max_seq_len": 2048,
    "vocab_size": 50368,
    "layer_norm_epsilon": 1e-5,
    "no_bias": True,
    "initializer_range": 0.02,
    "tie_word_embeddings": True,
}
MPT_ALSO = {
    "num_attention_heads": "n_heads",
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layers",
}


def _gpt2(keys: Keys, _: str) -> Mapped:
    for name in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
        if keys.flag(name):
            raise keys.error(name, "this is not supported; expected false")
    hidden = keys.integer("n_embd")
    std = keys.number("initializer_range", least=1e-12, most=1.0)
    config: Config = {
        "layers": keys.integer("n_layer", most=LAYERS_MAX),
        "hidden": hidden,
        "heads": keys.integer("n_head"),
        "ffn_hidden": keys.integer("n_inner", null=4 * hidden),
        "vocab": keys.integer("vocab_size"),
        "positions": keys.integer("n_positions"),
        "token_std": std,
        "init_std": std,
        "epsilon": keys.number("layer_norm_epsilon", most=1.0),
        "activation": keys.choice("activation_function", ACTIVATIONS),
        "attention_scale": 0.0 if keys.flag("scale_attn_weights") else 1.0,
        "tied": keys.flag("tie_word_embeddings"),
    }
    return Mapped("gpt", config, keys.integer("n_positions"))


def _gpt_neox(keys: Keys, _: str) -> Mapped:
    biased = keys.flag("attention_bias")
    head_dim = head_features(keys, "hidden_size", "num_attention_heads", exact=True)
    fields = _side_by_side(
        keys, head_dim, base_key="rotary_emb_base", share_key="rotary_pct", share=0.25
    )
    fields |= {
        "parallel": keys.flag("use_parallel_residual"),
        "qkv_bias": biased,
        "out_bias": biased,
    }
    return Mapped("decoder", fields, keys.integer("max_position_embeddings"))


def _phi(keys: Keys, _: str) -> Mapped:
    heads = keys.integer("num_attention_heads")
    head_dim = keys.integer("head_dim", 0, null=0)
    if not head_dim:
        head_dim = head_features(keys, "hidden_size", "num_attention_heads")
    fields = _side_by_side(
        keys, head_dim, base_key="rope_theta", share_key="partial_rotary_factor", share=0.5
    )
    fields |= {
        "kv_heads": keys.integer("num_key_value_heads", null=heads),
        "parallel": True,
        "shared_norm": True,
        "qkv_bias": True,
        "out_bias": True,
        "head_bias": True,
        "qk_norm": "layer" if keys.flag("qk_layernorm") else "",
    }
    return Mapped("decoder", fields, keys.integer("max_position_embeddings"))


def _side_by_side(
    keys: Keys, head_dim: int, *, base_key: str, share_key: str, share: float
) -> Config:
    """Return the fields that GPT-NeoX and Phi share."""
    heads, positions = keys.integer("num_attention_heads"), keys.integer("max_position_embeddings")
    turned = rotary_fields(
        keys, head_dim, positions, share=share, base_key=base_key, share_key=share_key
    )
    return turned | {
        "layers": keys.integer("num_hidden_layers", most=LAYERS_MAX),
        "hidden": keys.integer("hidden_size"),
        "vocab": keys.integer("vocab_size"),
        "positions": positions,
        "heads": heads,
        "kv_heads": heads,
        "head_dim": head_dim,
        "ffn_hidden": keys.integer("intermediate_size"),
        "norm": "layer",
        "epsilon": keys.number("layer_norm_eps", most=1.0),
        "tied": keys.flag("tie_word_embeddings"),
        "activation": keys.choice("hidden_act", ACTIVATIONS),
        "gated": False,
        "ffn_bias": True,
        "init_std": keys.number("initializer_range", least=1e-12, most=1.0),
    }


def _mpt(keys: Keys, _: str) -> Mapped:
    attention = keys.section("attn_config")
    _refuse_variants(keys, attention)
    hidden, heads = keys.integer("d_model"), keys.integer("n_heads")
    config: Config = {
        "layers": keys.integer("n_layers", most=LAYERS_MAX),
        "hidden": hidden,
        "vocab": keys.integer("vocab_size"),
        "positions": keys.integer("max_seq_len"),
        "heads": heads,
        "kv_heads": heads,
        "head_dim": head_features(keys, "d_model", "n_heads", exact=True),
        "ffn_hidden": 4 * hidden,
        "norm": "scale",
        "epsilon": keys.number("layer_norm_epsilon", most=1.0),
        "tied": keys.flag("tie_word_embeddings"),
        "activation": "gelu_erf",
        "gated": False,
        "alibi": float(attention.integer("alibi_bias_max", 8, most=64)),
        "clip_qkv": attention.number("clip_qkv", 0.0, null=0.0),
        "attention_scale": attention.number("softmax_scale", 0.0, null=0.0),
        "init_std": keys.number("initializer_range", least=1e-12, most=1.0),
    }
    return Mapped("decoder", config, keys.integer("max_seq_len"))


def _refuse_variants(keys: Keys, attention: Keys) -> None:
    """Refuse what MosaicML's code knows beyond its published models."""
    if keys.integer("expansion_ratio") != 4:
        raise keys.error("expansion_ratio", "feed-forward parts of another width than 4 times")
    if not keys.flag("no_bias"):
        raise keys.error("no_bias", "biases are not supported; expected true")
    if keys.has("logit_scale"):
        raise keys.error("logit_scale", "scaled logits are not supported; expected null")
    for name, value in (("alibi", True), ("qk_ln", False), ("prefix_lm", False)):
        if attention.flag(name, value) is not value:
            raise attention.error(name, f"this is not supported; expected {str(value).lower()}")
    kind = "multihead_attention"
    attention.choice("attn_type", {kind: kind}, kind)


MODEL_TYPES = {
    "gpt2": ModelType(("GPT2LMHeadModel",), with_defaults(GPT2, _gpt2, GPT2_ALSO)),
    "gpt_neox": ModelType(("GPTNeoXForCausalLM",), with_defaults(GPT_NEOX, _gpt_neox)),
    "phi": ModelType(("PhiForCausalLM",), with_defaults(PHI, _phi)),
    "mpt": ModelType(
        ("MptForCausalLM", "MPTForCausalLM"),
        with_defaults(MPT, _mpt, MPT_ALSO),
    ),
}
