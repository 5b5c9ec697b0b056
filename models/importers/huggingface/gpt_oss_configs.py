"""Configs of gpt-oss: attention sinks, windows in every other layer, biases, SwiGLU cut off.

Its router takes a softmax over the chosen scores alone, which is that over all of them, made to sum
to one.
"""

from typing import Any

from millrace.models.importers.huggingface.decoders import (
    LLAMA,
    attention_biases,
    base_fields,
    full_layers,
    with_defaults,
)
from millrace.models.importers.huggingface.expert_configs import (
    CAPACITY_FACTOR,
    EXPERTS_MAX,
    balance_fields,
)
from millrace.models.importers.huggingface.keys import LAYERS_MAX, Keys
from millrace.models.importers.huggingface.mapping import Mapped, ModelType

GPT_OSS: dict[str, Any] = LLAMA | {
    "vocab_size": 201088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "head_dim": 64,
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "attention_bias": True,
    "swiglu_limit": 7.0,
    "swiglu_alpha": 1.702,
    "rope_theta": 150000.0,
    "router_aux_loss_coef": 0.001,
    "output_router_logits": False,
}
# The class stretches positions like this where the file says nothing of them.
STRETCHED = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def _gpt_oss(keys: Keys, _: str) -> Mapped:
    layers = keys.integer("num_hidden_layers", most=LAYERS_MAX)
    if not keys.has("rope_scaling") and not keys.has("rope_parameters"):
        keys = keys.over({"rope_parameters": STRETCHED})
    window = keys.integer("sliding_window", null=0)
    fields = base_fields(keys) | attention_biases(keys) | balance_fields(keys, layers)
    fields |= {
        "window": window,
        "full_layers": full_layers(keys, range(1, layers, 2)) if window else (),
        "sinks": True,
        "gate_cap": keys.number("swiglu_limit", least=1e-6),
        "gate_slope": keys.number("swiglu_alpha", least=1e-6),
        "experts": keys.integer("num_local_experts", most=EXPERTS_MAX),
        "experts_per_token": keys.integer("num_experts_per_tok"),
        "expert_hidden": keys.integer("intermediate_size"),
        "expert_bias": True,
        "router_bias": True,
        "capacity_factor": CAPACITY_FACTOR,
    }
    return Mapped("decoder", fields, keys.integer("max_position_embeddings"))


MODEL_TYPES = {
    "gpt_oss": ModelType(
        ("GptOssForCausalLM",),
        with_defaults(
            GPT_OSS,
            _gpt_oss,
            {"num_experts": "num_local_experts", "experts_per_token": "num_experts_per_tok"},
        ),
    ),
}
