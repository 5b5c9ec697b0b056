"""Reduced decoders of every model type, as modules of transformers and as graphs of ours."""

from pathlib import Path
from typing import Any

import msgspec

from millrace.models.graph import Graph
from millrace.models.importers.huggingface import read_config
from millrace.models.zoo.catalogue import build
from tests.extras import optional

torch = optional("torch")
transformers = optional("transformers")

BATCH, SEQ_LEN, VOCAB = 2, 11, 29

LLAMA: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
GPT2 = {"vocab_size": VOCAB, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 4}
NEOX = LLAMA | {"rotary_pct": 0.5}
MPT: dict[str, Any] = {
    "vocab_size": VOCAB,
    "d_model": 12,
    "n_heads": 3,
    "n_layers": 2,
    "max_seq_len": SEQ_LEN,
}
EXPERTS = {"num_local_experts": 5, "num_experts_per_tok": 2}
QWEN_EXPERTS = {"num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 12}
DEEPSEEK = LLAMA | {
    "num_key_value_heads": 4,
    "num_hidden_layers": 3,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 12,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "q_lora_rank": 10,
    "kv_lora_rank": 14,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 6,
    "v_head_dim": 5,
}
SPARSE = {"index_topk": 4, "index_n_heads": 8, "index_head_dim": 6}
GLM = LLAMA | {
    "head_dim": 8,
    "attention_bias": True,
    "num_hidden_layers": 3,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 12,
    "n_routed_experts": 5,
    "num_experts_per_tok": 3,
    "use_qk_norm": True,
    "routed_scaling_factor": 2.5,
}
GPT_OSS = LLAMA | {
    "head_dim": 6,
    "num_hidden_layers": 3,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "sliding_window": 4,
    "swiglu_limit": 1.0,
}
GEMMA = LLAMA | {
    "head_dim": 6,
    "num_hidden_layers": 3,
    "sliding_window": 4,
    "query_pre_attn_scalar": 5,
    "pad_token_id": None,
}
LLAMA4 = LLAMA | {
    "head_dim": 6,
    "num_hidden_layers": 4,
    "num_local_experts": 5,
    "interleave_moe_layer_step": 2,
    "intermediate_size_mlp": 20,
}
LLAMA31 = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 50.0,
    "factor": 8.0,
    "beta_fast": 4.0,
    "beta_slow": 0.5,
    "original_max_position_embeddings": 32,
}

FULL = "full_attention"
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", LLAMA),
    "llama, biases, own head_dim, tied": (
        "llama",
        LLAMA
        | {
            "attention_bias": True,
            "mlp_bias": True,
            "head_dim": 6,
            "num_key_value_heads": 1,
            "tie_word_embeddings": True,
        },
    ),
    "llama 3.1": ("llama", LLAMA | {"rope_parameters": LLAMA31}),
    "llama, linear": (
        "llama",
        LLAMA | {"rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 3.0}},
    ),
    "mistral": ("mistral", LLAMA | {"sliding_window": 4, "head_dim": 6}),
    "qwen2": ("qwen2", LLAMA | {"tie_word_embeddings": True}),
    "qwen2, some layers through a window, yarn": (
        "qwen2",
        LLAMA
        | {
            "use_sliding_window": True,
            "sliding_window": 3,
            "max_window_layers": 1,
            "rope_parameters": YARN,
        },
    ),
    "qwen3": ("qwen3", LLAMA | {"head_dim": 6, "attention_bias": True}),
    "phi3": ("phi3", LLAMA | {"sliding_window": 5, "pad_token_id": None}),
    "gpt2": ("gpt2", GPT2),
    "gpt2, untied": (
        "gpt2",
        GPT2
        | {
            "n_inner": 20,
            "activation_function": "relu",
            "tie_word_embeddings": False,
            "scale_attn_weights": False,
        },
    ),
    "gpt_neox": ("gpt_neox", NEOX),
    "gpt_neox, one after the other": (
        "gpt_neox",
        NEOX | {"use_parallel_residual": False, "attention_bias": False, "hidden_act": "gelu_fast"},
    ),
    "phi": ("phi", LLAMA | {"partial_rotary_factor": 0.5, "qk_layernorm": True}),
    "mpt": ("mpt", MPT | {"attn_config": {"clip_qkv": 0.9, "softmax_scale": 0.3}}),
    "mixtral": ("mixtral", LLAMA | EXPERTS),
    "qwen3_moe": (
        "qwen3_moe",
        LLAMA | QWEN_EXPERTS | {"num_hidden_layers": 3, "mlp_only_layers": [1]},
    ),
    "deepseek_v3": (
        "deepseek_v3",
        DEEPSEEK | {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 0.5}},
    ),
    "deepseek_v3, no group, no query latent": (
        "deepseek_v3",
        DEEPSEEK
        | {
            "n_group": 1,
            "topk_group": 1,
            "q_lora_rank": None,
            "rope_interleave": False,
            "attention_bias": True,
            "norm_topk_prob": False,
            "n_shared_experts": 2,
        },
    ),
    "glm4_moe": ("glm4_moe", GLM),
    "glm4_moe, no norm of queries and keys": (
        "glm4_moe",
        GLM | {"use_qk_norm": False, "attention_bias": False, "n_shared_experts": 2},
    ),
    "gpt_oss": ("gpt_oss", GPT_OSS),
    "gemma2": ("gemma2", GEMMA | {"final_logit_softcapping": 2.0, "attn_logit_softcapping": 0.8}),
    "gemma3_text": ("gemma3_text", GEMMA | {"layer_types": ["sliding_attention"] * 2 + [FULL]}),
    "gemma3_text, other angles, stretched": (
        "gemma3_text",
        GEMMA
        | {
            "layer_types": ["sliding_attention", FULL, "sliding_attention"],
            "rope_parameters": {
                FULL: {"rope_type": "linear", "rope_theta": 70.0, "factor": 3.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 30.0},
            },
        },
    ),
    "llama4_text": ("llama4_text", LLAMA4),
    "llama4_text, no norm of queries and keys, stretched": (
        "llama4_text",
        LLAMA4
        | {
            "use_qk_norm": False,
            "interleave_moe_layer_step": 1,
            "no_rope_layers": [1, 0, 1, 0],
            "floor_scale": 3,
            "attn_scale": 0.7,
            "rope_parameters": LLAMA31 | {"high_freq_factor": 1.0},
        },
    ),
    "deepseek_v32": (
        "deepseek_v32",
        DEEPSEEK | SPARSE | {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 0.5}},
    ),
    "deepseek_v32, all keys": ("deepseek_v32", DEEPSEEK | SPARSE | {"index_topk": 64}),
    "glm_moe_dsa": (
        "glm_moe_dsa",
        DEEPSEEK | SPARSE | {"mlp_layer_types": ["dense", "sparse", "dense"]},
    ),
    "deepseek_v2": ("deepseek_v2", DEEPSEEK | {"routed_scaling_factor": 1.5}),
}


def configuration(case: str) -> Any:
    model_type, values = CASES[case]
    return transformers.AutoConfig.for_model(model_type, **values)


def lively(config: Any) -> Any:
    """A module of random values, norms and biases too, so that no parameter is idle."""
    config._attn_implementation = "eager"  # whose products PyTorch counts once
    torch.manual_seed(1)
    module = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            centre = 1.0 if "norm" in name or "ln_" in name else 0.0
            spread = parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 0.2
            parameter.copy_(centre * name.endswith("weight") + spread * torch.randn_like(parameter))
    return module


def imported(config: Any, module: Any, folder: Path, **changes: Any) -> Graph:
    config.architectures = [type(module).__name__]
    (folder / "config.json").write_text(config.to_json_string())
    spec = read_config(folder, seq_len=SEQ_LEN)
    return build(msgspec.structs.replace(spec, config=spec.config | changes), BATCH)
