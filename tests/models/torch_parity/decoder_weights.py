"""Tables from parameters of transformers' decoders to variables of the zoo's.

A table says for every part of a layer what becomes of its weight (and bias): torch keeps a linear
layer as [outputs, inputs], and some models keep several of ours in one.

Shape legend of fused weights: h heads, d features of a head, k read, f features of a gate.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from millrace.models.arrays import Array
from millrace.models.graph import Graph

Parts = dict[str, Array]  # our name, without `.weight` or `.bias`: value
Rule = Callable[[Array, Any], Parts]

LAYER = re.compile(r"(?:model\.layers|gpt_neox\.layers|transformer\.(?:h|blocks))\.(\d+)\.(.+)")


def translated(named: Mapping[str, Array], config: Any, graph: Graph) -> dict[str, Array]:
    """Values (or gradients) of our variables from those of a torch module's parameters."""
    variables: dict[str, Array] = {}
    for name, value in named.items():
        layer = LAYER.fullmatch(name)
        block, inner = (f"h.{layer[1]}.", layer[2]) if layer else ("", name)
        part, kind = inner, "weight"
        if inner.endswith((".weight", ".bias")):
            part, _, kind = inner.rpartition(".")
        elif inner.endswith("_bias"):
            kind = "bias"
        for ours, array in RULES[part](value, config).items():
            full = f"{block}{ours}.{kind}"
            variables[full] = np.ascontiguousarray(array).reshape(graph.tensor(full).shape)
    return variables


def shifted(name: str, value: Array, config: Any) -> Array:
    """Value of a parameter where a one that the model adds to it is part of it.

    Gemma's norms multiply by one plus their weight.
    """
    if config.model_type.startswith("gemma") and "norm" in name:
        return value + 1
    return value


def linear(ours: str) -> Rule:
    return lambda value, config: {ours: value.T}


def same(ours: str) -> Rule:
    return lambda value, config: {ours: value}


def queries_keys_values(value: Array, config: Any) -> Parts:
    """[(c h d), k] or a bias; GPT-2 keeps [k, (c h d)]."""
    parts = np.split(value, 3, axis=-1 if config.model_type == "gpt2" else 0)
    if config.model_type != "gpt2":
        parts = [part.T for part in parts]
    return dict(zip(("attn.q", "attn.k", "attn.v"), parts, strict=True))


def by_heads(value: Array, config: Any) -> Parts:
    """[(h c d), k] or a bias."""
    heads = value.reshape(config.num_attention_heads, 3, -1, *value.shape[1:])
    return {
        f"attn.{part}": heads[:, position].reshape(-1, *value.shape[1:]).T
        for position, part in enumerate(("q", "k", "v"))
    }


def grouped(value: Array, config: Any) -> Parts:
    """[(h + g + g) d, k]: more queries than keys and values."""
    dim = config.hidden_size // config.num_attention_heads
    ends = np.cumsum([config.num_attention_heads * dim, config.num_key_value_heads * dim])
    q, k, v = np.split(value, ends)
    return {"attn.q": q.T, "attn.k": k.T, "attn.v": v.T}


def halves(value: Array, config: Any) -> Parts:
    gate, up = np.split(value, 2)
    return {"mlp.gate": gate.T, "mlp.up": up.T}


def second_norm(value: Array, config: Any) -> Parts:
    return {"attn.post" if config.model_type.startswith("gemma") else "ln2": value}


def expert_halves(value: Array, config: Any) -> Parts:
    if config.model_type == "gpt_oss":  # a feature of each in turn
        return {"experts.gate": value[..., ::2], "experts.up": value[..., 1::2]}
    inputs_first = value if config.model_type == "llama4_text" else value.transpose(0, 2, 1)
    gate, up = np.split(inputs_first, 2, axis=2)
    return {"experts.gate": gate, "experts.up": up}


def turned_first(value: Array, config: Any) -> Parts:
    """[(h d), k] with the features that turn behind the others; with us they come first."""
    if not hasattr(config, "qk_nope_head_dim"):
        return {"attn.q": value.T}
    heads = value.reshape(config.num_attention_heads, -1, value.shape[1])
    plain, turned = np.split(heads, [config.qk_nope_head_dim], axis=1)
    return {"attn.q": np.concatenate([turned, plain], axis=1).reshape(value.shape).T}


def latent_and_shared(value: Array, config: Any) -> Parts:
    latent, shared = np.split(value, [config.kv_lora_rank])
    return {"attn.kv.latent": latent.T, "attn.k.shared": shared.T}


def keys_and_values(value: Array, config: Any) -> Parts:
    heads = value.reshape(config.num_attention_heads, -1, value.shape[1])
    keys, values = np.split(heads, [config.qk_nope_head_dim], axis=1)
    return {
        "attn.k": keys.reshape(-1, value.shape[1]).T,
        "attn.v": values.reshape(-1, value.shape[1]).T,
    }


RULES: dict[str, Rule] = {
    **dict.fromkeys(
        ("model.embed_tokens", "gpt_neox.embed_in", "transformer.wte"), same("embedding.tokens")
    ),
    "transformer.wpe": same("embedding.positions"),
    **dict.fromkeys(
        (
            *("model.norm", "model.final_layernorm", "gpt_neox.final_layer_norm"),
            *("transformer.ln_f", "transformer.norm_f"),
        ),
        same("head.ln"),
    ),
    "lm_head": linear("head.logits"),
    **dict.fromkeys(("input_layernorm", "ln_1", "norm_1"), same("ln1")),
    **dict.fromkeys(("ln_2", "norm_2", "pre_feedforward_layernorm"), same("ln2")),
    "post_attention_layernorm": second_norm,
    "post_feedforward_layernorm": same("mlp.post"),
    "self_attn.sinks": same("attn.sinks"),
    "self_attn.q_proj": turned_first,
    "self_attn.q_b_proj": turned_first,
    "self_attn.k_proj": linear("attn.k"),
    "self_attn.v_proj": linear("attn.v"),
    **dict.fromkeys(
        ("self_attn.o_proj", "self_attn.dense", "attention.dense", "attn.out_proj"),
        linear("attn.out"),
    ),
    **dict.fromkeys(("self_attn.q_norm", "self_attn.q_layernorm"), same("attn.q.norm")),
    **dict.fromkeys(("self_attn.k_norm", "self_attn.k_layernorm"), same("attn.k.norm")),
    "self_attn.qkv_proj": grouped,
    "attention.query_key_value": by_heads,
    "attn.Wqkv": queries_keys_values,
    "attn.c_attn": queries_keys_values,
    "attn.c_proj": same("attn.out"),
    "mlp.c_fc": same("mlp.fc1"),
    "mlp.c_proj": same("mlp.fc2"),
    "self_attn.q_a_proj": linear("attn.q.latent"),
    "self_attn.q_a_layernorm": same("attn.q.latent.norm"),
    "self_attn.kv_a_proj_with_mqa": latent_and_shared,
    "self_attn.kv_a_layernorm": same("attn.kv.latent.norm"),
    "self_attn.kv_b_proj": keys_and_values,
    "self_attn.indexer.wq_b": linear("attn.index.q"),
    "self_attn.indexer.wk": linear("attn.index.k"),
    "self_attn.indexer.k_norm": same("attn.index.k.norm"),
    "self_attn.indexer.weights_proj": linear("attn.index.weights"),
    **dict.fromkeys(("mlp.gate_proj", "feed_forward.gate_proj"), linear("mlp.gate")),
    **dict.fromkeys(
        (
            *("mlp.up_proj", "mlp.fc1", "mlp.dense_h_to_4h", "ffn.up_proj"),
            "feed_forward.up_proj",
        ),
        linear("mlp.up"),
    ),
    **dict.fromkeys(
        (
            *("mlp.down_proj", "mlp.fc2", "mlp.dense_4h_to_h", "ffn.down_proj"),
            "feed_forward.down_proj",
        ),
        linear("mlp.down"),
    ),
    "mlp.gate_up_proj": halves,
    **dict.fromkeys(("mlp.gate", "mlp.router", "feed_forward.router"), linear("experts.router")),
    **dict.fromkeys(
        (
            *("mlp.experts.gate_up_proj", "mlp.experts.gate_up_proj_bias"),
            "feed_forward.experts.gate_up_proj",
        ),
        expert_halves,
    ),
    "mlp.experts.down_proj": lambda value, config: {
        "experts.down": value if config.model_type == "gpt_oss" else value.transpose(0, 2, 1)
    },
    **dict.fromkeys(
        ("mlp.experts.down_proj_bias", "feed_forward.experts.down_proj"), same("experts.down")
    ),
    **{
        f"{experts}.{part}_proj": linear(f"shared.{part}")
        for experts in ("mlp.shared_experts", "feed_forward.shared_expert")
        for part in ("gate", "up", "down")
    },
}
