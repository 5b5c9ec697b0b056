"""Model configs in nanotron's words: a DecoderConfig as `model_config`, and back."""

from collections.abc import Mapping
from typing import Any

import msgspec

from millrace.models.importers.huggingface.activations import ACTIVATIONS
from millrace.models.importers.huggingface.keys import LAYERS_MAX, Keys
from millrace.models.spec import Config, ModelSpec
from millrace.models.zoo.decoder.config import DecoderConfig
from millrace.planner.errors import InfeasibleError
from millrace.trainers.model_differences import differing_fields, said
from millrace.trainers.nanotron.setting_names import model_class, settings_table
from millrace.trainers.trainer import SettingsError

LLAMA, QWEN2 = "LlamaConfig", "Qwen2Config"
# Names of a field and of the key that holds it, of Llama's as of Qwen2's.
WHOLE_NUMBERS = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "vocab": "vocab_size",
    "positions": "max_position_embeddings",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "ffn_hidden": "intermediate_size",
}
RINGS = {"llama3_ring_attention": False, "ring": True, "ring_flash_triton": True}
FLASH, GATHERING = "flash_attention_2", "llama3_ring_attention"
STD = 0.02  # `init_method` of a checkpoint says none


def written_model(model: ModelSpec, cp: int, capacity: float) -> tuple[dict[str, Any], list[str]]:
    """Setting `model_config` of a model, and sentences about what it cannot say of it.

    Parameters
    ----------
    model : ModelSpec
        A decoder.
    cp : int
        Ranks that a sequence is split over.
    capacity : float
        Capacity factor that stands for experts which drop no token.

    Raises
    ------
    InfeasibleError
        nanotron builds no such model.
    """
    if model.family != "decoder":
        raise InfeasibleError(
            f"nanotron trains decoders like Llama's and Qwen2's, and `{model.name}` is of family "
            f"{model.family}: export it to another trainer"
        )
    config = msgspec.convert(model.config, DecoderConfig)
    settings = _settings(config, cp)
    trained = decoder_of(settings, "model_config", std=config.init_std, capacity=capacity)
    costly, free = differing_fields(config, trained)
    if costly:
        shown = ", ".join(f"{name} {getattr(config, name)!r}" for name in costly)
        raise InfeasibleError(
            f"nanotron has no words for `{model.name}`, whose blocks have {shown}: it trains "
            f"models like Llama and Qwen2; export to another trainer"
        )
    return settings, [said(field, config, trained, "nanotron") for field in free]


def _settings(config: DecoderConfig, cp: int) -> dict[str, Any]:
    """Words of a decoder, as far as there are any."""
    plain = not (config.qkv_bias or config.window or config.unturned_layers or config.experts)
    by_activation = {activation: name for name, activation in reversed(ACTIVATIONS.items())}
    settings: dict[str, Any] = {"is_llama_config" if plain and cp == 1 else "is_qwen2_config": True}
    settings |= {key: getattr(config, field) for field, key in WHOLE_NUMBERS.items()}
    settings |= {
        "hidden_act": by_activation[config.activation],
        "rms_norm_eps": config.epsilon,
        "rope_theta": config.rope_base,
        "rope_interleaved": config.rope_interleaved,
        "tie_word_embeddings": config.tied,
    }
    if "is_llama_config" in settings:
        return settings
    settings |= {"attention_bias": config.qkv_bias, "log_attn_probs": False}
    if config.window:
        settings["sliding_window_size"] = config.window
    if config.unturned_layers:
        settings["no_rope_layer"] = config.unturned_layers[0] + 1
    if cp > 1:
        settings |= {"_attn_implementation": GATHERING, "ring_attn_heads_k_stride": 1}
    if config.experts:
        settings["moe_config"] = {
            "num_experts": config.experts,
            "top_k": config.experts_per_token,
            "moe_intermediate_size": config.expert_hidden,
            "shared_expert_intermediate_size": config.shared_hidden,
            "enable_shared_expert": config.shared_hidden > 0,
            "router_aux_loss_coef": config.balance_loss,
            "layers": [n for n in range(config.layers) if config.has_experts(n)],
        }
    return settings


def decoder_of(
    settings: Mapping[str, Any], where: str, *, std: float = STD, capacity: float = 1.0
) -> DecoderConfig:
    """Decoder that nanotron builds of a `model_config`.

    Parameters
    ----------
    settings : mapping
        As decoded; what is left out is as the class has it.
    where : str
        Place of the settings, for messages.
    std : float
        Initial deviation.
    capacity : float
        Capacity factor that stands for experts which drop no token.

    Raises
    ------
    SettingsError
        The model is none of Llama's or Qwen2's kind.
    ModelError
        A value is of another type or out of range; names it.
    """
    name = model_class(settings)
    if name not in (LLAMA, QWEN2):
        raise SettingsError(f"{where}: a {name} is not read; expected {LLAMA} or {QWEN2}")
    table = settings_table().classes
    keys = Keys(values={**_defaults(table[name]), **settings}, where=where)
    heads, layers = keys.integer("num_attention_heads"), keys.integer("num_hidden_layers")
    hidden = keys.integer("hidden_size")
    if layers > LAYERS_MAX or hidden % heads or (hidden // heads) % 2:
        raise keys.error("hidden_size", f"expected an even multiple of {heads} heads")
    fields: Config = {
        field: keys.integer(
            key, null=heads if field == "kv_heads" else None, least=field != "ffn_hidden"
        )
        for field, key in WHOLE_NUMBERS.items()
    }
    fields |= {
        "head_dim": hidden // heads,
        "rotary_dims": hidden // heads,
        "epsilon": keys.number("rms_norm_eps", most=1.0),
        "rope_base": keys.number("rope_theta"),
        "rope_interleaved": keys.flag("rope_interleaved"),
        "tied": keys.flag("tie_word_embeddings"),
        "activation": keys.choice("hidden_act", ACTIVATIONS),
        "init_std": std,
    }
    if name == QWEN2:
        fields |= _qwen2(keys, layers, capacity)
    return msgspec.convert(fields, DecoderConfig)


def _qwen2(keys: Keys, layers: int, capacity: float) -> Config:
    """Fields that Qwen2's models have besides."""
    fields: Config = {
        "qkv_bias": keys.flag("attention_bias"),
        "window": keys.integer("sliding_window_size", null=0),
    }
    if every := keys.integer("no_rope_layer", null=0):
        fields["unturned_layers"] = tuple(range(every - 1, layers, every))
        fields["full_layers"] = fields["unturned_layers"] if fields["window"] else ()
    if not keys.has("moe_config"):
        return fields
    table = settings_table().classes["MoEConfig"]
    section = keys.section("moe_config")
    experts = Keys(values={"layers": [-1], **_defaults(table), **section.values}, where=keys.where)
    mixed = experts.integers("layers", least=-1)
    shared = experts.flag("enable_shared_expert")
    return fields | {
        "experts": experts.integer("num_experts"),
        "experts_per_token": experts.integer("top_k"),
        "expert_hidden": experts.integer("moe_intermediate_size"),
        "shared_hidden": experts.integer("shared_expert_intermediate_size") if shared else 0,
        "dense_layers": () if mixed == (-1,) else tuple({*range(layers)} - {*mixed}),
        "balance_loss": experts.number("router_aux_loss_coef"),
        "normalize_weights": False,
        "capacity_factor": capacity,
    }


def _defaults(rows: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults of a class that are plain values."""
    return {
        name: row.default
        for name, row in rows.items()
        if row.default is not msgspec.UNSET and not str(row.default).startswith("field(")
    }
