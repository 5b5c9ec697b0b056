"""Configs of mixtures of experts: Mixtral, Qwen3's, DeepSeek's, Kimi K2 and GLM-4.5.

Imported mixtures have 1.25 times an even share of places per expert, as the zoo's have; the
libraries they come from drop no token (a `capacity_factor` of 0). Where a configuration asks for
the routers' loss, it is that of every layer and sample by itself, at the weight that it has there.
"""

from typing import Any

from millrace.models.importers.huggingface.decoders import (
    LLAMA,
    MISTRAL,
    QWEN,
    attention_biases,
    base_fields,
    with_defaults,
)
from millrace.models.importers.huggingface.keys import LAYERS_MAX, Keys
from millrace.models.importers.huggingface.mapping import Mapped, ModelType
from millrace.models.importers.huggingface.rotary_configs import latent_scale, rotary_fields
from millrace.models.spec import Config

CAPACITY_FACTOR = 1.25
EXPERTS_MAX = 65536

MIXTRAL = MISTRAL | {
    "rms_norm_eps": 1e-5,
    "sliding_window": None,
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
    "output_router_logits": False,
    "router_aux_loss_coef": 0.001,
    "router_jitter_noise": 0.0,
}
QWEN3_MOE = QWEN | {
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 24,
    "num_key_value_heads": 4,
    "decoder_sparse_step": 1,
    "moe_intermediate_size": 768,
    "num_experts_per_tok": 8,
    "num_experts": 128,
    "norm_topk_prob": False,
    "output_router_logits": False,
    "router_aux_loss_coef": 0.001,
    "mlp_only_layers": None,
}
DEEPSEEK_V3: dict[str, Any] = LLAMA | {
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "n_shared_experts": 1,
    "n_routed_experts": 256,
    "routed_scaling_factor": 2.5,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "qk_nope_head_dim": 128,
    "n_group": 8,
    "topk_group": 4,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "norm_topk_prob": True,
    "max_position_embeddings": 4096,
    "rope_interleave": True,
}
DEEPSEEK_V2 = DEEPSEEK_V3 | {
    "vocab_size": 102400,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "moe_intermediate_size": 1407,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "n_shared_experts": 2,
    "n_routed_experts": 64,
    "routed_scaling_factor": 1.0,
    "n_group": None,
    "topk_group": None,
    "topk_method": "greedy",
    "num_experts_per_tok": None,
    "first_k_dense_replace": 0,
    "max_position_embeddings": 2048,
}
# As the class GLM-4.5 has them in transformers 5.
GLM4_MOE: dict[str, Any] = LLAMA | {
    "vocab_size": 151552,
    "hidden_size": 4096,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "num_hidden_layers": 46,
    "num_attention_heads": 96,
    "num_key_value_heads": 8,
    "n_shared_experts": 1,
    "n_routed_experts": 128,
    "routed_scaling_factor": 1.0,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "partial_rotary_factor": 0.5,
    "use_qk_norm": False,
}


def _mixtral(keys: Keys, _: str) -> Mapped:
    if keys.number("router_jitter_noise"):
        raise keys.error("router_jitter_noise", "noise on what a router reads is not supported: 0")
    experts = keys.integer("num_local_experts", most=EXPERTS_MAX)
    width = keys.integer("intermediate_size")
    fields = base_fields(keys, base=1e6) | {
        "window": keys.integer("sliding_window", null=0),
        "experts": experts,
        "experts_per_token": keys.integer("num_experts_per_tok"),
        "expert_hidden": width,
        "capacity_factor": CAPACITY_FACTOR,
    }
    layers = keys.integer("num_hidden_layers", most=LAYERS_MAX)
    return _decoder(keys, fields | balance_fields(keys, layers))


def _qwen3_moe(keys: Keys, _: str) -> Mapped:
    layers = keys.integer("num_hidden_layers", most=LAYERS_MAX)
    step = keys.integer("decoder_sparse_step")
    only_dense = set(keys.integers("mlp_only_layers", null=(), least=0))
    dense = tuple(n for n in range(layers) if n in only_dense or (n + 1) % step)
    windowed = keys.flag("use_sliding_window")
    fields = base_fields(keys) | attention_biases(keys)
    fields |= {
        "qk_norm": "rms",
        "window": keys.integer("sliding_window", null=0) if windowed else 0,
        "experts": keys.integer("num_experts", least=0, most=EXPERTS_MAX),
        "experts_per_token": keys.integer("num_experts_per_tok"),
        "expert_hidden": keys.integer("moe_intermediate_size"),
        "dense_layers": dense,
        "normalize_weights": keys.flag("norm_topk_prob"),
        "capacity_factor": CAPACITY_FACTOR,
    }
    return _decoder(keys, fields | balance_fields(keys, layers - len(dense)))


def _deepseek_v3(keys: Keys, _: str) -> Mapped:
    return _without_further_tokens(
        keys,
        _latent_attention(keys, interleaved=keys.flag("rope_interleave", null=False))
        | _deepseek_experts(keys)
        | _sigmoid_router(keys),
    )


def _kimi_k2(keys: Keys, architecture: str) -> Mapped:
    """Return DeepSeek-V3's configuration; the model's own code has these ways of routing alone."""
    for name, value in (("scoring_func", "sigmoid"), ("topk_method", "noaux_tc")):
        keys.choice(name, {value: value}, value)
    return _deepseek_v3(keys, architecture)


def _glm4_moe(keys: Keys, _: str) -> Mapped:
    """Return the configuration of a GLM-4.5, with a router like DeepSeek-V3's."""
    fields = base_fields(keys) | _deepseek_experts(keys) | _sigmoid_router(keys)
    fields |= {
        "qkv_bias": keys.flag("attention_bias", False),
        "qk_norm": "rms" if keys.flag("use_qk_norm") else "",
    }
    return _without_further_tokens(keys, fields)


def _without_further_tokens(keys: Keys, fields: Config) -> Mapped:
    """Decoder without its modules for the tokens after the next, as transformers builds it."""
    return _decoder(keys, fields)._replace(notes=further_tokens(keys))


def further_tokens(keys: Keys) -> tuple[str, ...]:
    """Note on modules for the tokens after the next, which are left out; none where none are there.

    Parameters
    ----------
    keys : Keys
        Those of the whole configuration.
    """
    modules = keys.integer("num_nextn_predict_layers", 0, least=0, most=LAYERS_MAX, null=0)
    note = (
        f"num_nextn_predict_layers is {modules}: planned without, as transformers builds it; "
        f"--mtp-layers {modules} plans them"
    )
    return (note,) if modules else ()


def _sigmoid_router(keys: Keys) -> Config:
    """Fields of DeepSeek-V3's way of choosing experts."""
    return {
        "router": "sigmoid",
        "router_groups": keys.integer("n_group"),
        "kept_groups": keys.integer("topk_group"),
        "normalize_weights": keys.flag("norm_topk_prob", null=False),
    }


def _deepseek_v2(keys: Keys, _: str) -> Mapped:
    if keys.text("topk_method", null="greedy") != "greedy":
        raise keys.error(
            "topk_method", "experts of groups chosen by their one best are not supported: `greedy`"
        )
    return _decoder(
        keys,
        _latent_attention(keys, interleaved=True)
        | _deepseek_experts(keys)
        | {"normalize_weights": False, "ffn_bias": keys.flag("mlp_bias", False)},
    )


def _latent_attention(keys: Keys, *, interleaved: bool) -> Config:
    """Fields of DeepSeek's dense part, with its attention."""
    turned, unturned = keys.integer("qk_rope_head_dim"), keys.integer("qk_nope_head_dim")
    heads, positions = keys.integer("num_attention_heads"), keys.integer("max_position_embeddings")
    if keys.integer("num_key_value_heads", null=heads) != heads:
        raise keys.error("num_key_value_heads", f"latent attention has one per head: {heads}")
    plain = keys.without("head_dim", "rope_scaling", "rope_parameters")
    biased = keys.flag("attention_bias", False)
    return (
        base_fields(plain, head_dim=turned + unturned)
        | rotary_fields(keys, turned, positions)
        | {
            "rope_interleaved": interleaved,
            "attention_scale": latent_scale(keys, turned + unturned, positions),
            "kv_lora": keys.integer("kv_lora_rank"),
            "q_lora": keys.integer("q_lora_rank", null=0),
            "value_dim": keys.integer("v_head_dim"),
            "qkv_bias": biased,
            "out_bias": biased,
        }
    )


def _deepseek_experts(keys: Keys) -> Config:
    layers = keys.integer("num_hidden_layers", most=LAYERS_MAX)
    first = keys.integer("first_k_dense_replace", least=0, null=0)
    width = keys.integer("moe_intermediate_size")
    return {
        "experts": keys.integer("n_routed_experts", most=EXPERTS_MAX),
        "experts_per_token": keys.integer("num_experts_per_tok"),
        "expert_hidden": width,
        "shared_hidden": width * keys.integer("n_shared_experts", least=0),
        "dense_layers": tuple(range(min(first, layers))),
        "weight_scale": keys.number("routed_scaling_factor", least=1e-9),
        "capacity_factor": CAPACITY_FACTOR,
    }


def balance_fields(keys: Keys, layers: int) -> Config:
    """Return the weight of the routers' loss: transformers takes the mean over layers."""
    if not keys.flag("output_router_logits", null=False) or not layers:
        return {}
    chosen = keys.integer("num_experts_per_tok")
    return {"balance_loss": keys.number("router_aux_loss_coef") * chosen / layers}


def _decoder(keys: Keys, fields: Config) -> Mapped:
    return Mapped("decoder", fields, keys.integer("max_position_embeddings"))


_PLAIN = "num_experts"
_LOCAL = "num_local_experts"
_ROUTED = "n_routed_experts"

MODEL_TYPES = {
    "mixtral": ModelType(
        ("MixtralForCausalLM",), with_defaults(MIXTRAL, _mixtral, {_PLAIN: _LOCAL})
    ),
    "qwen3_moe": ModelType(
        ("Qwen3MoeForCausalLM",), with_defaults(QWEN3_MOE, _qwen3_moe, {_LOCAL: _PLAIN})
    ),
    "deepseek_v3": ModelType(
        ("DeepseekV3ForCausalLM",), with_defaults(DEEPSEEK_V3, _deepseek_v3, {_LOCAL: _ROUTED})
    ),
    "kimi_k2": ModelType(
        ("DeepseekV3ForCausalLM",), with_defaults(DEEPSEEK_V3, _kimi_k2, {_LOCAL: _ROUTED})
    ),
    "glm4_moe": ModelType(
        ("Glm4MoeForCausalLM",), with_defaults(GLM4_MOE, _glm4_moe, {_LOCAL: _ROUTED})
    ),
    "deepseek_v2": ModelType(
        ("DeepseekV2ForCausalLM",), with_defaults(DEEPSEEK_V2, _deepseek_v2, {_PLAIN: _ROUTED})
    ),
}
