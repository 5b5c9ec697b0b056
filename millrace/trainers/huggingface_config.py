"""Hugging Face config (`config.json`) of a model, from which transformers builds it.

A model is written as every model type that might be it, and read back by the importer; the one that
comes nearest is taken, if its ops are the plan's.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from millrace.models.errors import ModelError
from millrace.models.importers.huggingface import config_spec
from millrace.models.importers.huggingface.activations import ACTIVATIONS
from millrace.models.importers.huggingface.model_types import MODEL_TYPES
from millrace.models.spec import ModelSpec
from millrace.models.zoo.decoder.config import DecoderConfig
from millrace.models.zoo.gpt import GptConfig
from millrace.planner.errors import InfeasibleError
from millrace.trainers.model_differences import LanguageConfig, differing_fields, said

FILE = "config.json"
KINDS: dict[str, type[LanguageConfig]] = {"decoder": DecoderConfig, "gpt": GptConfig}
_BY_ACTIVATION = {activation: name for name, activation in reversed(ACTIVATIONS.items())}


EVEN_SHARE = 1.0  # stands for experts that drop no token, which is how transformers has them


def written_config(model: ModelSpec, trainer: str) -> tuple[dict[str, Any], list[str]]:
    """Configuration of a model, and sentences about what it cannot say of it.

    Parameters
    ----------
    model : ModelSpec
        A GPT or a decoder.
    trainer : str
        Name of the trainer, for messages.

    Raises
    ------
    InfeasibleError
        transformers has no such model; names what differs from the nearest that it has.
    """
    if model.family not in KINDS:
        raise InfeasibleError(
            f"`{model.name}` is of family {model.family}, which has no config.json here: {trainer} "
            f"is given GPTs and decoders"
        )
    wanted = msgspec.convert(model.config, KINDS[model.family])
    candidates = list(_candidates(model.family, wanted))
    if not candidates:
        raise InfeasibleError(f"the sizes of `{model.name}` fit no model type of a config.json")
    values, trained = min(candidates, key=lambda pair: _distance(wanted, pair[1]))
    costly, free = differing_fields(wanted, trained)
    if costly:
        shown = ", ".join(f"{name} {getattr(wanted, name)!r}" for name in costly)
        raise InfeasibleError(
            f"no config.json that is written here says what `{model.name}` is: a "
            f"{values['model_type']} comes nearest, but for {shown}; give {trainer} the model's own"
        )
    return values, [said(field, wanted, trained, trainer) for field in free]


def _candidates(family: str, wanted: LanguageConfig) -> Iterator[tuple[dict[str, Any], Any]]:
    """Configurations of the model types of a family, each with the model that is read of it."""
    for model_type, values_of in _TYPES[family].items():
        architecture = MODEL_TYPES[model_type].classes[0]
        values = {"model_type": model_type, "architectures": [architecture], **values_of(wanted)}
        try:
            spec = config_spec(values, Path(FILE))
        except ModelError:
            continue  # a value that this model type cannot have
        yield values, msgspec.convert(with_even_share(spec).config, KINDS[family])


def with_even_share(model: ModelSpec) -> ModelSpec:
    """Model whose experts, if it has any, have places for an even share of the tokens."""
    if not model.config.get("experts"):
        return model
    return replace(model, config={**model.config, "capacity_factor": EVEN_SHARE})


def _distance(wanted: LanguageConfig, trained: LanguageConfig) -> tuple[int, int]:
    """Number of fields that differ: those that cost, then those that do not."""
    costly, free = differing_fields(wanted, trained)
    return len(costly), len(free)


def _gpt2(config: Any) -> dict[str, Any]:
    return {
        "n_layer": config.layers,
        "n_embd": config.hidden,
        "n_head": config.heads,
        "n_inner": config.ffn_hidden,
        "vocab_size": config.vocab,
        "n_positions": config.positions,
        "activation_function": _BY_ACTIVATION[config.activation],
        "layer_norm_epsilon": config.epsilon,
        "initializer_range": config.init_std,
        "scale_attn_weights": config.attention_scale == 0,
        "tie_word_embeddings": config.tied,
        "bos_token_id": None,
        "eos_token_id": None,
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
    }


def _llama(config: Any) -> dict[str, Any]:
    """Keys that Llama and its kin share."""
    return {
        "num_hidden_layers": config.layers,
        "hidden_size": config.hidden,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.ffn_hidden or config.expert_hidden,
        "vocab_size": config.vocab,
        "max_position_embeddings": config.positions,
        "hidden_act": _BY_ACTIVATION[config.activation],
        "rms_norm_eps": config.epsilon,
        "initializer_range": config.init_std,
        "tie_word_embeddings": config.tied,
        "attention_bias": config.qkv_bias,
        "mlp_bias": config.ffn_bias,
        **_rotary(config),
    }


def _rotary(config: Any) -> dict[str, Any]:
    keys: dict[str, Any] = {"rope_theta": config.rope_base}
    if config.rotary_dims != config.head_dim and not config.kv_lora:
        keys["partial_rotary_factor"] = config.rotary_dims / config.head_dim
    if not config.rope_scaling:
        return keys
    scaling = {
        "rope_type": config.rope_scaling,
        "factor": config.rope_factor,
        "original_max_position_embeddings": config.rope_original or config.positions,
    }
    if config.rope_scaling == "llama3":
        scaling |= {"low_freq_factor": config.rope_low, "high_freq_factor": config.rope_high}
    if config.rope_scaling == "yarn":
        scaling |= {
            "beta_fast": config.rope_fast,
            "beta_slow": config.rope_slow,
            "attention_factor": config.rope_amplitude,
            "truncate": config.rope_truncate,
        }
    return keys | {"rope_scaling": scaling}


def _windowed(config: Any) -> dict[str, Any]:
    """Keys of Mistral, all of whose layers have a window."""
    return _llama(config) | {"sliding_window": config.window or None}


def _qwen(config: Any) -> dict[str, Any]:
    """Keys of Qwen2 and Qwen3, whose first layers may see all keys."""
    full = tuple(config.full_layers)
    kinds = ["full_attention" if n in full else "sliding_attention" for n in range(config.layers)]
    keys = _llama(config) | {"use_sliding_window": config.window > 0}
    if config.window:
        keys |= {"sliding_window": config.window, "layer_types": kinds}
        keys["max_window_layers"] = len(full)
    return keys


def _mixtral(config: Any) -> dict[str, Any]:
    return _windowed(config) | {
        "intermediate_size": config.expert_hidden,
        "num_local_experts": config.experts,
        "num_experts_per_tok": config.experts_per_token,
        **_balanced(config, config.layers),
    }


def _qwen3_moe(config: Any) -> dict[str, Any]:
    mixed = config.layers - len(config.dense_layers)
    return _llama(config) | {
        "use_sliding_window": config.window > 0,
        "sliding_window": config.window or None,
        "num_experts": config.experts,
        "num_experts_per_tok": config.experts_per_token,
        "moe_intermediate_size": config.expert_hidden,
        "norm_topk_prob": config.normalize_weights,
        "mlp_only_layers": list(config.dense_layers),
        **_balanced(config, mixed),
    }


def _deepseek(config: Any) -> dict[str, Any]:
    """Keys of DeepSeek-V2 and V3: latent attention, and experts behind the first layers."""
    keys = _llama(config)
    keys.pop("head_dim")
    shared = config.shared_hidden // config.expert_hidden if config.expert_hidden else 0
    return keys | {
        "kv_lora_rank": config.kv_lora,
        "q_lora_rank": config.q_lora or None,
        "qk_rope_head_dim": config.rotary_dims,
        "qk_nope_head_dim": config.head_dim - config.rotary_dims,
        "v_head_dim": config.value_dim or config.head_dim,
        "rope_interleave": config.rope_interleaved,
        "n_routed_experts": config.experts,
        "num_experts_per_tok": config.experts_per_token,
        "moe_intermediate_size": config.expert_hidden,
        "n_shared_experts": shared,
        "first_k_dense_replace": len(config.dense_layers),
        "routed_scaling_factor": config.weight_scale,
        "norm_topk_prob": config.normalize_weights,
    }


def _deepseek_v3(config: Any) -> dict[str, Any]:
    groups = {"n_group": config.router_groups, "topk_group": config.kept_groups}
    return _deepseek(config) | groups


def _deepseek_v2(config: Any) -> dict[str, Any]:
    return _deepseek(config) | {"topk_method": "greedy"}


def _balanced(config: Any, mixed: int) -> dict[str, Any]:
    """Keys of the routers' loss, whose weight transformers takes for the mean of the layers."""
    if not config.balance_loss or not config.experts_per_token:
        return {}
    weight = config.balance_loss * mixed / config.experts_per_token
    return {"output_router_logits": True, "router_aux_loss_coef": weight}


_TYPES: dict[str, dict[str, Callable[[Any], dict[str, Any]]]] = {
    "gpt": {"gpt2": _gpt2},
    "decoder": {
        "llama": _llama,
        "qwen2": _qwen,
        "qwen3": _qwen,
        "mistral": _windowed,
        "mixtral": _mixtral,
        "qwen3_moe": _qwen3_moe,
        "deepseek_v3": _deepseek_v3,
        "deepseek_v2": _deepseek_v2,
    },
}
