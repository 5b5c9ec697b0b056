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

LAYER = re.compile(
    r"(?:(?:model|model\.decoder|gpt_neox(?:_japanese)?|biogpt)\.layers|transformer\.(?:h|blocks))\.(\d+)\.(.+)"
)


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
        part = part.removeprefix("attn.attention.")
        for ours, array in RULES[part](value, config).items():
            whole_name = "alpha" in ours or ours.endswith(".bias")
            full = f"{block}{ours}" if whole_name else f"{block}{ours}.{kind}"
            variables[full] = np.ascontiguousarray(array).reshape(graph.tensor(full).shape)
    return variables


def shifted(name: str, value: Array, config: Any) -> Array:
    """Value of a parameter where a one that the model adds to it is part of it.

    Gemma's norms multiply by one plus their weight.
    """
    if config.model_type == "nemotron" and "norm" in name:
        return value + name.endswith("weight")
    one_plus = "gemma" in config.model_type and "gemma4" not in config.model_type
    if (one_plus or "minimax_m3" in config.model_type) and "norm" in name:
        return value + 1
    return value


def linear(ours: str) -> Rule:
    return lambda value, config: {ours: value.T}


def same(ours: str) -> Rule:
    return lambda value, config: {ours: value}


def queries_keys_values(value: Array, config: Any) -> Parts:
    """[(c h d), k] or a bias; GPT-2 keeps [k, (c h d)]."""
    parts = np.split(value, 3, axis=-1 if config.model_type in GPTS else 0)
    if config.model_type not in GPTS:
        parts = [part.T for part in parts]
    return dict(zip(("attn.q", "attn.k", "attn.v"), parts, strict=True))


def by_heads(value: Array, config: Any) -> Parts:
    """[(h c d), k] or a bias; Falcon's new form has a key and a value for several queries."""
    if getattr(config, "multi_query", False):
        return by_groups(value, config)
    heads = value.reshape(config.num_attention_heads, 3, -1, *value.shape[1:])
    return {
        f"attn.{part}": heads[:, position].reshape(-1, *value.shape[1:]).T
        for position, part in enumerate(("q", "k", "v"))
    }


def by_groups(value: Array, config: Any) -> Parts:
    """[(g (r + 2) d), k]: the queries of a group, its key, its value."""
    groups = config.num_kv_heads if config.new_decoder_architecture else 1
    dim = config.hidden_size // config.num_attention_heads
    rows = value.reshape(groups, -1, dim, *value.shape[1:])
    parts = {"q": rows[:, :-2], "k": rows[:, -2], "v": rows[:, -1]}
    return {f"attn.{part}": rows.reshape(-1, *value.shape[1:]).T for part, rows in parts.items()}


def in_quarters(value: Array, config: Any) -> Parts:
    """[(4 c d'), k]: CodeGen keeps a quarter of the queries, values and keys by turns."""
    rows = value.reshape(4, 3, -1, value.shape[1])
    return {
        f"attn.{part}": rows[:, place].reshape(-1, value.shape[1]).T
        for place, part in enumerate(("q", "v", "k"))
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


INPUTS_FIRST = ("gpt_oss", "llama4_text", "aria_text")  # whose experts are [inputs, outputs]
GPTS = ("gpt2", "openai-gpt")  # whose linear layers are [inputs, outputs]
NORM_BEHIND_ATTENTION = (
    *("gemma2", "gemma3_text", "gemma4_text", "gemma4_unified_text", "olmo2", "olmo3", "exaone4"),
    *("flex_olmo", "afmoe"),
)


def second_norm(value: Array, config: Any) -> Parts:
    return {"attn.post" if config.model_type in NORM_BEHIND_ATTENTION else "ln2": value}


def attention_in(value: Array, config: Any) -> Parts:
    """GPT-2's and StarCoder's one product for queries, keys and values, transposed in GPT-2."""
    if config.model_type in GPTS:
        return queries_keys_values(value, config)
    dim = config.hidden_size // config.num_attention_heads
    keys = dim if config.multi_query else config.hidden_size
    if not config.multi_query:
        rows = value.reshape(config.num_attention_heads, 3, dim, *value.shape[1:])
        parts = [rows[:, part].reshape(-1, *value.shape[1:]) for part in range(3)]
    else:
        parts = np.split(value, [config.hidden_size, config.hidden_size + keys])
    return {f"attn.{name}": part.T for name, part in zip("qkv", parts, strict=True)}


def second_layer(ours: str, gpt2: str = "") -> Rule:
    """[outputs, inputs], or [inputs, outputs] in GPTs; the zoo's GPT has names of its own."""
    return lambda value, config: {
        gpt2 if gpt2 and config.model_type == "gpt2" else ours: (
            value if config.model_type in GPTS else value.T
        )
    }


def expert_halves(value: Array, config: Any) -> Parts:
    if config.model_type == "gpt_oss":  # a feature of each in turn
        return {"experts.gate": value[..., ::2], "experts.up": value[..., 1::2]}
    inputs_first = value if config.model_type in INPUTS_FIRST else value.transpose(0, 2, 1)
    gate, up = np.split(inputs_first, 2, axis=2)
    return {"experts.gate": gate, "experts.up": up}


def keys_alone(value: Array, config: Any) -> Parts:
    return {"attn.k": turning_gathered(halves_swapped(value, config), config).T}


def turning_gathered(value: Array, config: Any) -> Array:
    """[(h d), ...] with the features that turn in front, in Gemma 4's layers that see all keys.

    Of these the first so many of each half of a head turn, there.
    """
    if "gemma4" not in config.model_type:
        return value
    kinds = ("full_attention", "sliding_attention")
    dim, other = (config.per_layer_config[kind].head_dim for kind in kinds)
    if value.shape[0] % dim or not value.shape[0] % other:
        return value
    return turning_first(value, config, dim)


def turning_first(value: Array, config: Any, dim: int) -> Array:
    """[(h d), ...] with the first so many features of each half of a head in front."""
    turned = config.rope_parameters["full_attention"]["partial_rotary_factor"] * dim // 2
    halves = value.reshape(-1, 2, dim // 2, *value.shape[1:])
    parts = np.split(halves, [int(turned)], axis=2)
    rows = [part.reshape(len(halves), -1, *value.shape[1:]) for part in parts]
    return np.concatenate(rows, axis=1).reshape(value.shape)


def heads_out(value: Array, config: Any) -> Parts:
    """[n, (h d)]; values that are the keys have the order of their features."""
    same = getattr(config, "attention_k_eq_v", False)
    return {"attn.out": turning_gathered(value.T, config) if same else value.T}


def by_layer(ours: str, axis: int) -> Rule:
    """Pieces of one parameter for all layers, of which ours are [inputs, outputs]."""

    def rule(value: Array, config: Any) -> Parts:
        pieces = np.split(value if axis else value.T, config.num_hidden_layers, axis=1)
        return {f"h.{layer}.{ours}": piece for layer, piece in enumerate(pieces)}

    return rule


def halves_swapped(value: Array, config: Any) -> Array:
    """[(h d), k] with the halves of a head swapped in NanoChat, which turns the other way round."""
    if config.model_type != "nanochat":
        return value
    half = config.hidden_size // config.num_attention_heads // 2
    rows = value.reshape(-1, 2, half, *value.shape[1:])
    return rows[:, ::-1].reshape(value.shape)


def turned_first(value: Array, config: Any) -> Parts:
    """[(h d), k] with the features that turn behind the others; with us they come first."""
    value = turning_gathered(halves_swapped(value, config), config)
    if config.model_type == "deepseek_v4":
        return {"attn.q": turned_to_front(value, config, config.head_dim).T}
    if not hasattr(config, "qk_nope_head_dim"):
        return {"attn.q": value.T}
    heads = value.reshape(config.num_attention_heads, -1, value.shape[1])
    plain, turned = np.split(heads, [config.qk_nope_head_dim], axis=1)
    return {"attn.q": np.concatenate([turned, plain], axis=1).reshape(value.shape).T}


def turned_to_front(value: Array, config: Any, size: int) -> Array:
    """[(h d), ...] with the last features of every `size`, which turn, in front of the others."""
    heads = value.reshape(-1, size, *value.shape[1:])
    plain, turned = np.split(heads, [size - config.qk_rope_head_dim], axis=1)
    return np.concatenate([turned, plain], axis=1).reshape(value.shape)


def of_keys(ours: str, *, indexer: bool = False) -> Rule:
    """Parameters of DeepSeek-V4's keys: [d], [(z d), k], or [r, (z d)] of positions in a key."""

    def rule(value: Array, config: Any) -> Parts:
        size = config.index_head_dim if indexer else config.head_dim
        rows = value.T if ours.endswith("logits.bias") else value
        front = turned_to_front(rows, config, size)
        return {ours: front if front.ndim == 1 else front.T}

    return rule


def of_index(ours: str) -> Rule:
    """Parameters of an indexer, whose turned features come last in Hy4."""
    last, first = of_keys(ours, indexer=True), linear(ours)
    return lambda value, config: (last if config.model_type == "hy_v4" else first)(value, config)


def grouped_out(value: Array, config: Any) -> Parts:
    """[(g r), (h d)]: every group's heads by themselves."""
    rows = value.reshape(config.o_groups, config.o_lora_rank, -1).transpose(0, 2, 1)
    flat = turned_to_front(rows.reshape(-1, rows.shape[-1]), config, config.head_dim)
    return {"attn.out.narrow": flat}


def of_streams(ours: str, last: str = "") -> Rule:
    """Numbers for what is read of streams, for a part's output, and for the streams mixed."""

    def rule(value: Array, config: Any) -> Parts:
        ends = (1, 2) if last else (config.hc_mult, 2 * config.hc_mult)
        pieces = np.split(value, ends)
        named = zip(("read", "output", "mixing"), pieces, strict=True)
        return {f"{ours}.{name}{last or '.bias'}": piece for name, piece in named if piece.size}

    return rule


def latent_and_shared(value: Array, config: Any) -> Parts:
    latent, shared = np.split(value, [config.kv_lora_rank])
    return {"attn.kv.latent": latent.T, "attn.k.shared": shared.T}


def queries_and_gates(value: Array, config: Any) -> Parts:
    """[(h (d + u)), 2 c]: the query of every head, of A.X-K2, and the gate of what it makes."""
    heads = value.reshape(config.num_attention_heads, -1, value.shape[1])
    queries, gates = np.split(heads, [config.qk_nope_head_dim + config.qk_rope_head_dim], axis=1)
    parts = turned_first(queries.reshape(-1, value.shape[1]), config)
    return parts | {"attn.gate": gates.reshape(-1, value.shape[1]).T}


def keys_and_values(value: Array, config: Any) -> Parts:
    heads = value.reshape(config.num_attention_heads, -1, value.shape[1])
    keys, values = np.split(heads, [config.qk_nope_head_dim], axis=1)
    return {
        "attn.k": keys.reshape(-1, value.shape[1]).T,
        "attn.v": values.reshape(-1, value.shape[1]).T,
    }


RULES: dict[str, Rule] = {
    **dict.fromkeys(
        (
            *("model.embed_tokens", "gpt_neox.embed_in", "transformer.wte", "biogpt.embed_tokens"),
            *("gpt_neox_japanese.embed_in", "model.embeddings.tok_embeddings"),
            *("transformer.word_embeddings", "model.decoder.embed_tokens"),
            *("transformer.tokens_embed", "transformer.w"),
        ),
        same("embedding.tokens"),
    ),
    **dict.fromkeys(
        (
            *("transformer.wpe", "model.decoder.embed_positions", "biogpt.embed_positions"),
            "transformer.positions_embed",
        ),
        same("embedding.positions"),
    ),
    "transformer.word_embeddings_layernorm": same("embedding.ln"),
    **dict.fromkeys(
        (
            *("model.norm", "model.final_layernorm", "gpt_neox.final_layer_norm"),
            *("gpt_neox_japanese.final_layer_norm", "model.final_norm"),
            *("transformer.ln_f", "transformer.norm_f"),
            *("model.decoder.final_layer_norm", "biogpt.layer_norm"),
            *("model.layer_norm", "transformer.layernorm"),
        ),
        same("head.ln"),
    ),
    **dict.fromkeys(("lm_head", "decoder"), linear("head.logits")),
    "model.embeddings.norm": same("embedding.ln"),
    "lm_head.dense": linear("head.transform"),
    "lm_head.norm": same("head.transform.norm"),
    "attn_norm": same("ln1"),
    "mlp_norm": same("ln2"),
    "attn.Wo": linear("attn.out"),
    "mlp.Wi": halves,
    "mlp.Wo": linear("mlp.down"),
    **dict.fromkeys(
        (
            *("input_layernorm", "ln_1", "norm_1", "self_attn_layer_norm", "ln_attn"),
            *("attention_layernorm", "layernorm1"),
        ),
        same("ln1"),
    ),
    **dict.fromkeys(
        (
            *("ln_2", "norm_2", "pre_feedforward_layernorm", "final_layer_norm", "ln_mlp"),
            *("pre_mlp_layernorm", "feedforward_layernorm", "layernorm2"),
        ),
        same("ln2"),
    ),
    **dict.fromkeys(("post_self_attn_layernorm", "post_norm1"), same("attn.post")),
    **dict.fromkeys(("post_mlp_layernorm", "post_norm2"), same("mlp.post")),
    "post_attention_layernorm": second_norm,
    **{
        f"{theirs}.{part}": rule
        for theirs, ours in (("input_layernorm", "ln1"), ("post_attention_layernorm", "ln2"))
        for part, rule in (
            ("norm", same(ours)),
            ("mlp.fc1", linear(f"{ours}.gate.narrow")),
            ("mlp.fc2", linear(f"{ours}.gate.widen")),
        )
    },
    "self_attn.q_gate_proj": queries_and_gates,
    "post_feedforward_layernorm": same("mlp.post"),
    "self_attn.sinks": same("attn.sinks"),
    "self_attn.q_proj": turned_first,
    "self_attn.q_b_proj": turned_first,
    "self_attn.k_proj": keys_alone,
    "self_attn.v_proj": linear("attn.v"),
    **dict.fromkeys(
        (
            *("self_attn.dense", "attention.dense", "attn.out_proj"),
            *("self_attn.out_proj", "self_attention.dense", "out_proj"),
        ),
        linear("attn.out"),
    ),
    **dict.fromkeys(
        ("self_attn.q_norm", "self_attn.q_layernorm", "self_attn.query_layernorm"),
        lambda value, config: {"attn.q.norm": turning_gathered(value, config)},
    ),
    **dict.fromkeys(
        ("self_attn.k_norm", "self_attn.k_layernorm", "self_attn.key_layernorm"),
        lambda value, config: {"attn.k.norm": turning_gathered(value, config)},
    ),
    "attention.dense_bias": same("attn.out"),
    "self_attn.o_proj": heads_out,
    "self_attn.qkv_proj": grouped,
    "attention.query_key_value": by_heads,
    "attn.Wqkv": queries_keys_values,
    "attn.c_attn": attention_in,
    "attn.c_proj": second_layer("attn.out"),
    "mlp.c_fc": second_layer("mlp.up", gpt2="mlp.fc1"),
    "mlp.c_proj": second_layer("mlp.down", gpt2="mlp.fc2"),
    **{name: linear(f"attn.{name[0]}") for name in ("q_proj", "k_proj", "v_proj")},
    **{f"attn.{name}": linear(f"attn.{name[0]}") for name in ("q_proj", "k_proj", "v_proj")},
    "attn.qkv_proj": in_quarters,
    **{f"multi_head_attention.W{name}": linear(f"attn.{name}") for name in "qkv"},
    "multi_head_attention.dense": linear("attn.out"),
    "ffn.0": linear("mlp.up"),
    "ffn.2": linear("mlp.down"),
    "self_attn.query_key_value": by_heads,
    "self_attention.query_key_value": by_heads,
    "self_attn.gate_proj": linear("attn.gate"),
    "self_attn.g_proj": linear("attn.gate"),
    "mlp.act_fn.alpha_p": same("mlp.active.alpha_p"),
    "mlp.act_fn.alpha_n": same("mlp.active.alpha_n"),
    "mlp.post_mlp_layernorm": same("experts.norm"),
    "self_attn.attn_sub_norm": same("attn.norm"),
    "mlp.ffn_sub_norm": same("mlp.norm"),
    "self_attn.q_a_proj": linear("attn.q.latent"),
    "self_attn.q_a_layernorm": same("attn.q.latent.norm"),
    "self_attn.q_a_norm": same("attn.q.latent.norm"),
    "self_attn.kv_proj": of_keys("attn.k"),
    "self_attn.kv_norm": of_keys("attn.k.norm"),
    "self_attn.o_a_proj": grouped_out,
    "self_attn.o_b_proj": linear("attn.out"),
    **{
        f"self_attn.compressor.{which}{name}": of_keys(f"attn.{ours}", indexer=bool(which))
        for which, part in (("", "summary"), ("indexer.", "index.summary"))
        for name, ours in (
            ("kv_proj", f"{part}.values"),
            ("gate_proj", f"{part}.logits"),
            ("position_bias", f"{part}.logits.bias"),
            ("kv_norm", f"{part}.norm"),
        )
    },
    "self_attn.compressor.indexer.q_b_proj": of_keys("attn.index.q", indexer=True),
    "self_attn.compressor.indexer.scorer.weights_proj": linear("attn.index.weights"),
    **{
        f"{part}_hc.{name}": rule
        for part, ours in (("attn", "attn.streams"), ("ffn", "mlp.streams"))
        for name, rule in (
            ("fn", linear(ours)),
            ("base", of_streams(ours)),
            ("scale", of_streams(ours, ".factor")),
        )
    },
    "model.hc_head.hc_fn": linear("head.streams"),
    "model.hc_head.hc_base": same("head.streams.bias"),
    "model.hc_head.hc_scale": same("head.streams.factor"),
    "self_attn.kv_a_proj_with_mqa": latent_and_shared,
    "self_attn.kv_a_layernorm": same("attn.kv.latent.norm"),
    "self_attn.kv_b_proj": keys_and_values,
    "self_attn.indexer.wq_b": of_index("attn.index.q"),
    "self_attn.indexer.wk": of_index("attn.index.k"),
    "self_attn.indexer.k_norm": of_index("attn.index.k.norm"),
    "self_attn.indexer.weights_proj": linear("attn.index.weights"),
    **dict.fromkeys(("mlp.gate_proj", "feed_forward.gate_proj"), linear("mlp.gate")),
    **dict.fromkeys(
        (
            *("mlp.up_proj", "mlp.fc1", "mlp.dense_h_to_4h", "ffn.up_proj"),
            *("feed_forward.up_proj", "mlp.fc_in", "fc1"),
        ),
        linear("mlp.up"),
    ),
    **dict.fromkeys(
        (
            *("mlp.down_proj", "mlp.fc2", "mlp.dense_4h_to_h", "ffn.down_proj"),
            *("feed_forward.down_proj", "mlp.fc_out", "fc2"),
        ),
        linear("mlp.down"),
    ),
    "mlp.gate_up_proj": halves,
    **dict.fromkeys(
        (
            *("mlp.gate", "mlp.router", "feed_forward.router", "block_sparse_moe.router"),
            *("mlp.router.gate", "mlp.gate.wg", "router.proj"),
        ),
        linear("experts.router"),
    ),
    **dict.fromkeys(
        (
            *("block_sparse_moe.experts.gate_up_proj", "experts.gate_up_proj"),
            *("mlp.experts.gate_up_proj", "mlp.experts.gate_up_proj_bias"),
            "feed_forward.experts.gate_up_proj",
        ),
        expert_halves,
    ),
    **dict.fromkeys(
        ("mlp.experts.down_proj", "block_sparse_moe.experts.down_proj", "experts.down_proj"),
        lambda value, config: {
            "experts.down": (
                value if config.model_type in INPUTS_FIRST else value.transpose(0, 2, 1)
            )
        },
    ),
    "mlp.shared_experts.gate_up_proj": lambda value, config: dict(
        zip(("shared.gate", "shared.up"), (half.T for half in np.split(value, 2)), strict=True)
    ),
    "shared_mlp.input_linear": lambda value, config: dict(
        zip(("shared.gate", "shared.up"), (half.T for half in np.split(value, 2)), strict=True)
    ),
    "shared_mlp.output_linear": linear("shared.down"),
    **dict.fromkeys(
        (
            *("mlp.expert_bias", "mlp.gate.moe_statics.e_score_correction_bias"),
            "mlp.gate.e_score_correction_bias",
        ),
        same("experts.correction"),
    ),
    "post_feedforward_layernorm_1": same("mlp.norm"),
    "post_feedforward_layernorm_2": same("experts.norm"),
    "pre_feedforward_layernorm_2": same("experts.ln"),
    "router.scale": same("experts.router.norm"),
    "router.per_expert_scale": same("experts.factors"),
    "model.embed_tokens_per_layer": by_layer("input.tokens", 1),
    "model.per_layer_model_projection": by_layer("input.seen", 0),
    "model.per_layer_projection_norm": same("embedding.inputs.norm"),
    "per_layer_input_gate": linear("input.gate"),
    "per_layer_projection": linear("input.out"),
    "post_per_layer_input_norm": same("input.post"),
    "mlp.shared_expert_gate": linear("shared.open"),
    **dict.fromkeys(
        ("mlp.experts.down_proj_bias", "feed_forward.experts.down_proj"), same("experts.down")
    ),
    **{
        f"{experts}.{part}_proj": linear(f"shared.{part}")
        for experts in (
            *("mlp.shared_experts", "mlp.shared_expert", "feed_forward.shared_expert"),
            "mlp.shared_mlp",
        )
        for part in ("gate", "up", "down")
    },
}
