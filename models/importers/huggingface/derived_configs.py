"""Derived configs: model types that are others' with a part beside, for images or for what follows.

Of a model with images the part for text is read, which has a model type of its own in
`text_config`. A part that predicts the tokens after the next is left out, as transformers does.
"""

from collections.abc import Callable

from millrace.models.importers.huggingface.decoders import MODEL_TYPES as DECODERS
from millrace.models.importers.huggingface.expert_configs import MODEL_TYPES as EXPERTS
from millrace.models.importers.huggingface.expert_configs import further_tokens
from millrace.models.importers.huggingface.gemma_configs import TEXT_ONLY
from millrace.models.importers.huggingface.keys import Keys
from millrace.models.importers.huggingface.mapping import Mapped, ModelType

# Model types of parts for text (transformers 5, read 2026-11): the one that each is read as.
_TEXT_TYPES = {
    "kimi_k2": EXPERTS["kimi_k2"],
    "deepseek_v3": EXPERTS["deepseek_v3"],
    "qwen3_vl_text": DECODERS["qwen3"],
    "qwen3_vl_moe_text": EXPERTS["qwen3_moe"],
    "mistral": DECODERS["mistral"],
}


def _text_of(usual: str) -> Callable[[Keys, str], Mapped]:
    """Reader of the part for text, of a model type where it names none; `usual` is that."""

    def read(keys: Keys, _: str) -> Mapped:
        text = keys.section("text_config")
        if keys.has("tie_word_embeddings"):
            text = text.over({"tie_word_embeddings": keys.flag("tie_word_embeddings")})
        inner = text.choice("model_type", _TEXT_TYPES, usual, null=usual)
        mapped = inner.read(text, inner.classes[0])
        return mapped._replace(notes=(*mapped.notes, TEXT_ONLY))

    return read


def _mimo(keys: Keys, architecture: str) -> Mapped:
    """Return a Qwen2, which MiMo is but for its module for the token after the next."""
    mapped = DECODERS["qwen2"].read(keys, architecture)
    return mapped._replace(notes=further_tokens(keys))


MODEL_TYPES = {
    "kimi_k25": ModelType(("KimiK25ForConditionalGeneration",), _text_of("kimi_k2")),
    "qwen3_vl": ModelType(("Qwen3VLForConditionalGeneration",), _text_of("qwen3_vl_text")),
    "qwen3_vl_moe": ModelType(
        ("Qwen3VLMoeForConditionalGeneration",), _text_of("qwen3_vl_moe_text")
    ),
    "mistral3": ModelType(("Mistral3ForConditionalGeneration",), _text_of("mistral")),
    "mimo": ModelType(("MiMoForCausalLM",), _mimo),
}
