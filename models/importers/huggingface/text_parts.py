"""Text parts of configs with images or sound: read as the model type that `text_config` names.

Of such a model the part for text is planned, and a note says that the others are left out.
"""

from collections.abc import Callable

from millrace.models.importers.huggingface.decoder_features import read_decoder
from millrace.models.importers.huggingface.decoder_types import decoder_types
from millrace.models.importers.huggingface.keys import Keys
from millrace.models.importers.huggingface.mapping import Mapped, ModelType

TEXT_ONLY = "its part for images is left out"
# Parts for text that are another model type under a name of their own (transformers 5, 2026-11).
_SAME = {"qwen3_vl_text": "qwen3", "qwen3_vl_moe_text": "qwen3_moe"}
# Model types with a part for text, by class: the type of that part where it names none.
_WRAPPED = {
    "gemma3": ("Gemma3ForConditionalGeneration", "gemma3_text"),
    "kimi_k25": ("KimiK25ForConditionalGeneration", "kimi_k2"),
    "llama4": ("Llama4ForConditionalGeneration", "llama4_text"),
    "mistral3": ("Mistral3ForConditionalGeneration", "mistral"),
    "qwen3_5": ("Qwen3_5ForConditionalGeneration", "qwen3_5_text"),
    "qwen3_5_moe": ("Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe_text"),
    "qwen3_vl": ("Qwen3VLForConditionalGeneration", "qwen3"),
    "qwen3_vl_moe": ("Qwen3VLMoeForConditionalGeneration", "qwen3_moe"),
}


def _text_of(usual: str) -> Callable[[Keys, str], Mapped]:
    """Reader of the part for text, of a model type where it names none; `usual` is that."""

    def read(keys: Keys, _: str) -> Mapped:
        text = keys.section("text_config")
        if keys.has("tie_word_embeddings"):
            text = text.over({"tie_word_embeddings": keys.flag("tie_word_embeddings")})
        rows = decoder_types()
        rows |= {name: rows[other] for name, other in _SAME.items()}
        mapped = read_decoder(text, text.choice("model_type", rows, usual, null=usual))
        return mapped._replace(notes=(*mapped.notes, TEXT_ONLY))

    return read


MODEL_TYPES = {
    name: ModelType((architecture,), _text_of(usual))
    for name, (architecture, usual) in _WRAPPED.items()
}
