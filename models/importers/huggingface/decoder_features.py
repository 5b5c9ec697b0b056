"""Decoder features: what the keys of a decoder's configuration mean, whichever model type it is.

Keys are called as Llama's and Qwen3-MoE's configurations call them; a row of the table of decoder
types says which of them the type has, and under which name. Norms of Gemma's kind multiply by one
plus their weight; here the weight is that sum.
"""

from collections.abc import Callable, Sequence
from math import sqrt

from millrace.models.importers.huggingface.activations import ACTIVATIONS
from millrace.models.importers.huggingface.compression_features import (
    compression_fields,
    stream_fields,
    with_ratios,
)
from millrace.models.importers.huggingface.decoder_types import NULL, DecoderType
from millrace.models.importers.huggingface.expert_features import expert_fields
from millrace.models.importers.huggingface.hybrid_features import hybrid_fields, with_pattern
from millrace.models.importers.huggingface.keys import LAYERS_MAX, Keys
from millrace.models.importers.huggingface.layer_patterns import (
    full_sizes,
    index_reusing_layers,
    uneven_fields,
    window_fields,
)
from millrace.models.importers.huggingface.mapping import Mapped
from millrace.models.importers.huggingface.rotary_configs import (
    BASE,
    BASE_MAX,
    angles_by_layer,
    latent_scale,
    rope_section,
    rotary_fields,
)
from millrace.models.spec import Config

FLAGS: dict[str, tuple[str, ...]] = {
    "attention_bias": ("qkv_bias", "out_bias"),
    "attention_out_bias": ("out_bias",),
    "qkv_bias": ("qkv_bias",),
    "mlp_bias": ("ffn_bias",),
    "use_bias": ("qkv_bias", "out_bias", "ffn_bias"),
    "lm_head_bias": ("head_bias",),
    "tie_word_embeddings": ("tied",),
    "norm_topk_prob": ("normalize_weights",),
    "use_parallel_residual": ("parallel",),
}
"""Keys that are true or false, and the fields that they set."""
SWITCHES = {
    "use_qk_norm": "qk_norm",
    "qk_layernorm": "qk_norm",
    "use_post_norm": "post_norms",
    "use_sandwich_norm": "post_norms",
    "use_attention_gate": "attention_gate",
}
"""Keys that are true or false, and the field of the row that counts where they are true."""
NUMBERS: dict[str, tuple[str, Callable[[float], float]]] = {
    "initializer_range": ("init_std", float),
    "embedding_multiplier": ("embedding_scale", float),
    "residual_multiplier": ("residual_scale", float),
    "attention_multiplier": ("attention_scale", float),
    "logit_scale": ("logit_scale", float),
    "logits_scaling": ("logit_scale", lambda divisor: 1 / divisor),
    "query_pre_attn_scalar": ("attention_scale", lambda features: 1 / sqrt(features)),
    "routed_scaling_factor": ("weight_scale", float),
    "swiglu_alpha": ("gate_slope", float),
    "attn_scale": ("tempered_scale", float),
}
"""Keys that are numbers above zero, the field that each sets, and to what."""
LIMITS = {
    "clip_qkv": "clip_qkv",
    "final_logit_softcapping": "logit_cap",
    "attn_logit_softcapping": "score_cap",
    "swiglu_limit": "gate_cap",
}
"""Keys that are numbers, where null stands for none, and the field that each sets."""
GPT_FIELDS = (
    *("layers", "hidden", "heads", "ffn_hidden", "vocab", "positions", "init_std", "epsilon"),
    *("activation", "attention_scale", "tied"),
)
"""Fields that the zoo's GPT has as well."""
ALWAYS = frozenset(
    {
        *("head_dim", "layer_types", "rope_scaling", "rope_parameters"),
        *("rope_theta", "partial_rotary_factor", "original_max_position_embeddings"),
        "num_nextn_predict_layers",
    }
)
"""Keys that every type has."""


def read_decoder(keys: Keys, row: DecoderType) -> Mapped:
    """Return the decoder that a configuration describes.

    Parameters
    ----------
    keys : Keys
        Those of the configuration's object.
    row : DecoderType
        What its model type has.

    Raises
    ------
    ModelError
        A value has the wrong type, is out of range or asks for something not supported.
    """
    keys = with_ratios(with_pattern(_declared(keys, row)))
    positions = keys.integer("max_position_embeddings")
    fields = _sizes(keys) | _flags(keys, FLAGS | row.flags) | _scales(keys)
    windows = window_fields(keys, row)
    fields |= windows
    if "num_kv_shared_layers" in keys.values:
        fields |= uneven_fields(keys)
    if row.positions == "rotary":
        fields |= _rotary_fields(keys, _head_dim(keys), positions)
    if "num_experts" in keys.values and keys.flag("enable_moe_block", True):
        fields |= expert_fields(keys)
    if "index_topk" in keys.values:
        fields["index_topk"] = keys.integer("index_topk")
        fields["index_heads"] = keys.integer("index_n_heads")
        fields["index_dim"] = keys.integer("index_head_dim")
    if "indexer_types" in keys.values:
        fields["index_reusing_layers"] = index_reusing_layers(keys)
    if "gated_norm_rank" in keys.values:
        fields["norm_gate_rank"] = keys.integer("gated_norm_rank")
    if "classifier_activation" in keys.values:
        fields["head_activation"] = keys.choice("classifier_activation", ACTIVATIONS)
    if "norm_bias" in keys.values:
        fields["norm"] = "layer" if keys.flag("norm_bias") else "scale"
    if "attn_config" in keys.values:
        fields |= _mpt_attention(keys.section("attn_config"))
    if "gating" in keys.values:
        fields |= _laguna_gates(keys)
    if "multi_query" in keys.values:
        fields |= _shared_keys(keys)
    fields |= hybrid_fields(keys) | compression_fields(keys) | stream_fields(keys)
    switched_off = {field for key, field in SWITCHES.items() if not keys.flag(key, True)}
    fields |= {name: value for name, value in row.fields.items() if name not in switched_off}
    if row.positions == "sinusoids":
        pairs = keys.integer("hidden_size") // 2
        fields["sinusoid_base"] = BASE ** (pairs / max(pairs - row.last_angle_at_base, 1))
    if row.positions == "learned":
        fields["learned_positions"] = positions + row.fields.get("position_offset", 0)
    if "layer_rope_theta" in keys.values:
        full = windows.get("full_layers", ())
        fields |= _bases_by_layer(keys, full if isinstance(full, tuple) else ())
    if row.family == "gpt":
        fields = {name: fields[name] for name in GPT_FIELDS} | {"token_std": fields["init_std"]}
    return Mapped(row.family, fields, positions, further_tokens(keys))


def further_tokens(keys: Keys) -> tuple[str, ...]:
    """Note on modules for the tokens after the next, which are left out; none where none are there.

    Parameters
    ----------
    keys : Keys
        Those of the whole configuration.
    """
    modules = keys.integer("num_nextn_predict_layers", 0, least=0, most=LAYERS_MAX, null=0)
    note = f"num_nextn_predict_layers is {modules}: planned without, as transformers builds it"
    if "hc_mult" not in keys.values:  # modules behind several streams are not expressible
        note = f"{note}; --mtp-layers {modules} plans them"
    return (note,) if modules else ()


def _declared(keys: Keys, row: DecoderType) -> Keys:
    """Keys that the type has, by the readers' names, with its defaults."""
    keys = keys.over(row.keys, row.names)
    declared = {row.names.get(name, name) for name in (*row.keys, *row.only)} | ALWAYS
    keys = keys.without(*(keys.values.keys() - declared))
    for name, value in row.only.items():
        if isinstance(value, bool):
            if keys.flag(name, value, null=value) is not value:
                raise keys.error(name, f"this is not supported; expected {str(value).lower()}")
            continue
        if value == NULL and keys.has(name):
            raise keys.error(name, "this is not supported; expected null")
        if isinstance(value, str) and value != NULL:
            keys.choice(name, {value: value}, value, null=value)
        if isinstance(value, int) and keys.number(name, value, least=-1e30, null=value) != value:
            raise keys.error(name, f"this is not supported; expected {value}")
        if isinstance(value, list) and set(keys.texts(name)) - set(value):
            raise keys.error(name, f"this is not supported; expected {' and '.join(value)} alone")
    if row.rope and not keys.has("rope_scaling") and not keys.has("rope_parameters"):
        return keys.without("rope_parameters").over({"rope_parameters": row.rope})
    return keys


def _sizes(keys: Keys) -> Config:
    """Sizes of the stack, with those of latent attention where the type has it."""
    hidden, heads = keys.integer("hidden_size"), keys.integer("num_attention_heads")
    fields: Config = {
        "layers": keys.integer("num_hidden_layers", most=LAYERS_MAX),
        "hidden": hidden,
        "vocab": keys.integer("vocab_size"),
        "positions": keys.integer("max_position_embeddings"),
        "heads": heads,
        "kv_heads": keys.integer("num_key_value_heads", heads, null=heads),
        "ffn_hidden": _feed_forward_width(keys, hidden),
        "epsilon": keys.number("rms_norm_eps", most=1.0),
        "activation": keys.choice("hidden_act", ACTIVATIONS),
    }
    if "kv_lora_rank" in keys.values:
        return fields | _latent_fields(keys, heads)
    return fields | {"head_dim": _head_dim(keys)}


def _head_dim(keys: Keys) -> int:
    """Features of a head; the hidden size over the number of heads, rounded down, by default."""
    if keys.has("head_dim"):
        return keys.integer("head_dim")
    heads = keys.integer("num_attention_heads")
    if features := keys.integer("hidden_size") // heads:
        return features
    raise keys.error("hidden_size", f"expected a multiple of `num_attention_heads` ({heads})")


def _feed_forward_width(keys: Keys, hidden: int) -> int:
    if "compress_rates" in keys.values:  # DeepSeek-V4, all of whose layers have experts
        return 0
    if "expansion_ratio" in keys.values:
        return keys.integer("expansion_ratio", most=64) * hidden
    if "intermediate_size_mlp" in keys.values:
        return keys.integer("intermediate_size_mlp")
    return keys.integer("intermediate_size", null=4 * hidden)


def _latent_fields(keys: Keys, heads: int) -> Config:
    """Fields of DeepSeek's attention, whose key and value heads are as many as its query heads."""
    turned, unturned = keys.integer("qk_rope_head_dim"), keys.integer("qk_nope_head_dim")
    if keys.integer("num_key_value_heads", heads, null=heads) != heads:
        raise keys.error("num_key_value_heads", f"latent attention has one per head: {heads}")
    positions = keys.integer("max_position_embeddings")
    return {
        "head_dim": turned + unturned,
        "attention_scale": latent_scale(keys, turned + unturned, positions),
        "kv_lora": keys.integer("kv_lora_rank"),
        "q_lora": keys.integer("q_lora_rank", null=0),
        "value_dim": keys.integer("v_head_dim"),
        "rope_interleaved": keys.flag("rope_interleave", False, null=False),
    }


def _rotary_fields(keys: Keys, head_dim: int, positions: int) -> Config:
    if keys.has("rotary_dim"):
        turned: Config = {"rotary_dims": keys.integer("rotary_dim")}
        return rotary_fields(keys, head_dim, positions) | turned
    if "kv_lora_rank" in keys.values:
        return rotary_fields(keys, keys.integer("qk_rope_head_dim"), positions)
    full_head_dim = full_sizes(keys)[1] or head_dim
    keys, of_windows = angles_by_layer(keys, head_dim, full_head_dim)
    fields = rotary_fields(keys, full_head_dim, positions) | of_windows
    section = rope_section(keys)
    if section.has("llama_4_scaling_beta"):
        fields |= {
            "tempered_from": section.integer("original_max_position_embeddings"),
            "tempered_scale": section.number("llama_4_scaling_beta"),
            "tempered_always": True,
        }
    return fields


def _bases_by_layer(keys: Keys, full: Sequence[int]) -> Config:
    """Fields of bases that are listed by layer, 0 for one that turns nothing (Granite)."""
    layers = range(keys.integer("num_hidden_layers"))
    name, listed = "layer_rope_theta", keys.values["layer_rope_theta"]
    if listed is None:
        return {}
    if not isinstance(listed, list) or len(listed) != len(layers):
        raise keys.error(name, f"expected a list of {len(layers)} numbers")
    bases = [
        Keys(values={name: base}, where=keys.where).number(name, most=BASE_MAX) for base in listed
    ]
    unturned = tuple(layer for layer in layers if not bases[layer])
    long, short = (
        {bases[layer] for layer in layers if bases[layer] and (layer in full) is wanted}
        for wanted in (True, False)
    )
    if len(long) > 1 or len(short) > 1:
        raise keys.error(name, "expected one for layers with a window and one for all others")
    base = (long or short or {BASE}).pop()
    return {
        "unturned_layers": unturned,
        "rope_base": base,
        "window_rope_base": short.pop() if short and short != {base} else 0.0,
    }


def _flags(keys: Keys, flags: dict[str, tuple[str, ...]]) -> Config:
    """Fields that are true or false; of two keys for one field the later in `flags` counts."""
    read = {key: keys.flag(key, null=False) for key in flags if key in keys.values}
    return {field: value for key, value in read.items() for field in flags[key]}


def _scales(keys: Keys) -> Config:
    """Fields that are numbers."""
    fields: Config = {
        field: of(keys.number(key, least=1e-12))
        for key, (field, of) in NUMBERS.items()
        if keys.has(key)
    }
    fields |= {
        field: keys.number(key, null=0.0) for key, field in LIMITS.items() if key in keys.values
    }
    hidden, layers = keys.integer("hidden_size"), keys.integer("num_hidden_layers")
    if keys.flag("scale_embedding", False):
        fields["embedding_scale"] = sqrt(hidden)
    if keys.has("scale_depth"):
        fields["residual_scale"] = keys.number("scale_depth", least=1e-12) / sqrt(layers)
    if keys.has("dim_model_base"):
        fields["logit_scale"] = keys.integer("dim_model_base") / hidden
    if "scale_attn_weights" in keys.values:
        fields["attention_scale"] = 0.0 if keys.flag("scale_attn_weights") else 1.0
    return fields


def _shared_keys(keys: Keys) -> Config:
    """Fields of types whose keys and values may be those of one head (Falcon, StarCoder)."""
    one_head = keys.flag("multi_query")
    if "new_decoder_architecture" not in keys.values:
        return {"kv_heads": 1} if one_head else {"kv_heads": keys.integer("num_attention_heads")}
    grouped, parallel = keys.flag("new_decoder_architecture"), keys.flag("parallel_attn")
    norms = keys.integer("num_ln_in_parallel_attn", most=2, null=2 if grouped else 1)
    fields: Config = {
        "parallel": parallel or grouped,
        "shared_norm": (parallel or grouped) and not (grouped and norms == 2),
    }
    return fields | ({"kv_heads": 1} if one_head and not grouped else {})


def _laguna_gates(keys: Keys) -> Config:
    """Fields of Laguna's gates; its layers may have several numbers of heads, which is refused."""
    heads = keys.integer("num_attention_heads")
    if set(keys.integers("num_attention_heads_per_layer", (), null=())) - {heads}:
        raise keys.error(
            "num_attention_heads_per_layer", f"layers of another number of heads than {heads}"
        )
    ways = {"per-head": True, "per-element": False}
    gating = keys.values["gating"]
    return {"gate_per_head": True if gating is True else keys.choice("gating", ways)}


def _mpt_attention(attention: Keys) -> Config:
    """Fields of MPT's attention, with refusals of what its code knows beyond its models."""
    for name, value in (("alibi", True), ("qk_ln", False), ("prefix_lm", False)):
        if attention.flag(name, value) is not value:
            raise attention.error(name, f"this is not supported; expected {str(value).lower()}")
    kind = "multihead_attention"
    attention.choice("attn_type", {kind: kind}, kind)
    return {
        "alibi": float(attention.integer("alibi_bias_max", 8, most=64)),
        "clip_qkv": attention.number("clip_qkv", 0.0, null=0.0),
        "attention_scale": attention.number("softmax_scale", 0.0, null=0.0),
    }
