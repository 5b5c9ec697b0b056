"""Configs of Gemma 2 and Gemma 3: four norms a layer, windows in half of the layers or more.

Norms of these models multiply by one plus their weight; here the weight is that sum. Gemma 2 caps
logits and scores. Of a Gemma 3 with images the part for text is read.
"""

from math import sqrt
from typing import Any

from millrace.models.importers.huggingface.decoders import (
    LLAMA,
    attention_biases,
    base_fields,
    full_layers,
)
from millrace.models.importers.huggingface.keys import LAYERS_MAX, Keys
from millrace.models.importers.huggingface.mapping import Mapped, ModelType
from millrace.models.spec import Config

GEMMA2: dict[str, Any] = LLAMA | {
    "vocab_size": 256000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "sliding_window_pattern": 2,
    "final_logit_softcapping": 30.0,
    "attn_logit_softcapping": 50.0,
}
GEMMA3: dict[str, Any] = GEMMA2 | {
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "sliding_window_pattern": 6,
    "rope_theta": 1_000_000.0,
    "rope_local_base_freq": 10_000.0,
    "final_logit_softcapping": None,
    "attn_logit_softcapping": None,
}
TEXT_ONLY = "its part for images is left out"


def _gemma(keys: Keys) -> Config:
    """Fields that both share."""
    layers = keys.integer("num_hidden_layers", most=LAYERS_MAX)
    if keys.flag("use_bidirectional_attention", False, null=False):
        raise keys.error(
            "use_bidirectional_attention", "tokens that see those behind them: expected false"
        )
    window = keys.integer("sliding_window", null=0)
    step = keys.integer("sliding_window_pattern", null=1)
    return (
        base_fields(keys)
        | attention_biases(keys)
        | {
            "post_norms": True,
            "embedding_scale": sqrt(keys.integer("hidden_size")),
            "attention_scale": 1 / sqrt(keys.number("query_pre_attn_scalar", least=1e-6)),
            "window": window,
            "full_layers": full_layers(keys, range(step - 1, layers, step)) if window else (),
            "logit_cap": keys.number("final_logit_softcapping", null=0.0),
            "score_cap": keys.number("attn_logit_softcapping", null=0.0),
        }
    )


def _gemma2(keys: Keys, _: str) -> Mapped:
    keys = _over(keys, GEMMA2)
    return Mapped("decoder", _gemma(keys), keys.integer("max_position_embeddings"))


def _gemma3(keys: Keys, architecture: str) -> Mapped:
    """Return a Gemma 3: queries and keys are normed, layers with a window turn by other angles.

    Angles are written in two forms: as other models write them, with `rope_local_base_freq` beside
    them, or as a `rope_parameters` for each kind of layer.
    """
    notes: tuple[str, ...] = ()
    if architecture == WITH_IMAGES:
        keys, notes = keys.section("text_config"), (TEXT_ONLY,)
    keys = _over(keys, GEMMA3)
    unwindowed, local = keys, keys.number("rope_local_base_freq", least=1.0)
    kinds = keys.section("rope_parameters")
    if kinds.has("full_attention") or kinds.has("sliding_attention"):
        short = kinds.section("sliding_attention")
        if short.text("rope_type", "default", null="default") != "default":
            raise short.error("rope_type", "angles of layers with a window are not stretched")
        local = short.number("rope_theta", local, least=1.0, null=local)
        stretched = {"rope_parameters": kinds.section("full_attention").values}
        unwindowed = keys.without("rope_scaling", "rope_parameters").over(stretched)
    fields = _gemma(unwindowed) | {"qk_norm": "rms", "window_rope_base": local}
    return Mapped("decoder", fields, keys.integer("max_position_embeddings"), notes)


def _over(keys: Keys, defaults: dict[str, Any]) -> Keys:
    """Keys over defaults; `hidden_activation` counts, not a `hidden_act` that stands beside it."""
    return keys.without("hidden_act").over(defaults, {"hidden_activation": "hidden_act"})


WITH_IMAGES = "Gemma3ForConditionalGeneration"
MODEL_TYPES = {
    "gemma2": ModelType(("Gemma2ForCausalLM",), _gemma2),
    "gemma3_text": ModelType(("Gemma3ForCausalLM",), _gemma3),
    "gemma3": ModelType((WITH_IMAGES,), _gemma3),
}
