"""Reduced decoders that go through the sequence by a state, as configurations of transformers.

Shape legend of fused weights: g groups of r heads, n rows of a state, p features of a value.
"""

from typing import Any

from tests.models.torch_parity.decoder_cases import DEEPSEEK, LLAMA, QWEN_EXPERTS

LINEAR, FULL = "linear_attention", "full_attention"
HYBRID = LLAMA | {"num_hidden_layers": 4}
KINDS = {"layer_types": [LINEAR, LINEAR, FULL, LINEAR]}
# Heads of values, of keys, their features: 4 values of 8, or 2 groups.
STATE_SPACE: dict[str, Any] = {
    "mamba_n_heads": 4,
    "mamba_n_groups": 2,
    "mamba_d_state": 5,
    "mamba_chunk_size": 4,
}
NEMOTRON = HYBRID | {
    "layers_block_type": [LINEAR, FULL, "moe", "mlp", LINEAR],
    "head_dim": 6,
    "mamba_num_heads": 4,
    "mamba_head_dim": 6,
    "n_groups": 2,
    "ssm_state_size": 5,
    "chunk_size": 4,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "moe_intermediate_size": 12,
    "moe_shared_expert_intermediate_size": 14,
    "routed_scaling_factor": 2.5,
}
DELTA: dict[str, Any] = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 5,
}
QWEN = HYBRID | DELTA | KINDS | {"head_dim": 8}
SHARED = {"shared_expert_intermediate_size": 20}
KIMI = DEEPSEEK | KINDS | {
    "num_hidden_layers": 4,
    "num_experts": 8,
    "linear_num_heads": 3,
    "linear_head_dim": 6,
    "q_lora_rank": None,
}  # fmt: skip
KIMI = {name: value for name, value in KIMI.items() if name != "n_routed_experts"}
BAILING = {name: value for name, value in KIMI.items() if not name.startswith("linear_")}
BAILING |= {"head_dim": 6, "num_key_value_heads": 4, "kda_lower_bound": -3.0}

HYBRIDS: dict[str, tuple[str, dict[str, Any]]] = {
    "mamba2": (
        "mamba2",
        {"hidden_size": 16, "num_hidden_layers": 3, "num_heads": 4, "head_dim": 8, "n_groups": 2}
        | {"state_size": 5, "chunk_size": 4, "time_step_limit": [0.5, 0.9], "use_bias": True},
    ),
    "nemotron_h": ("nemotron_h", NEMOTRON),
    "nemotron_h, narrow experts": (
        "nemotron_h",
        NEMOTRON | {"moe_latent_size": 10, "mlp_bias": True, "time_step_min": 0.5},
    ),
    "bamba": ("bamba", HYBRID | STATE_SPACE | {"attn_layer_indices": [1, 2], "mlp_bias": True}),
    "granitemoehybrid": (
        "granitemoehybrid",
        HYBRID | STATE_SPACE | KINDS
        | {"num_local_experts": 5, "num_experts_per_tok": 2, "shared_intermediate_size": 20}
        | {"embedding_multiplier": 3.0, "residual_multiplier": 0.4, "logits_scaling": 0.7},
    ),
    "granitemoehybrid, dense, turned": (
        "granitemoehybrid",
        HYBRID | STATE_SPACE | KINDS | {"num_local_experts": 0, "shared_intermediate_size": 20}
        | {"position_embedding_type": "rope", "mamba_n_groups": 1},
    ),
    "falcon_h1": (
        "falcon_h1",
        HYBRID | STATE_SPACE | {"mamba_d_ssm": 24, "mamba_conv_bias": False}
        | {"embedding_multiplier": 3.0, "lm_head_multiplier": 0.4, "key_multiplier": 0.6}
        | {"attention_in_multiplier": 1.1, "attention_out_multiplier": 0.8}
        | {"ssm_in_multiplier": 1.3, "ssm_out_multiplier": 0.7, "mlp_multipliers": [0.9, 1.4]}
        | {"ssm_multipliers": [0.5, 0.6, 0.7, 0.8, 0.9]},
    ),
    "falcon_h1, normed": (
        "falcon_h1",
        HYBRID | STATE_SPACE | {"mamba_d_ssm": 24, "mamba_rms_norm": True}
        | {"mamba_norm_before_gate": False},
    ),
    "qwen3_next": ("qwen3_next", QWEN | QWEN_EXPERTS | SHARED | {"mlp_only_layers": [1]}),
    "qwen3_5_text": ("qwen3_5_text", QWEN),
    "qwen3_5_moe_text": ("qwen3_5_moe_text", QWEN | QWEN_EXPERTS | SHARED),
    "olmo_hybrid": ("olmo_hybrid", HYBRID | KINDS | {"linear_num_value_heads": 8}),
    "kimi_linear": ("kimi_linear", KIMI),
    "bailing_hybrid": ("bailing_hybrid", BAILING),
    "bailing_hybrid, without bound": (
        "bailing_hybrid",
        BAILING | {"kda_safe_gate": False, "q_lora_rank": 8, "layer_group_size": 2},
    ),
    "lfm2": (
        "lfm2",
        LLAMA | {"num_hidden_layers": 3, "full_attn_idxs": [1], "block_auto_adjust_ff_dim": False},
    ),
    "recurrent_gemma": (
        "recurrent_gemma",
        HYBRID | {"attention_window_size": 4, "lru_width": 24, "intermediate_size": 40},
    ),
    "recurrent_gemma, no attention": (
        "recurrent_gemma",
        HYBRID | {"num_hidden_layers": 2, "use_cache": False},
    ),
    "lara_mini": (
        "lara_mini",
        HYBRID | DELTA | QWEN_EXPERTS | SHARED | {"head_dim": 8, "sliding_window": 4},
    ),
    "lara_mini, layers by name": (
        "lara_mini",
        HYBRID | DELTA | QWEN_EXPERTS | SHARED | KINDS | {"head_dim": 8, "attention_bias": True},
    ),
    "lfm3": ("lfm3", LLAMA | {"num_hidden_layers": 5, "head_dim": 8, "sliding_window": 4}),
    "lfm3, plain": (
        "lfm3",
        LLAMA | {"num_hidden_layers": 3, "head_dim": 8, "attention_bias": True}
        | {"use_sandwich_norm": False, "use_attention_gate": False},
    ),
}  # fmt: skip
