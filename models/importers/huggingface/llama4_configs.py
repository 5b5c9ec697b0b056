"""Configs of Llama 4: one expert a token and a shared one, chunks, layers that turn nothing.

Of a model with images the part for text is read. Chunks are read, and noted where sequences are
longer: graphs have windows of their mean length.
"""

from typing import Any

from millrace.models.importers.huggingface.decoders import (
    LLAMA,
    attention_biases,
    base_fields,
    full_layers,
)
from millrace.models.importers.huggingface.expert_configs import (
    CAPACITY_FACTOR,
    EXPERTS_MAX,
    balance_fields,
)
from millrace.models.importers.huggingface.gemma_configs import TEXT_ONLY
from millrace.models.importers.huggingface.keys import LAYERS_MAX, Keys
from millrace.models.importers.huggingface.mapping import Mapped, ModelType
from millrace.models.spec import Config

LLAMA4: dict[str, Any] = LLAMA | {
    "vocab_size": 202048,
    "hidden_size": 5120,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "num_hidden_layers": 48,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "num_local_experts": 16,
    "num_experts_per_tok": 1,
    "interleave_moe_layer_step": 1,
    "no_rope_layer_interval": 4,
    "use_qk_norm": True,
    "attention_chunk_size": 8192,
    "attn_temperature_tuning": True,
    "floor_scale": 8192,
    "attn_scale": 0.1,
    "router_aux_loss_coef": 0.001,
    "router_jitter_noise": 0.0,
    "output_router_logits": False,
}
WITH_IMAGES = "Llama4ForConditionalGeneration"


def _llama4(keys: Keys, architecture: str) -> Mapped:
    notes: tuple[str, ...] = ()
    if architecture == WITH_IMAGES:
        keys, notes = keys.section("text_config"), (TEXT_ONLY,)
    keys = keys.over(LLAMA4)
    if keys.number("router_jitter_noise"):
        raise keys.error("router_jitter_noise", "noise on what a router reads is not supported: 0")
    layers = keys.integer("num_hidden_layers", most=LAYERS_MAX)
    dense = _dense_layers(keys, layers)
    width = keys.integer("intermediate_size")
    fields = base_fields(keys) | attention_biases(keys) | _positions(keys, layers)
    fields |= balance_fields(keys, layers - len(dense))
    fields |= {
        "qk_norm": "unscaled" if keys.flag("use_qk_norm") else "",
        "ffn_hidden": keys.integer("intermediate_size_mlp"),
        "experts": keys.integer("num_local_experts", most=EXPERTS_MAX),
        "experts_per_token": keys.integer("num_experts_per_tok"),
        "expert_hidden": width,
        "shared_hidden": width,
        "dense_layers": dense,
        "router": "sigmoid",
        "normalize_weights": False,
        "weigh_inputs": True,
        "capacity_factor": CAPACITY_FACTOR,
    }
    return Mapped("decoder", fields, keys.integer("max_position_embeddings"), notes)


def _positions(keys: Keys, layers: int) -> Config:
    """Fields of chunks and of layers without rotary positions; these see all keys."""
    turned = keys.integers("no_rope_layers", (), null=(), least=0, most=1)
    step = keys.integer("no_rope_layer_interval")
    if not turned:  # 1 stands for a layer that turns
        turned = tuple(int((layer + 1) % step != 0) for layer in range(layers))
    if len(turned) < layers:
        raise keys.error("no_rope_layers", f"expected a number for each of {layers} layers")
    unturned = tuple(layer for layer in range(layers) if not turned[layer])
    chunk = keys.integer("attention_chunk_size", null=0)
    everywhere = unturned if chunk else range(layers)
    tempered = keys.has("attn_temperature_tuning") and keys.values["attn_temperature_tuning"]
    full = full_layers(keys, everywhere, "chunked_attention")
    return {
        "rope_interleaved": True,
        "unturned_layers": unturned,
        "chunk": chunk if len(full) < layers else 0,
        "full_layers": full if chunk and len(full) < layers else (),
        "tempered_from": keys.integer("floor_scale") if tempered and unturned else 0,
        "tempered_scale": keys.number("attn_scale"),
    }


def _dense_layers(keys: Keys, layers: int) -> tuple[int, ...]:
    """Return the layers that have no experts, as `moe_layers` or every so many say."""
    step = keys.integer("interleave_moe_layer_step")
    mixed = set(range(step - 1, layers, step))
    if keys.has("moe_layers"):
        mixed = set(keys.integers("moe_layers", least=0))
    return tuple(layer for layer in range(layers) if layer not in mixed)


MODEL_TYPES = {
    "llama4": ModelType((WITH_IMAGES,), _llama4),
    "llama4_text": ModelType(("Llama4ForCausalLM",), _llama4),
}
