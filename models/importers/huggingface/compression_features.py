"""Compression features of configs: keys that stand for several tokens, and several streams.

Keys are called as DeepSeek-V4's configuration calls them, in its newer form or its older one.
"""

from typing import Any

from millrace.models.importers.huggingface.keys import LAYERS_MAX, Keys
from millrace.models.spec import Config

WINDOW, SPARSE, HEAVY = (
    "sliding_attention",
    "compressed_sparse_attention",
    "heavily_compressed_attention",
)
RATES = {SPARSE: 4, HEAVY: 128}
"""Tokens that a key of a kind of layer stands for, where nothing else is said."""
HASH, ROUTED = "hash_moe", "moe"
HASH_LAYERS = 3
YARN_AMPLITUDE = 1.0  # the class takes no other, whatever YaRN's own is
ROUTERS = {"sqrtsoftplus": "sqrt_softplus", "sigmoid": "sigmoid", "softmax": "softmax"}
_TURNED, _SHARE = "qk_rope_head_dim", "partial_rotary_factor"


def with_ratios(keys: Keys) -> Keys:
    """Return the keys as other types have them: layers with a window and all others, their angles.

    `ratios` is for every layer how many tokens a key stands for, `hash_layers` the layers whose
    experts a table chooses.

    Parameters
    ----------
    keys : Keys
        Those that the model type has, with defaults.

    Raises
    ------
    ModelError
        A layer is of a kind that there is not, or two kinds have the same rate.
    """
    if "compress_rates" not in keys.values:
        return keys
    layers = keys.integer("num_hidden_layers", most=LAYERS_MAX)
    rates = _rates(keys)
    kinds = _kinds(keys, layers)
    ratios = [0 if kind == WINDOW else rates[kind] for kind in kinds]
    routed = _feed_forwards(keys, layers)
    share = keys.number(_SHARE, 1 / 8, most=1.0, null=1 / 8)
    if keys.has(_TURNED) and not keys.has(_SHARE):
        share = keys.integer(_TURNED) / keys.integer("head_dim")
    changed: dict[str, Any] = {
        "layer_types": ["full_attention" if ratio else WINDOW for ratio in ratios],
        "ratios": ratios,
        "sparse_ratio": rates[SPARSE],
        "hash_layers": [layer for layer, kind in enumerate(routed) if kind == HASH],
        "rope_parameters": _angles(keys),
        _SHARE: share,
    }
    read = ("mlp_layer_types", "num_hash_layers", "rope_scaling", "rope_theta", *changed)
    return keys.without(*read).over(changed)


def compression_fields(keys: Keys) -> Config:
    """Return the fields of a DecoderConfig that say how keys are compressed and streams mixed.

    Parameters
    ----------
    keys : Keys
        As `with_ratios` returns them.
    """
    if "ratios" not in keys.values:
        return {}
    ratios = keys.integers("ratios", least=0)
    return {
        "window": keys.integer("sliding_window"),
        "full_layers": tuple(layer for layer, ratio in enumerate(ratios) if ratio),
        "compression": {
            "ratios": ratios,
            "sparse_ratio": keys.integer("sparse_ratio"),
            "out_groups": keys.integer("o_groups"),
            "out_rank": keys.integer("o_lora_rank"),
        },
        "connections": {
            "streams": keys.integer("hc_mult"),
            "rounds": keys.integer("hc_sinkhorn_iters"),
            "epsilon": keys.number("hc_eps"),
        },
        "hash_layers": keys.integers("hash_layers", least=0),
        "q_lora": keys.integer("q_lora_rank"),
        "index_topk": keys.integer("index_topk"),
        "index_heads": keys.integer("index_n_heads"),
        "index_dim": keys.integer("index_head_dim"),
        "router": keys.choice("scoring_func", ROUTERS),
    }


def stream_fields(keys: Keys) -> Config:
    """Return the fields of a DecoderConfig for several streams that are not mixed (Hy4).

    Parameters
    ----------
    keys : Keys
        Those that the model type has, with defaults.
    """
    if "hc_magnitude" not in keys.values:
        return {}
    return {
        "connections": {
            "streams": keys.integer("hc_mult"),
            "rounds": 0,
            "magnitude": keys.number("hc_magnitude", least=1e-12),
            "epsilon": keys.number("hc_eps"),
        },
        "index_epsilon": keys.number("rms_norm_eps", most=1.0),
    }


def _rates(keys: Keys) -> dict[str, int]:
    section = keys.section("compress_rates")
    older = {SPARSE: "compress_rate_csa", HEAVY: "compress_rate_hca"}
    rates = {kind: section.integer(kind, rate, null=rate) for kind, rate in RATES.items()}
    rates |= {kind: keys.integer(name) for kind, name in older.items() if keys.has(name)}
    if rates[SPARSE] == rates[HEAVY]:
        raise keys.error("compress_rates", "expected another rate for each kind of layer")
    return rates


def _kinds(keys: Keys, layers: int) -> tuple[str, ...]:
    """Kinds of layers: listed, or by the older form's numbers, or the class's own alternation."""
    kinds = keys.texts("layer_types")
    if not kinds and keys.has("compress_ratios"):
        by_ratio = {0: WINDOW} | {rate: kind for kind, rate in RATES.items()}
        numbers = keys.integers("compress_ratios", least=0)
        if set(numbers) - set(by_ratio):
            raise keys.error("compress_ratios", f"expected numbers of {sorted(by_ratio)}")
        kinds = tuple(by_ratio[number] for number in numbers)
    if not kinds:
        kinds = tuple(HEAVY if layer < 2 or not layer % 2 else SPARSE for layer in range(layers))
    if len(kinds) < layers or set(kinds) - {WINDOW, SPARSE, HEAVY}:
        raise keys.error(
            "layer_types", f"expected {layers} of `{WINDOW}`, `{SPARSE}` and `{HEAVY}`"
        )
    return kinds[:layers]


def _feed_forwards(keys: Keys, layers: int) -> tuple[str, ...]:
    kinds = keys.texts("mlp_layer_types")
    first = keys.integer("num_hash_layers", HASH_LAYERS, least=0, null=HASH_LAYERS)
    kinds = kinds or tuple(HASH if layer < first else ROUTED for layer in range(layers))
    if len(kinds) < layers or set(kinds) - {HASH, ROUTED}:
        raise keys.error("mlp_layer_types", f"expected {layers} of `{HASH}` and `{ROUTED}`")
    return kinds[:layers]


def _angles(keys: Keys) -> dict[str, Any]:
    """Angles of layers with compressed keys and of those without, by what others call them."""
    given = keys.section("rope_parameters")
    older = keys.section("rope_scaling")
    both = {name: given.section(name).values for name in ("main", "compress")}
    if all(both.values()):
        return {WINDOW: both["main"], "full_attention": both["compress"]}
    values = older.values or given.values
    stretched = {name: value for name, value in values.items() if name not in both}
    if Keys(values=stretched, where=given.where).text("rope_type", "", null="") == "":
        stretched = {"rope_type": stretched.get("type", "default"), **stretched}
    if stretched["rope_type"] == "yarn":
        stretched = {"attention_factor": YARN_AMPLITUDE, **stretched}
    stretched["rope_theta"] = keys.number("compress_rope_theta")
    return {
        WINDOW: {"rope_type": "default", "rope_theta": keys.number("rope_theta")},
        "full_attention": stretched,
    }
