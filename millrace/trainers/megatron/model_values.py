"""Model values: GPT's family and decoders of the zoo as Megatron-Core's settings.

Keys are destinations of Megatron-LM's arguments, which are the names of Megatron-Core's
`TransformerConfig` but for a few that only the command line has.
"""

from typing import Any

import msgspec

from millrace.models.fp8 import ATTENTION, HEAD
from millrace.models.spec import ModelSpec
from millrace.models.zoo.decoder.config import DecoderConfig
from millrace.models.zoo.gpt import GptConfig
from millrace.planner.errors import InfeasibleError
from millrace.trainers.megatron.layer_patterns import pattern_text

GPT, DECODER = "gpt", "decoder"
# Fields of decoders that Megatron-Core 0.19 has no setting for, with the value that it has.
_FIXED: dict[str, Any] = {
    "head_bias": False,
    "head_activation": "",
    "first_norm": True,
    "embedding_scale": 1.0,
    "logit_cap": 0.0,
    "logit_scale": 1.0,
    "residual_scale": 1.0,
    "learned_positions": 0,
    "embedding_norm": False,
    "parallel": False,
    "pre_norms": True,
    "post_norms": False,
    "sum_norms": False,
    "expert_norm": False,
    "inner_norms": False,
    "qk_norm_whole": False,
    "qk_norm_last": False,
    "window_rotary_dims": 0,
    "router_correction": False,
    "gate_per_head": False,
    "cap_routed": False,
    "gate_from_query": False,
    "norm_gate_rank": 0,
    "last_out_bias": False,
    "clip_qkv": 0.0,
    "alibi": 0.0,
    "chunk": 0,
    "score_cap": 0.0,
    "tempered_from": 0,
    "index_topk": 0,
    "window_rope_base": 0.0,
    "router_bias": False,
}
_PRECISIONS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "fp16": {"fp16": True},
    "bf16": {"bf16": True},
    "fp8": {"bf16": True, "fp8": "hybrid", "fp8_recipe": "tensorwise"},
    "mxfp8": {"bf16": True, "fp8": "e4m3", "fp8_recipe": "mxfp8"},
    "nvfp4": {"bf16": True, "fp4": "e2m1"},
}


def model_values(model: ModelSpec, tp: int) -> tuple[dict[str, Any], list[str]]:
    """Settings of a model, by destination, and sentences about what they leave out.

    Parameters
    ----------
    model : ModelSpec
        Of the family `gpt` or `decoder`.
    tp : int
        Degree of tensor parallelism, by which Megatron divides the vocabulary.

    Raises
    ------
    InfeasibleError
        Megatron-Core's GPT cannot be made this model; names the family or the field.
    """
    if model.family not in (GPT, DECODER):
        raise InfeasibleError(
            f"model {model.name}: pretrain_gpt.py trains models that predict the next token, and "
            f"this is of the family `{model.family}`; plan one of GPT's or Llama's kind"
        )
    if model.precision not in _PRECISIONS:
        raise InfeasibleError(
            f"precision {model.precision}: Megatron-LM has {', '.join(_PRECISIONS)}"
        )
    values, unsaid = _gpt_values(model) if model.family == GPT else _decoder_values(model)
    vocab = int(model.config["vocab"])  # type: ignore[arg-type]
    padded = -(-vocab // tp) * tp
    if padded != vocab:
        unsaid.append(
            f"a vocabulary of {vocab:,} is padded to {padded:,}, which {tp} tensor-parallel ranks "
            f"divide"
        )
    values |= {"seq_length": model.seq_len, "vocab_size": vocab, "padded_vocab_size": padded}
    return values | _PRECISIONS[model.precision], unsaid


def _gpt_values(model: ModelSpec) -> tuple[dict[str, Any], list[str]]:
    config = msgspec.convert(model.config, GptConfig)
    unsaid = []
    if config.activation not in ("gelu", "gelu_erf"):
        unsaid.append(f"activation {config.activation}: Megatron's GPT has GELU")
    if config.token_std != config.init_std:
        unsaid.append(f"the token table begins at a deviation of {config.init_std}")
    return {
        "num_layers": config.layers,
        "hidden_size": config.hidden,
        "num_attention_heads": config.heads,
        "ffn_hidden_size": config.ffn_hidden,
        "max_position_embeddings": config.positions,
        "position_embedding_type": "learned_absolute",
        "layernorm_epsilon": config.epsilon,
        "init_method_std": config.init_std,
        "untie_embeddings_and_output_weights": not config.tied,
    }, unsaid


def _decoder_values(model: ModelSpec) -> tuple[dict[str, Any], list[str]]:
    config = msgspec.convert(model.config, DecoderConfig)
    for field, value in _FIXED.items():
        if getattr(config, field) != value:
            raise InfeasibleError(
                f"model {model.name}: Megatron-Core has no setting for `{field}`, which is "
                f"{getattr(config, field)}; export to another trainer"
            )
    unsaid: list[str] = []
    if config.attention_scale:
        unsaid.append(f"products of queries and keys are scaled by {config.attention_scale:.4g}")
    if config.norm in ("unscaled", "bare"):
        unsaid.append("norms without weights: Megatron's have them")
    values: dict[str, Any] = {
        "num_layers": config.layers,
        "hidden_size": config.hidden,
        "num_attention_heads": config.heads,
        "max_position_embeddings": config.positions,
        "normalization": "RMSNorm" if config.norm == "rms" else "LayerNorm",
        "layernorm_epsilon": config.epsilon,
        "init_method_std": config.init_std,
        "untie_embeddings_and_output_weights": not config.tied,
        "ffn_hidden_size": config.ffn_hidden or config.expert_hidden,
        "qk_layernorm": bool(config.qk_norm),
        "attention_output_gate": bool(config.attention_gate),
        "activation_func_clamp_value": config.gate_cap or None,
        **_activation(config, unsaid),
        **_biases(config, unsaid),
        **_attention(config),
        **_positions(config),
        **_experts(config, unsaid),
    }
    narrow = config.narrow_parts.split()
    if HEAD in narrow:
        values["fp8_output_proj"] = True
    if ATTENTION in narrow:
        unsaid.append(
            "attention in 8 bits: `fp8_dot_product_attention` of TransformerConfig has no argument"
        )
    if config.mtp_layers:
        values |= {"mtp_num_layers": config.mtp_layers, "mtp_loss_scaling_factor": config.mtp_loss}
    return values, unsaid


def _activation(config: DecoderConfig, unsaid: list[str]) -> dict[str, bool]:
    if config.gated:
        if config.activation != "silu":
            unsaid.append(f"activation {config.activation}: written as quick GeGLU")
            return {"quick_geglu": True}
        if config.gate_cap:
            unsaid.append(f"gates are sigmoids of {config.gate_slope:g} times them: SwiGLU's")
        return {"swiglu": True}
    if config.activation in ("gelu", "gelu_erf"):
        return {}
    if config.activation != "relu2":
        unsaid.append(f"activation {config.activation}: written as ReLU squared")
    return {"squared_relu": True}


def _biases(config: DecoderConfig, unsaid: list[str]) -> dict[str, bool]:
    dense = any(not config.has_experts(layer) for layer in range(config.layers))
    parts = {config.out_bias, *([config.ffn_bias] * dense)}
    parts |= {config.expert_bias} if config.experts else set()
    every = parts == {True} and config.qkv_bias
    if not every and any(parts):
        unsaid.append("biases: Megatron-Core has them in all products or in none but QKV's")
    return {"add_bias_linear": every, "add_qkv_bias": config.qkv_bias and not every}


def _attention(config: DecoderConfig) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if config.kv_lora:
        values |= {
            "multi_latent_attention": True,
            "kv_lora_rank": config.kv_lora,
            "q_lora_rank": config.q_lora or None,
            "qk_head_dim": config.head_dim - config.rotary_dims,
            "qk_pos_emb_head_dim": config.rotary_dims,
            "v_head_dim": config.value_dim or config.head_dim,
        }
    else:
        grouped = config.kv_heads < config.heads
        values |= {"group_query_attention": grouped, "kv_channels": config.head_dim}
        values |= {"num_query_groups": config.kv_heads} if grouped else {}
    if config.window:
        pattern = [int(layer not in config.full_layers) for layer in range(config.layers)]
        values |= {"window_size": f"{config.window - 1},0"}
        values |= {"window_attn_skip_freq": pattern_text(pattern)} if config.full_layers else {}
    if config.sinks:
        values["softmax_type"] = "learnable"
    return values


def _positions(config: DecoderConfig) -> dict[str, Any]:
    if not config.rotary_dims:
        return {"position_embedding_type": "none"}
    values: dict[str, Any] = {"position_embedding_type": "rope"}
    if config.rope_base != int(config.rope_base):
        raise InfeasibleError(f"rope_base {config.rope_base}: --rotary-base is a whole number")
    values["rotary_base"] = int(config.rope_base)
    if not config.kv_lora:
        values["rotary_percent"] = config.rotary_dims / config.head_dim
    values["rotary_interleaved"] = config.rope_interleaved
    if config.rope_scaling == "llama3":
        values |= {"use_rope_scaling": True, "rope_scaling_factor": config.rope_factor}
    elif config.rope_scaling == "yarn":
        values |= {
            "position_embedding_type": "yarn",
            "rotary_scaling_factor": config.rope_factor,
            "yarn_original_max_position_embeddings": config.rope_original,
            "yarn_beta_fast": config.rope_fast,
            "yarn_beta_slow": config.rope_slow,
        }
    elif config.rope_scaling == "linear":
        values["rotary_seq_len_interpolation_factor"] = int(config.rope_factor)
    if config.unturned_layers:
        pattern = [int(layer in config.unturned_layers) for layer in range(config.layers)]
        values["no_rope_freq"] = pattern_text(pattern)
    return values


def _experts(config: DecoderConfig, unsaid: list[str]) -> dict[str, Any]:
    if not config.experts:
        return {}
    values: dict[str, Any] = {
        "num_experts": config.experts,
        "moe_router_topk": config.experts_per_token,
        "moe_ffn_hidden_size": config.expert_hidden,
        "moe_shared_expert_intermediate_size": config.shared_hidden or None,
        "moe_router_score_function": config.router,
        # Megatron-Core asks for it where a token goes to one expert, whose weight is then no 1.
        "moe_router_pre_softmax": config.router == "softmax"
        and (not config.normalize_weights or config.experts_per_token == 1),
        "moe_apply_probs_on_input": config.weigh_inputs,
        "moe_shared_expert_gate": config.shared_gate,
        "moe_latent_size": config.expert_latent or None,
        "moe_grouped_gemm": True,
    }
    if config.dense_layers:
        pattern = [int(config.has_experts(layer)) for layer in range(config.layers)]
        values["moe_layer_freq"] = pattern_text(pattern)
    if config.router_groups > 1:
        values["moe_router_num_groups"] = config.router_groups
        values["moe_router_group_topk"] = config.kept_groups
    if config.weight_scale != 1:
        values["moe_router_topk_scaling_factor"] = config.weight_scale
    if config.balance_loss:
        values["moe_aux_loss_coeff"] = [config.balance_loss]
    else:
        values["moe_router_load_balancing_type"] = ["none"]
    if config.router == "sigmoid" and not config.normalize_weights:
        unsaid.append("weights of sigmoid routers are made to sum to one")
    return values
