"""Decoders of Llama's kind: Llama, Mistral, Qwen2, Qwen3 and Phi-3.

All have RMS norms, rotary positions and gated feed-forward parts; what differs stands in a row of
defaults (transformers 5, `configuration_*.py`) and in a few keys.
"""

from collections.abc import Callable, Iterable
from typing import Any

from millrace.models.importers.huggingface.keys import LAYERS_MAX, Keys
from millrace.models.importers.huggingface.mapping import Mapped, ModelType
from millrace.models.importers.huggingface.rotary_configs import rotary_fields
from millrace.models.spec import Config

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu_erf",
    "gelu_python": "gelu_erf",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "relu": "relu",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
}

LLAMA: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
MISTRAL = LLAMA | {
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
}
QWEN = LLAMA | {
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
PHI3 = LLAMA | {
    "vocab_size": 32064,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "max_position_embeddings": 4096,
    "original_max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "sliding_window": None,
}


def base_fields(keys: Keys, *, head_dim: int | None = None, base: float = 10000.0) -> Config:
    """Return the fields that all of Llama's kin share.

    Parameters
    ----------
    keys : Keys
        With the model type's defaults.
    head_dim : int, optional
        Features of a head where the configuration does not say; hidden size / heads by default.
    base : float
        The model type's own base of rotary positions.
    """
    hidden, heads = keys.integer("hidden_size"), keys.integer("num_attention_heads")
    if head_dim is None and not keys.has("head_dim"):
        head_dim = head_features(keys, "hidden_size", "num_attention_heads")
    head_dim = keys.integer("head_dim", head_dim, null=head_dim)
    positions = keys.integer("max_position_embeddings")
    turned = rotary_fields(keys, head_dim, positions, base=base)
    return turned | {
        "layers": keys.integer("num_hidden_layers", most=LAYERS_MAX),
        "hidden": hidden,
        "vocab": keys.integer("vocab_size"),
        "positions": positions,
        "heads": heads,
        "kv_heads": keys.integer("num_key_value_heads", null=heads),
        "head_dim": head_dim,
        "ffn_hidden": keys.integer("intermediate_size"),
        "epsilon": keys.number("rms_norm_eps", most=1.0),
        "tied": keys.flag("tie_word_embeddings"),
        "activation": keys.choice("hidden_act", ACTIVATIONS),
        "init_std": keys.number("initializer_range", least=1e-12, most=1.0),
    }


def head_features(keys: Keys, hidden: str, heads: str, *, exact: bool = False) -> int:
    """Return the features of a head: the hidden size over the number of heads, rounded down.

    `exact`: the hidden size has to be a multiple of the number of heads.
    """
    features, rest = divmod(keys.integer(hidden), keys.integer(heads))
    if not features or (exact and rest):
        raise keys.error(hidden, f"expected a multiple of `{heads}` ({keys.integer(heads)})")
    return features


def attention_biases(keys: Keys) -> Config:
    """Return whether the projections before and after attention have biases."""
    biased = keys.flag("attention_bias", False)
    return {"qkv_bias": biased, "out_bias": biased}


def window_fields(keys: Keys) -> Config:
    """Return the window and the layers that have none, as Qwen's configurations say."""
    layers = keys.integer("num_hidden_layers", most=LAYERS_MAX)
    used = keys.flag("use_sliding_window")
    window = keys.integer("sliding_window", null=0) if used else 0
    first = keys.integer("max_window_layers", least=0)
    full = full_layers(keys, range(min(first, layers)))
    if not window or len(full) == layers:
        return {}
    return {"window": window, "full_layers": full}


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


def _llama(keys: Keys, _: str) -> Mapped:
    fields = base_fields(keys) | attention_biases(keys)
    return _decoder(keys, fields | {"ffn_bias": keys.flag("mlp_bias", False)})


def _mistral(keys: Keys, _: str) -> Mapped:
    window = keys.integer("sliding_window", null=0)
    return _decoder(keys, base_fields(keys) | {"window": window})


def _qwen2(keys: Keys, _: str) -> Mapped:
    return _decoder(keys, base_fields(keys) | window_fields(keys) | {"qkv_bias": True})


def _qwen3(keys: Keys, _: str) -> Mapped:
    fields = base_fields(keys, head_dim=128) | attention_biases(keys)
    return _decoder(keys, fields | window_fields(keys) | {"qk_norm": "rms"})


def _decoder(keys: Keys, fields: Config) -> Mapped:
    return Mapped("decoder", fields, keys.integer("max_position_embeddings"))


def with_defaults(
    defaults: dict[str, Any],
    read: Callable[[Keys, str], Mapped],
    also: dict[str, str] | None = None,
) -> Callable[[Keys, str], Mapped]:
    """Return `read` over keys that have these defaults (and `also` other names)."""
    return lambda keys, architecture: read(keys.over(defaults, also), architecture)


MODEL_TYPES = {
    "llama": ModelType(("LlamaForCausalLM", "LLaMAForCausalLM"), with_defaults(LLAMA, _llama)),
    "mistral": ModelType(("MistralForCausalLM",), with_defaults(MISTRAL, _mistral)),
    "qwen2": ModelType(("Qwen2ForCausalLM",), with_defaults(QWEN, _qwen2)),
    "qwen3": ModelType(("Qwen3ForCausalLM",), with_defaults(QWEN, _qwen3)),
    "phi3": ModelType(("Phi3ForCausalLM",), with_defaults(PHI3, _mistral)),
}
