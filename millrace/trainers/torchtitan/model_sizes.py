"""Sizes of a model in torchtitan's words, from those of a decoder and back.

An exported module holds them as its dictionary `SIZES`, from which it builds the model; sizes of
torchtitan's flavours are told in the same words.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from millrace.models.spec import Config, ModelSpec
from millrace.models.zoo.decoder.config import DecoderConfig
from millrace.planner.errors import InfeasibleError
from millrace.trainers.trainer import SettingsError

DECODER = "decoder"
# Words of `SIZES`, and the fields of DecoderConfig that say the same.
FIELDS = {
    "vocab_size": "vocab",
    "dim": "hidden",
    "n_layers": "layers",
    "n_heads": "heads",
    "n_kv_heads": "kv_heads",
    "head_dim": "head_dim",
    "hidden_dim": "ffn_hidden",
    "enable_weight_tying": "tied",
    "norm_eps": "epsilon",
    "init_std": "init_std",
    "qkv_bias": "qkv_bias",
    "out_bias": "out_bias",
    "max_seq_len": "positions",
    "rope_theta": "rope_base",
}
# Keywords of torchtitan's RoPE.Config, by the kind of stretching that reads them.
STRETCHING: dict[str, dict[str, str]] = {
    "": {},
    "llama3": {
        "scaling_factor": "rope_factor",
        "low_freq_factor": "rope_low",
        "high_freq_factor": "rope_high",
        "original_max_position_embeddings": "rope_original",
    },
    "yarn": {
        "rope_factor": "rope_factor",
        "beta_fast": "rope_fast",
        "beta_slow": "rope_slow",
        "original_seq_len": "rope_original",
        "truncate": "rope_truncate",
    },
}
SCALINGS = {"": "none", "llama3": "llama", "yarn": "yarn"}
# Defaults of torchtitan's RoPE.Config (models/common/rope.py of 0.3.0), which flavours leave.
ROPE_DEFAULTS = {
    "scaling_factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_factor": 1.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "original_seq_len": 4096,
    "truncate": True,
}
LATENT = {
    "q_lora_rank": "q_lora",
    "kv_lora_rank": "kv_lora",
    "v_head_dim": "value_dim",
    "qk_rope_head_dim": "rotary_dims",
    "attention_scale": "attention_scale",
}
EXPERTS = {
    "num_experts": "experts",
    "top_k": "experts_per_token",
    "moe_hidden_dim": "expert_hidden",
    "shared_hidden_dim": "shared_hidden",
    "dense_layers": "dense_layers",
    "score_func": "router",
    "route_norm": "normalize_weights",
    "route_scale": "weight_scale",
    "num_expert_groups": "router_groups",
    "num_limited_groups": "kept_groups",
    "router_bias": "router_bias",
}
# Adjacent features are turned together by the one, halves of a head by the other, which knows no
# stretching as Llama's: there the first is used, on weights whose rows are permuted.
INTERLEAVED, HALVES = "ComplexRoPE", "CosSinRoPE"
FREE = ("rope_scaling", "rope_interleaved", "qk_norm", "rotary_dims")
UNHEARD = ("capacity_factor", "balance_loss")  # of experts; said, as they are no reason to refuse
NO_TOKEN_DROPPED = 1.0  # as `Pins.capacity_factor` counts an expert that takes what it gets


def sizes_of(model: ModelSpec) -> dict[str, Any]:
    """Sizes of a model, as an exported module holds them.

    Parameters
    ----------
    model : ModelSpec
        A decoder.

    Raises
    ------
    InfeasibleError
        Torchtitan's building blocks have no place for what the model is made of.
    """
    if model.family != DECODER:
        raise InfeasibleError(
            f"`{model.name}` is of the family {model.family}: torchtitan trains decoders with RMS "
            f"norms, rotary positions and gated feed-forward parts, and has no other language model"
        )
    config = msgspec.convert(dict(model.config), DecoderConfig)
    _check_expressible(model.name, config)
    sizes = {word: getattr(config, field) for word, field in FIELDS.items()}
    sizes["max_seq_len"] = max(config.positions, model.seq_len)
    sizes["qk_norm"] = config.qk_norm == "rms"
    interleaved = config.rope_interleaved or config.rope_scaling == "llama3"
    sizes["rope_format"] = INTERLEAVED if interleaved else HALVES
    sizes["rope_scaling"] = SCALINGS[config.rope_scaling]
    for word, field in STRETCHING[config.rope_scaling].items():
        sizes[word] = getattr(config, field)
    if config.kv_lora:
        sizes |= {word: getattr(config, field) for word, field in LATENT.items()}
        sizes["v_head_dim"] = config.value_dim or config.head_dim
    if config.experts:
        sizes |= {word: getattr(config, field) for word, field in EXPERTS.items()}
        sizes["dense_layers"] = list(config.dense_layers)
    return sizes


def _check_expressible(name: str, config: DecoderConfig) -> None:
    """Refuse what torchtitan's building blocks cannot be, with the fields that say so."""
    plain = DecoderConfig(
        layers=1, hidden=1, vocab=1, positions=1, heads=1, kv_heads=1, head_dim=1, ffn_hidden=1
    )
    stretching = STRETCHING.get(config.rope_scaling)
    used = {*FIELDS.values(), *FREE, *(stretching or {}).values()} | (
        {*EXPERTS.values(), *UNHEARD} if config.experts else {"capacity_factor"}
    )
    if config.kv_lora:
        used |= {*LATENT.values()}
    faults = [] if stretching is not None else [f"rope_scaling is {config.rope_scaling!r}"]
    faults += [
        f"{field} is {value!r}"
        for field, value in msgspec.structs.asdict(config).items()
        if field not in used and value != getattr(plain, field)
    ]
    faults += _latent_faults(config) if config.kv_lora else []
    if config.rotary_dims != config.head_dim and not config.kv_lora:
        faults.append(f"rotary_dims is {config.rotary_dims} of {config.head_dim}")
    if config.qk_norm not in ("", "rms"):
        faults.append(f"qk_norm is {config.qk_norm!r}")
    if config.rope_interleaved and config.rope_scaling == "llama3":
        faults.append("rope_interleaved with rope_scaling 'llama3'")
    if faults:
        raise InfeasibleError(
            f"torchtitan's decoders cannot be `{name}`: {', '.join(faults)}; it has dense and "
            f"expert decoders as Llama 3, Qwen 3 and DeepSeek-V3 are built"
        )


def _latent_faults(config: DecoderConfig) -> list[str]:
    """Faults of latent attention: DeepSeek's scales scores with YaRN alone, and has no biases."""
    faults = [
        f"{field} is {getattr(config, field)!r} in latent attention"
        for field in ("qk_norm", "qkv_bias", "out_bias")
        if getattr(config, field)
    ]
    if config.attention_scale and (config.rope_scaling != "yarn" or config.rope_factor <= 1):
        faults.append(f"attention_scale is {config.attention_scale:g} without YaRN")
    if config.kv_heads != config.heads:
        faults.append(f"kv_heads is {config.kv_heads} of {config.heads} latent heads")
    return faults


def config_of(sizes: Mapping[str, Any]) -> Config:
    """Configuration of a decoder with such sizes.

    Parameters
    ----------
    sizes : mapping
        Of an exported module, or of one of torchtitan's flavours.

    Raises
    ------
    SettingsError
        A size is missing, or is none.
    """
    stated = sizes.get("rope_scaling", "none")
    scaling = {word: name for name, word in SCALINGS.items()}.get(stated)
    if scaling is None:
        raise SettingsError(f"SIZES: rope_scaling is {stated!r}; choose none, llama or yarn")
    config: dict[str, Any] = {field: sizes[word] for word, field in FIELDS.items() if word in sizes}
    config["rotary_dims"] = config.get("head_dim", 0)
    if sizes.get("kv_lora_rank"):
        config |= {field: sizes[word] for word, field in LATENT.items() if word in sizes}
    config["qk_norm"] = "rms" if sizes.get("qk_norm") else ""
    config["rope_scaling"] = scaling
    config["rope_interleaved"] = sizes.get("rope_format") == INTERLEAVED and scaling != "llama3"
    for word, field in STRETCHING[scaling].items():
        config[field] = sizes.get(word, ROPE_DEFAULTS[word])
    if sizes.get("num_experts"):
        config |= {field: sizes[word] for word, field in EXPERTS.items() if word in sizes}
        config["capacity_factor"] = NO_TOKEN_DROPPED
    try:
        decoder = msgspec.convert(config, DecoderConfig)
    except msgspec.ValidationError as error:
        raise SettingsError(f"SIZES: {error}") from None
    return msgspec.structs.asdict(decoder)


def unheard(model: ModelSpec) -> list[str]:
    """Sentences about what of the experts torchtitan does otherwise.

    Parameters
    ----------
    model : ModelSpec
        One that `sizes_of` takes.
    """
    config = msgspec.convert(dict(model.config), DecoderConfig)
    sentences = []
    if config.experts and config.capacity_factor != NO_TOKEN_DROPPED:
        sentences.append(
            f"experts of the plan have places for {config.capacity_factor:g} times an even share; "
            f"torchtitan's take every token"
        )
    if config.experts and config.balance_loss:
        sentences.append(
            "torchtitan balances experts by a bias on their scores, not by a term of the loss"
        )
    return sentences
