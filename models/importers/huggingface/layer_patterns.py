"""Layer patterns of configs: which layers have a window, turn by position, or have experts."""

from collections.abc import Iterable
from typing import Literal

import msgspec

from millrace.models.importers.huggingface.decoder_types import DecoderType
from millrace.models.importers.huggingface.keys import LAYERS_MAX, Keys
from millrace.models.spec import Config


def window_fields(keys: Keys, row: DecoderType) -> Config:
    """Return the window, the layers that have none, and those that turn nothing.

    Parameters
    ----------
    keys : Keys
        Those that the model type has, with defaults.
    row : DecoderType
        What the model type has.
    """
    fields: Config = {}
    if "no_rope_layer_interval" in keys.values:
        fields["unturned_layers"] = no_angles = _unturned_layers(keys)
        if "attention_chunk_size" in keys.values:
            return fields | _chunk_fields(keys, no_angles)
    used = "use_sliding_window" not in keys.values or keys.flag("use_sliding_window")
    window = keys.integer("sliding_window", 0, least=0, null=0) if used else 0
    if "local_attention" in keys.values:  # ModernBERT counts the keys of both sides
        window = keys.integer("local_attention", least=2) // 2
    layers = keys.integer("num_hidden_layers", most=LAYERS_MAX)
    if not window:
        return fields
    full = full_layers(keys, _full_by_default(keys, layers, row))
    if row.unturned == "full":
        fields["unturned_layers"] = full
    return fields if len(full) == layers else fields | {"window": window, "full_layers": full}


def full_layers(
    keys: Keys, default: Iterable[int], other: str = "sliding_attention"
) -> tuple[int, ...]:
    """Return the layers whose queries see all keys, as `layer_types` lists them.

    Parameters
    ----------
    keys : Keys
        With the number of layers.
    default : iterable of int
        These layers where the configuration has no list.
    other : str
        What the list calls all other layers.
    """
    layers = keys.integer("num_hidden_layers", most=LAYERS_MAX)
    kinds = keys.texts("layer_types")
    if not kinds:
        return tuple(default)
    if len(kinds) != layers or set(kinds) - {"full_attention", other}:
        raise keys.error("layer_types", f"expected {layers} of `full_attention` and `{other}`")
    return tuple(layer for layer, kind in enumerate(kinds) if kind == "full_attention")


def full_sizes(keys: Keys) -> tuple[int, int]:
    """Return heads of keys, and features of a head, of layers that see all keys; 0 for the same.

    Parameters
    ----------
    keys : Keys
        Those that the model type has, with defaults.

    Raises
    ------
    ModelError
        Layers differ in another way than by whether they see all keys.
    """
    if "global_head_dim" not in keys.values:
        return 0, 0
    of_layers = keys.section("per_layer_config")
    sections = [of_layers.section(layer) for layer in of_layers.values]
    if any(section.values != sections[0].values for section in sections):
        raise keys.error("per_layer_config", "layers that see all keys have the same sizes")
    if sections:
        groups, features = "num_key_value_heads", "head_dim"
        return sections[0].integer(groups, 0, null=0), sections[0].integer(features, 0, null=0)
    same = keys.flag("attention_k_eq_v")
    groups_of_same = keys.integer("num_global_key_value_heads", null=0) if same else 0
    return groups_of_same, keys.integer("global_head_dim")


def uneven_fields(keys: Keys) -> Config:
    """Return what layers that see all keys, and those that take keys over, have of their own.

    Parameters
    ----------
    keys : Keys
        Those of Gemma 4's configuration, with defaults.

    Raises
    ------
    ModelError
        Layers differ in another way, or the last one has a window.
    """
    layers = keys.integer("num_hidden_layers", most=LAYERS_MAX)
    kinds = keys.texts("layer_types")
    if kinds and kinds[-1] != "full_attention":
        raise keys.error("layer_types", "the class lets the last layer be `full_attention`")
    groups, features = full_sizes(keys)
    fields: Config = {
        "full_kv_heads": groups,
        "full_head_dim": features,
        "keys_as_values": keys.flag("attention_k_eq_v"),
        "reusing_layers": keys.integer("num_kv_shared_layers", least=0, most=layers),
    }
    if keys.flag("use_double_wide_mlp"):
        fields["reusing_ffn_hidden"] = 2 * keys.integer("intermediate_size")
    if width := keys.integer("hidden_size_per_layer_input", 0, least=0, null=0):
        vocab = keys.integer("vocab_size_per_layer_input")
        fields["layer_inputs"] = {"width": width, "vocab": vocab}
    if "enable_moe_block" in keys.values:
        fields["dense_beside"] = keys.flag("enable_moe_block")
    return fields


def _full_by_default(keys: Keys, layers: int, row: DecoderType) -> Iterable[int]:
    if "attention_types" in keys.values:
        return _global_layers(keys, layers)
    if "max_window_layers" in keys.values:
        return range(min(keys.integer("max_window_layers", least=0), layers))
    if not row.full_every:
        return ()
    step = keys.integer("sliding_window_pattern", row.full_every[0], null=1)
    first = row.full_every[1] if len(row.full_every) > 1 else step - 1
    return sorted({*range(first, layers, step), *(layer % layers for layer in row.full_also)})


def _global_layers(keys: Keys, layers: int) -> Iterable[int]:
    """Layers called global by GPT-Neo's list of (names in turn, how often)."""
    entries = keys.values["attention_types"] or [[["global", "local"], layers // 2]]
    expected = f'lists of "global" and "local" with how often each comes, {layers} in all'
    try:
        table = msgspec.convert(entries, list[tuple[list[Literal["global", "local"]], int]])
    except msgspec.ValidationError:
        raise keys.error("attention_types", f"expected {expected}") from None
    if sum(len(names) * times for names, times in table) != layers:
        raise keys.error("attention_types", f"expected {expected}")
    kinds = [kind for names, times in table for kind in names * times]
    return (layer for layer, kind in enumerate(kinds) if kind == "global")


def _unturned_layers(keys: Keys) -> tuple[int, ...]:
    """Return the layers without rotary positions; 1 stands in the list for one that turns."""
    layers = keys.integer("num_hidden_layers", most=LAYERS_MAX)
    turned = keys.integers("no_rope_layers", (), null=(), least=0, most=1)
    step = keys.integer("no_rope_layer_interval")
    if not turned:
        turned = tuple(int((layer + 1) % step != 0) for layer in range(layers))
    if len(turned) < layers:
        raise keys.error("no_rope_layers", f"expected a number for each of {layers} layers")
    return tuple(layer for layer in range(layers) if not turned[layer])


def _chunk_fields(keys: Keys, unturned: tuple[int, ...]) -> Config:
    """Fields of Llama 4's chunks; layers that turn nothing see all keys."""
    layers = keys.integer("num_hidden_layers", most=LAYERS_MAX)
    chunk = keys.integer("attention_chunk_size", null=0)
    tempered = keys.has("attn_temperature_tuning") and keys.values["attn_temperature_tuning"]
    full = full_layers(keys, unturned if chunk else range(layers), "chunked_attention")
    return {
        "chunk": chunk if len(full) < layers else 0,
        "full_layers": full if chunk and len(full) < layers else (),
        "tempered_from": keys.integer("floor_scale") if tempered and unturned else 0,
    }


def index_reusing_layers(keys: Keys) -> tuple[int, ...]:
    """Return the layers that attend to the keys which the indexer of a layer before has chosen.

    Parameters
    ----------
    keys : Keys
        Those that the model type has, with defaults.

    Raises
    ------
    ModelError
        A layer is of a kind that there is not.
    """
    layers = keys.integer("num_hidden_layers", most=LAYERS_MAX)
    name, full, shared = "indexer_types", "full", "shared"
    if not keys.has(name) and keys.has("index_topk_pattern"):
        name = "index_topk_pattern"
        if isinstance(keys.values[name], str):
            letters = [{"F": full, "S": shared}.get(c, c) for c in keys.text(name)]
            keys = keys.without(name).over({name: letters})
    kinds = keys.texts(name)
    if not kinds:
        step = keys.integer("index_topk_freq")
        first = keys.integer("index_skip_topk_offset", most=LAYERS_MAX) - 1
        return tuple(layer for layer in range(layers) if max(layer - first, 0) % step)
    if len(kinds) != layers or set(kinds) - {full, shared} or kinds[0] != full:
        raise keys.error(name, f"expected {layers} of `{full}` and `{shared}`, the first `{full}`")
    return tuple(layer for layer, kind in enumerate(kinds) if kind == shared)


def dense_layers(keys: Keys) -> tuple[int, ...]:
    """Return the layers that have one feed-forward part in place of experts.

    Parameters
    ----------
    keys : Keys
        Those that the model type has, with defaults.
    """
    layers = keys.integer("num_hidden_layers", most=LAYERS_MAX)
    kinds = keys.texts("mlp_layer_types")
    if kinds and (len(kinds) != layers or set(kinds) - {"dense", "sparse"}):
        raise keys.error("mlp_layer_types", f"expected {layers} of `dense` and `sparse`")
    if kinds:
        return tuple(layer for layer, kind in enumerate(kinds) if kind == "dense")
    mixed = set(range(layers))
    if "first_k_dense_replace" in keys.values:
        mixed -= set(range(keys.integer("first_k_dense_replace", least=0, null=0)))
    if "decoder_sparse_step" in keys.values:
        step = keys.integer("decoder_sparse_step")
        mixed &= set(range(step - 1, layers, step))
        mixed -= set(keys.integers("mlp_only_layers", null=(), least=0))
    if "interleave_moe_layer_step" in keys.values:
        every = range(keys.integer("interleave_moe_layer_step") - 1, layers)
        usual = tuple(every[:: every.start + 1])
        mixed &= set(keys.integers("moe_layers", usual, least=0, null=usual))
    if "moe_layer_interval" in keys.values:
        step = keys.integer("moe_layer_interval")
        first = keys.integer("moe_layer_start_index", least=0)
        last = keys.integer("moe_layer_end_index", least=-1)
        end = layers if last == -1 else last + 1
        mixed &= set(range(step - 1, layers, step)) & set(range(first, end))
    return tuple(layer for layer in range(layers) if layer not in mixed)
