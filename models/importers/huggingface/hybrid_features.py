"""Hybrid features of configs: which layers go through the sequence by a state, and their sizes.

Keys are called as those of Bamba (state space), Qwen3-Next (delta nets) and Kimi Linear (its
attention) are.
"""

from collections.abc import Iterable

from millrace.models.importers.huggingface.keys import LAYERS_MAX, Keys
from millrace.models.spec import Config, Setting
from millrace.models.zoo.decoder.recurrent_sizes import (
    ATTENTION,
    BOTH,
    DELTA_NET,
    DENSE,
    EXPERTS,
    GATED_UNIT,
    KIMI_DELTA,
    SHORT_CONVOLUTION,
    STATE_SPACE,
)

_LAYERS = "num_hidden_layers"
_FULL = ("full_attention", "attention")
_WINDOW, _WINDOWS = "sliding_attention", ("sliding_attention", "attention")
_RECURRENT = ("linear_attention", "mamba", "conv", "recurrent")
_BARE = {"mlp": DENSE, "moe": EXPERTS}
_STATE, _HEADS, _KIMI, _TAPS = (
    "mamba_d_state",
    "linear_num_key_heads",
    "linear_num_heads",
    "conv_taps",
)
_UNIT, _BOUND = "lru_width", "kda_lower_bound"

_INFINITIES = ({"__float__": "Infinity"}, "inf")
"""Ways of transformers to write infinity into JSON."""


def with_pattern(keys: Keys) -> Keys:
    """Return the keys with `pattern`, a letter for every layer, where a type has several kinds.

    Parameters
    ----------
    keys : Keys
        Those that the model type has, with defaults.
    """
    letter = _letter(keys)
    if not letter:
        return keys
    if "layer_cycle" in keys.values and not keys.texts("layer_types"):
        layers = keys.integer(_LAYERS, most=LAYERS_MAX)
        kinds = (*keys.texts("first_layers"), *keys.texts("layer_cycle") * layers)[:layers]
        if len(kinds) < layers:
            raise keys.error("layer_cycle", "expected a list of one layer's kind or more")
        keys = keys.without("layer_types").over({"layer_types": kinds})
    pattern = _pattern(keys, letter)
    if letter == STATE_SPACE and ATTENTION not in pattern:  # other letters have those heads too
        alone = dict.fromkeys(("num_attention_heads", "num_key_value_heads", "head_dim"), 1)
        keys = keys.without(*alone).over(alone)
    windows: dict[str, list[str]] = {}
    kinds = keys.texts("layer_types")
    if kinds and "sliding_window" in keys.values:
        windows = {"layer_types": [_WINDOW if kind in _WINDOWS else _FULL[0] for kind in kinds]}
    return (
        keys.without("layer_types")
        .over({"pattern": pattern} | windows)
        .without(_LAYERS)
        .over({_LAYERS: len(pattern)})
    )


def hybrid_fields(keys: Keys) -> Config:
    """Return the fields of a DecoderConfig that say how layers without attention mix tokens.

    Parameters
    ----------
    keys : Keys
        As `with_pattern` returns them.
    """
    if "pattern" not in keys.values:
        return {}
    pattern = keys.text("pattern")
    fields: Config = {"pattern": pattern}
    if {STATE_SPACE, BOTH} & set(pattern):
        fields["state_space"] = _state_space(keys)
    if DELTA_NET in pattern:
        fields["delta_net"] = _delta_net(keys)
    if KIMI_DELTA in pattern:
        fields["delta_net"] = _kimi_delta(keys)
    if SHORT_CONVOLUTION in pattern:
        fields["conv_taps"] = keys.integer("conv_taps")
    if GATED_UNIT in pattern:
        width = keys.integer(_UNIT, null=keys.integer("hidden_size"))
        heads, taps = keys.integer("num_attention_heads"), keys.integer("conv1d_width")
        fields["gated_unit"] = {"width": width, "blocks": heads, "taps": taps}
    if _UNIT in keys.values:  # whose class halves it
        fields["ffn_hidden"] = keys.integer("intermediate_size", least=2) // 2
    if "block_auto_adjust_ff_dim" in keys.values:
        fields["ffn_hidden"] = _rounded_width(keys)
    if _KIMI in keys.values and _BOUND not in keys.values:
        fields["unturned_layers"] = tuple(range(len(pattern)))
    if "position_embedding_type" in keys.values and keys.text(
        "position_embedding_type", null=""
    ) not in ("rope", "rotary"):
        fields["rotary_dims"] = 0
    if not keys.integer("num_experts", 1, least=0, null=0):  # then the expert of all is alone
        shared = keys.integer("shared_expert_intermediate_size")
        fields |= {"ffn_hidden": shared, "shared_hidden": 0}
    if "moe_latent_size" in keys.values:
        fields["expert_latent"] = keys.integer("moe_latent_size", null=0)
    return fields


def _rounded_width(keys: Keys) -> int:
    """Width of LFM2's feed-forward part, which its class may make of another and round up."""
    width = keys.integer("intermediate_size")
    if not keys.flag("block_auto_adjust_ff_dim"):
        return width
    width = int(keys.number("block_ffn_dim_multiplier") * int(2 * width / 3))
    multiple = keys.integer("block_multiple_of")
    return -(-width // multiple) * multiple


def _letter(keys: Keys) -> str:
    """Letter of the layers without attention alone; empty where the type has none."""
    if "mamba_d_ssm" in keys.values:
        return BOTH
    kinds = (
        (_STATE, STATE_SPACE),
        (_HEADS, DELTA_NET),
        (_KIMI, KIMI_DELTA),
        (_TAPS, SHORT_CONVOLUTION),
        (_UNIT, GATED_UNIT),
    )
    return next((letter for key, letter in kinds if key in keys.values), "")


def _pattern(keys: Keys, letter: str) -> str:
    if keys.has("hybrid_override_pattern"):
        pattern = keys.text("hybrid_override_pattern")
        if not pattern or set(pattern) - {letter, ATTENTION, DENSE, EXPERTS}:
            letters = " ".join((letter, ATTENTION, DENSE, EXPERTS))
            raise keys.error("hybrid_override_pattern", f"expected a letter a layer of {letters}")
        return pattern
    kinds = keys.texts("layer_types")
    if kinds:
        letters_by_kind = dict.fromkeys(_FULL, ATTENTION) | dict.fromkeys(_RECURRENT, letter)
        letters_by_kind |= {_WINDOW: ATTENTION} if "sliding_window" in keys.values else {}
        letters_by_kind |= _BARE if "hybrid_override_pattern" in keys.values else {}
        if set(kinds) - letters_by_kind.keys():
            raise keys.error("layer_types", f"expected a list of {', '.join(letters_by_kind)}")
        return "".join(letters_by_kind[kind] for kind in kinds)
    layers = keys.integer(_LAYERS, most=LAYERS_MAX)
    full = set(_full_by_default(keys, layers))
    return "".join(ATTENTION if layer in full else letter for layer in range(layers))


def _full_by_default(keys: Keys, layers: int) -> Iterable[int]:
    """Layers with attention where no list names the kinds."""
    if "attn_layer_indices" in keys.values:
        return keys.integers("attn_layer_indices", null=(), least=0)
    if "full_attn_idxs" in keys.values:
        return keys.integers("full_attn_idxs", null=tuple(range(layers)), least=0)
    attention = keys.section("linear_attn_config")
    if attention.has("full_attn_layers"):
        return [layer - 1 for layer in attention.integers("full_attn_layers")]
    if "full_attention_interval" in keys.values:
        step = keys.integer("full_attention_interval")
        return range(step - 1, layers, step)
    if _KIMI in keys.values:
        return range(4, layers, 4)
    return ()


def _state_space(keys: Keys) -> dict[str, Setting]:
    heads, groups = keys.integer("mamba_n_heads"), keys.integer("mamba_n_groups")
    if keys.values["mamba_d_head"] == "auto":
        width = keys.integer("mamba_expand") * keys.integer("hidden_size")
        if keys.has("mamba_d_ssm"):
            width = keys.integer("mamba_d_ssm")
        keys = keys.without("mamba_d_head").over({"mamba_d_head": width // heads})
    low, high = _step_limits(keys)
    return {
        "heads": heads,
        "head_dim": keys.integer("mamba_d_head"),
        "groups": groups,
        "state": keys.integer(_STATE),
        "taps": keys.integer("mamba_d_conv"),
        "conv_bias": keys.flag("mamba_conv_bias"),
        "bias": keys.flag("mamba_proj_bias"),
        "norm_groups": groups if _is_normed(keys) else 0,
        "step_min": low,
        "step_max": high,
    }


def _is_normed(keys: Keys) -> bool:
    """True if what the scan makes is normed, behind its gate."""
    if not keys.flag("mamba_rms_norm", True):
        return False
    if keys.flag("mamba_norm_before_gate", False):
        raise keys.error("mamba_norm_before_gate", "a norm before the gate is not supported: false")
    return True


def _step_limits(keys: Keys) -> tuple[float, float]:
    """Least and largest time step; 0 for a largest that is infinite, which JSON has as null."""
    if "time_step_limit" not in keys.values:
        return keys.number("time_step_min"), 0.0
    limits = keys.values["time_step_limit"]
    if limits is None:
        return 0.0, 0.0
    if not isinstance(limits, list | tuple) or len(limits) != 2:
        raise keys.error("time_step_limit", "expected two numbers")
    least, largest = (None if limit in _INFINITIES else limit for limit in limits)
    named = Keys(values={"least": least, "largest": largest}, where=keys.where)
    return named.number("least", null=0.0), named.number("largest", null=0.0)


def _delta_net(keys: Keys) -> dict[str, Setting]:
    heads = keys.integer("num_attention_heads")
    key_heads = keys.integer(_HEADS, null=heads)
    usual = max(1, int(0.75 * keys.integer("hidden_size") / key_heads))  # OLMo hybrid's
    key_dim = keys.integer("linear_key_head_dim", null=usual)
    sizes: dict[str, Setting] = {
        "key_heads": key_heads,
        "value_heads": keys.integer("linear_num_value_heads", null=heads),
        "key_dim": key_dim,
        "value_dim": keys.integer("linear_value_head_dim", null=2 * key_dim),
        "taps": keys.integer("linear_conv_kernel_dim"),
    }
    if "linear_allow_neg_eigval" not in keys.values:
        return sizes
    scale = 2.0 if keys.flag("linear_allow_neg_eigval") else 1.0
    return sizes | {"beta_scale": scale, "epsilon": 1e-5}


def _kimi_delta(keys: Keys) -> dict[str, Setting]:
    attention = keys.section("linear_attn_config")
    usual = keys.integer(_KIMI, null=keys.integer("num_attention_heads"))
    heads = attention.integer("num_heads", usual)
    size = attention.integer(
        "head_dim", keys.integer("linear_head_dim", null=keys.integer("head_dim", 1))
    )
    taps = keys.integer("linear_conv_kernel_dim")
    sizes: dict[str, Setting] = {
        "key_heads": heads,
        "value_heads": heads,
        "key_dim": size,
        "value_dim": size,
        "taps": attention.integer("short_conv_kernel_size", taps),
    }
    if _BOUND not in keys.values:
        return sizes | {"gate_rank": size}
    bounded = keys.flag("kda_safe_gate")
    return sizes | (
        {"decay_bound": -keys.number(_BOUND, least=-1e3, most=-1e-3)} if bounded else {}
    )
