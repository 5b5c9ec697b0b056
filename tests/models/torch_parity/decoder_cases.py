"""Reduced decoders of every model type, as modules of transformers and as graphs of ours."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from millrace.models.graph import Graph
from millrace.models.importers.huggingface import read_config
from millrace.models.zoo.catalogue import build
from tests.extras import optional

torch = optional("torch")
overrides = optional("torch.overrides")
transformers = optional("transformers")

BATCH, SEQ_LEN, VOCAB = 2, 11, 29
UNUSED = 0  # a token that no sample has, for classes whose padding does not learn

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
GEMMA4 = GEMMA | {
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "global_head_dim": 8,
    "final_logit_softcapping": 2.0,
    "rope_parameters": {
        "full_attention": {
            "rope_type": "proportional",
            "rope_theta": 70.0,
            "partial_rotary_factor": 0.5,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 30.0},
    },
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

RATES = {"compressed_sparse_attention": 2, "heavily_compressed_attention": 3}
COMPRESSED = LLAMA | {
    "num_key_value_heads": 1,
    "head_dim": 8,
    "partial_rotary_factor": 0.5,
    "num_hidden_layers": 3,
    "layer_types": [
        "sliding_attention",
        "heavily_compressed_attention",
        "compressed_sparse_attention",
    ],
    "compress_rates": RATES,
    "mlp_layer_types": ["moe"] * 3,
    "sliding_window": 4,
    "q_lora_rank": 10,
    "o_groups": 2,
    "o_lora_rank": 6,
    "hc_mult": 3,
    "hc_sinkhorn_iters": 4,
    "n_routed_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 12,
    "swiglu_limit": 0.5,
    "index_topk": 2,
    "index_n_heads": 8,
    "index_head_dim": 6,
    "rope_parameters": YARN,
}

FULL = "full_attention"
WINDOWS: dict[str, Any] = {
    "num_hidden_layers": 3,
    "sliding_window": 4,
    "layer_types": ["sliding_attention", FULL, "sliding_attention"],
}
GPTJ = GPT2 | {"rotary_dim": 2}
FALCON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "ffn_hidden_size": 20,
}
GRANITE = {
    "embedding_multiplier": 3.0,
    "logits_scaling": 0.7,
    "residual_multiplier": 0.4,
    "attention_multiplier": 0.3,
}
MINICPM = DEEPSEEK | {
    "scale_emb": 3,
    "scale_depth": 1.1,
    "dim_model_base": 8,
    "head_dim": 4,
}
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
    "gpt_neox_japanese": (
        "gpt_neox_japanese",
        LLAMA | {"intermediate_multiple_size": 2, "rotary_pct": 0.5},
    ),
    "phi": ("phi", LLAMA | {"partial_rotary_factor": 0.5, "qk_layernorm": True}),
    "modernbert-decoder": (
        "modernbert-decoder",
        LLAMA | {"num_hidden_layers": 4, "local_attention": 8, "pad_token_id": UNUSED},
    ),
    "modernbert-decoder, biases": (
        "modernbert-decoder",
        LLAMA
        | {"layer_types": ["sliding_attention", FULL], "local_attention": 8, "norm_bias": True}
        | {"attention_bias": True, "mlp_bias": True, "decoder_bias": False}
        | {"classifier_activation": "relu", "tie_word_embeddings": False}
        | {"pad_token_id": UNUSED},
    ),
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
    "gemma4_text": (
        "gemma4_text",
        GEMMA4
        | {"hidden_size_per_layer_input": 10, "vocab_size_per_layer_input": VOCAB}
        | {"num_kv_shared_layers": 2, "use_double_wide_mlp": True},
    ),
    "gemma4_text, experts, keys as values": (
        "gemma4_text",
        GEMMA4
        | QWEN_EXPERTS
        | {"hidden_size_per_layer_input": 0, "attention_k_eq_v": True, "enable_moe_block": True}
        | {"num_global_key_value_heads": 1, "top_k_experts": 3},
    ),
    "gemma4_unified_text": ("gemma4_unified_text", GEMMA4 | {"attention_bias": True}),
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
    "glm_moe_dsa, choices reused": (
        "glm_moe_dsa",
        DEEPSEEK | SPARSE | {"num_hidden_layers": 5, "index_topk_freq": 2},
    ),
    "deepseek_v4": ("deepseek_v4", COMPRESSED),
    "deepseek_v4, all keys": (
        "deepseek_v4",
        COMPRESSED
        | {"index_topk": 64, "num_hidden_layers": 2, "mlp_layer_types": ["moe"] * 2}
        | {"layer_types": ["compressed_sparse_attention"] * 2, "scoring_func": "sigmoid"}
        | {"compress_rates": RATES | {"compressed_sparse_attention": 6}},
    ),
    "deepseek_v2": ("deepseek_v2", DEEPSEEK | {"routed_scaling_factor": 1.5}),
    "afmoe": (
        "afmoe",
        LLAMA
        | QWEN_EXPERTS
        | WINDOWS
        | {"num_shared_experts": 2, "head_dim": 6, "mup_enabled": True, "route_scale": 1.3},
    ),
    "apertus": ("apertus", LLAMA),
    "apertus1p5_text": ("apertus1p5_text", LLAMA),
    "aria_text": (
        "aria_text",
        LLAMA | {"moe_num_experts": 5, "moe_topk": 2, "moe_num_shared_experts": 2},
    ),
    "axk1": ("axk1", DEEPSEEK),
    "axk2": ("axk2", DEEPSEEK | SPARSE | {"n_group": None, "topk_group": None}),
    "axk2, groups, stretched": (
        "axk2",
        DEEPSEEK
        | SPARSE
        | {"gated_norm_rank": 3, "attention_bias": True}
        | {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 0.5}},
    ),
    "arcee": ("arcee", LLAMA | {"mlp_bias": True}),
    "biogpt": ("biogpt", LLAMA | {"max_position_embeddings": 16}),
    "bitnet": ("bitnet", LLAMA),
    "bloom": ("bloom", {"vocab_size": VOCAB, "hidden_size": 12, "n_layer": 2, "n_head": 3}),
    "codegen": ("codegen", GPTJ),
    "cohere": ("cohere", LLAMA | {"logit_scale": 0.3}),
    "cohere2": ("cohere2", LLAMA | WINDOWS),
    "cohere2_moe": ("cohere2_moe", LLAMA | WINDOWS | QWEN_EXPERTS),
    "dots1": ("dots1", GLM | {"n_shared_experts": 1}),
    "hunyuan_v1_dense": ("hunyuan_v1_dense", LLAMA | {"head_dim": 6}),
    "hunyuan_v1_moe": (
        "hunyuan_v1_moe",
        LLAMA | {"head_dim": 6, "num_experts": 5, "moe_topk": 2},
    ),
    "kolibri1": ("kolibri1", LLAMA | WINDOWS | QWEN_EXPERTS | {"head_dim": 4}),
    "laguna": (
        "laguna",
        LLAMA | WINDOWS | QWEN_EXPERTS | {"head_dim": 8, "shared_expert_intermediate_size": 20},
    ),
    "ministral": ("ministral", LLAMA | WINDOWS | {"head_dim": 6}),
    "nemotron": ("nemotron", LLAMA | {"mlp_bias": True, "head_dim": 4}),
    "openai-gpt": ("openai-gpt", GPT2),
    "cwm": ("cwm", LLAMA | WINDOWS | {"head_dim": 6}),
    "ernie4_5": ("ernie4_5", LLAMA | {"use_bias": True, "head_dim": 6}),
    "ernie4_5_moe": (
        "ernie4_5_moe",
        LLAMA
        | {"num_hidden_layers": 3, "moe_intermediate_size": 12, "moe_num_experts": 5}
        | {"moe_k": 3, "moe_layer_end_index": 1},
    ),
    "exaone4": ("exaone4", LLAMA | WINDOWS),
    "exaone_moe": ("exaone_moe", LLAMA | WINDOWS | QWEN_EXPERTS),
    "ctrl": (
        "ctrl",
        {"vocab_size": VOCAB, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 4}
        | {"dff": 20},
    ),
    "flint": (
        "flint",
        LLAMA
        | QWEN_EXPERTS
        | WINDOWS
        | {"shared_expert_intermediate_size": 20, "head_dim": 6, "mlp_only_layers": [1]},
    ),
    "falcon": ("falcon", FALCON),
    "falcon, two norms, groups": (
        "falcon",
        FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True},
    ),
    "falcon, one after the other": (
        "falcon",
        FALCON | {"parallel_attn": False, "multi_query": False, "bias": True},
    ),
    "flex_olmo": ("flex_olmo", LLAMA | QWEN_EXPERTS),
    "gemma": ("gemma", LLAMA | {"head_dim": 6, "pad_token_id": None}),
    "glm": ("glm", LLAMA | {"head_dim": 8}),
    "glm4": ("glm4", LLAMA | {"head_dim": 8, "attention_bias": True}),
    "glm4_moe, an odd number of features": ("glm4_moe", GLM | {"head_dim": 6}),
    "glm4_moe_lite": ("glm4_moe_lite", DEEPSEEK),
    "gpt_bigcode": ("gpt_bigcode", GPT2),
    "gpt_bigcode, all keys": ("gpt_bigcode", GPT2 | {"multi_query": False}),
    "gpt_neo": (
        "gpt_neo",
        {"vocab_size": VOCAB, "hidden_size": 12, "num_layers": 2, "num_heads": 3}
        | {"attention_types": [[["global", "local"], 1]], "window_size": 4}
        | {"max_position_embeddings": 16},
    ),
    "gptj": ("gptj", GPTJ),
    "granite": ("granite", LLAMA | GRANITE),
    "granite_swa": (
        "granite_swa",
        LLAMA | GRANITE | WINDOWS | {"layer_rope_theta": [50.0, 300.0, 50.0]},
    ),
    "granite_swa, some layers unturned": (
        "granite_swa",
        LLAMA | GRANITE | WINDOWS | {"layer_rope_theta": [50.0, 0, 50.0]},
    ),
    "granitemoe_swa": (
        "granitemoe_swa",
        LLAMA | EXPERTS | GRANITE | WINDOWS | {"shared_intermediate_size": 20},
    ),
    "granitemoe": ("granitemoe", LLAMA | EXPERTS | GRANITE),
    "granitemoeshared": (
        "granitemoeshared",
        LLAMA | EXPERTS | GRANITE | {"shared_intermediate_size": 20},
    ),
    "helium": ("helium", LLAMA | {"head_dim": 4}),
    "hy_v3": ("hy_v3", LLAMA | QWEN_EXPERTS | {"num_hidden_layers": 3, "head_dim": 6}),
    "hy_v4": (
        "hy_v4",
        DEEPSEEK
        | SPARSE
        | {"n_group": 1, "topk_group": 1, "num_hidden_layers": 4, "hc_mult": 3}
        | {"hc_magnitude": 1.5, "hc_eps": 1e-3, "swiglu_limit": 0.5},
    ),
    "hyperclovax": ("hyperclovax", LLAMA | GRANITE),
    "jais2": ("jais2", LLAMA),
    "mellum": (
        "mellum",
        LLAMA | QWEN_EXPERTS | WINDOWS | {"mlp_layer_types": ["dense", "sparse", "sparse"]},
    ),
    "minicpm3": ("minicpm3", MINICPM),
    "minimax_m3_vl_text": (
        "minimax_m3_vl_text",
        LLAMA
        | {"num_hidden_layers": 3, "head_dim": 6, "num_local_experts": 5, "num_experts_per_tok": 2}
        | {"dense_intermediate_size": 12, "shared_intermediate_size": 14, "swiglu_limit": 0.5}
        | {"mlp_layer_types": ["dense", "sparse", "sparse"]},
    ),
    "minimax_m2": ("minimax_m2", LLAMA | EXPERTS | {"head_dim": 6}),
    "ministral3": (
        "ministral3",
        LLAMA
        | {"head_dim": 6}
        | {
            "rope_parameters": YARN
            | {"llama_4_scaling_beta": 0.4}
            | {"original_max_position_embeddings": 4}
        },
    ),
    "nanochat": ("nanochat", LLAMA),
    "olmo": ("olmo", LLAMA | {"clip_qkv": 0.3}),
    "olmo2": ("olmo2", LLAMA),
    "olmo3": ("olmo3", LLAMA | WINDOWS),
    "olmoe": ("olmoe", LLAMA | QWEN_EXPERTS),
    "opt": (
        "opt",
        LLAMA | {"ffn_dim": 20, "max_position_embeddings": 16, "word_embed_proj_dim": 16},
    ),
    "persimmon": ("persimmon", LLAMA | {"num_key_value_heads": 4}),
    "qwen2_moe": (
        "qwen2_moe",
        LLAMA | QWEN_EXPERTS | {"shared_expert_intermediate_size": 20, "mlp_only_layers": [1]},
    ),
    "seed_oss": ("seed_oss", LLAMA | {"head_dim": 6}),
    "smollm3": ("smollm3", LLAMA | {"no_rope_layer_interval": 2, "pad_token_id": None}),
    "solar_open": ("solar_open", GLM),
    "stablelm": ("stablelm", LLAMA | {"use_qkv_bias": True, "partial_rotary_factor": 0.5}),
    "stablelm, side by side": (
        "stablelm",
        LLAMA | {"use_parallel_residual": True, "partial_rotary_factor": 0.5},
    ),
    "starcoder2": ("starcoder2", LLAMA | {"sliding_window": 4}),
    "vaultgemma": ("vaultgemma", GEMMA),
    "xglm": (
        "xglm",
        {"vocab_size": VOCAB, "d_model": 16, "num_layers": 2, "attention_heads": 4}
        | {"ffn_dim": 20, "max_position_embeddings": 16},
    ),
    "youtu": ("youtu", DEEPSEEK),
}


class _InFloat64(overrides.TorchFunctionMode):  # type: ignore[misc, name-defined]
    """Mode in which what a module asks of PyTorch in float32 is done in float64."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        function = torch.Tensor.double if function is torch.Tensor.float else function
        wide = [torch.float64 if value is torch.float32 else value for value in args]
        named = {
            name: torch.float64 if value is torch.float32 else value
            for name, value in (kwargs or {}).items()
        }
        return function(*wide, **named)


@contextmanager
def in_float64() -> Iterator[None]:
    """Norms, angles and scores that transformers has in float32 whatever a module's dtype."""
    torch.set_default_dtype(torch.float64)
    try:
        with _InFloat64():
            yield
    finally:
        torch.set_default_dtype(torch.float32)


def configuration(case: str) -> Any:
    """Configuration of a case; without a token for padding, whose embedding would not learn."""
    model_type, values = CASES[case]
    config = transformers.AutoConfig.for_model(model_type, **{"pad_token_id": None} | values)
    config._experts_implementation = "eager"  # the grouped product is not for float64
    return config


def lively(config: Any) -> Any:
    """A module of random float64 values, norms and biases too, so that no parameter is idle."""
    config._attn_implementation = "eager"  # whose products PyTorch counts once
    torch.manual_seed(1)
    with in_float64():
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
    spec = read_config(folder, seq_len=SEQ_LEN, precision="fp64")
    if spec.family == "decoder":
        spec = msgspec.structs.replace(spec, config=spec.config | changes)
    return build(spec, BATCH)
