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
_SAME = {
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
}
# Model types with a part for text and their classes, by the type of that part where it names none.
# Each was built in its default configuration: the part has as many parameters as is read here.
_WRAPPED = {
    "apertus1p5_text": {"apertus1p5": "Apertus1p5"},
    "aria_text": {"aria": "Aria"},
    "cohere2": {"cohere2_vision": "Cohere2Vision"},
    "exaone4": {"exaone4_5": "Exaone4_5_"},
    "gemma4_text": {"gemma4": "Gemma4"},
    "gemma4_unified_text": {"gemma4_unified": "Gemma4Unified"},
    "gemma3_text": {"gemma3": "Gemma3", "shieldgemma2": "Gemma3"},
    "hyperclovax": {"hyperclovax_vision_v2": "HyperCLOVAXVisionV2"},
    "kimi_k2": {"kimi_k25": "KimiK25"},
    "llama": {
        "deepseek_vl": "DeepseekVL",
        "deepseek_vl_hybrid": "DeepseekVLHybrid",
        "idefics3": "Idefics3",
        "janus": "Janus",
        "llava": "Llava",
        "llava_next": "LlavaNext",
        "llava_next_video": "LlavaNextVideo",
        "smolvlm": "SmolVLM",
        "video_llava": "VideoLlava",
        "vipllava": "VipLlava",
    },
    "llama4_text": {"llama4": "Llama4"},
    "mistral": {"idefics2": "Idefics2", "mistral3": "Mistral3"},
    "opt": {"blip-2": "Blip2", "instructblip": "InstructBlip"},
    "qwen2": {
        "internvl": "InternVL",
        "llava_onevision": "LlavaOnevision",
        "ovis2": "Ovis2",
        "qwen2_vl": "Qwen2VL",
        "qwen2_5_vl": "Qwen2_5_VL",
        "video_llama_3": "VideoLlama3",
    },
    "qwen3_5_text": {"qwen3_5": "Qwen3_5"},
    "qwen3_5_moe_text": {"qwen3_5_moe": "Qwen3_5Moe"},
    "qwen3": {
        "lighton_ocr": "LightOnOcr",
        "qianfan_ocr": "QianfanOCR",
        "qwen3_vl": "Qwen3VL",
    },
    "qwen3_moe": {"qwen3_vl_moe": "Qwen3VLMoe"},
}
_OTHER_CLASSES = {"kimi_k25": ("Kimi_K25ForConditionalGeneration",)}


def _text_of(usual: str) -> Callable[[Keys, str], Mapped]:
    """Reader of the part for text, of a model type where it names none; `usual` is that."""

    def read(keys: Keys, _: str) -> Mapped:
        text = keys.section("text_config")
        tie = "tie_word_embeddings"
        if keys.has(tie):  # which the class goes by, whatever its part for text says
            text = text.without(tie).over({tie: keys.flag(tie)})
        rows = decoder_types()
        rows = rows | {name: rows[other] for name, other in _SAME.items()}
        mapped = read_decoder(text, text.choice("model_type", rows, usual, null=usual))
        return mapped._replace(notes=(*mapped.notes, TEXT_ONLY))

    return read


MODEL_TYPES = {
    name: ModelType(
        (
            f"{title}ForConditionalGeneration",
            f"{title}ForCausalLM",
            *_OTHER_CLASSES.get(name, ()),
        ),
        _text_of(usual),
    )
    for usual, types in _WRAPPED.items()
    for name, title in types.items()
}
