"""Model types: the mapping that reads each `model_type`, and those that none can read."""

from millrace.models.importers.huggingface.decoders import MODEL_TYPES as DECODERS
from millrace.models.importers.huggingface.derived_configs import MODEL_TYPES as DERIVED
from millrace.models.importers.huggingface.encoders import MODEL_TYPES as ENCODERS
from millrace.models.importers.huggingface.expert_configs import MODEL_TYPES as EXPERTS
from millrace.models.importers.huggingface.gemma_configs import MODEL_TYPES as GEMMA
from millrace.models.importers.huggingface.gpt_oss_configs import MODEL_TYPES as GPT_OSS
from millrace.models.importers.huggingface.image_configs import MODEL_TYPES as IMAGES
from millrace.models.importers.huggingface.llama4_configs import MODEL_TYPES as LLAMA4
from millrace.models.importers.huggingface.mapping import ModelType
from millrace.models.importers.huggingface.older_decoders import MODEL_TYPES as OLDER_DECODERS
from millrace.models.importers.huggingface.sparse_configs import MODEL_TYPES as SPARSE

MODEL_TYPES: dict[str, ModelType] = {
    **DECODERS,
    **OLDER_DECODERS,
    **EXPERTS,
    **SPARSE,
    **DERIVED,
    **GPT_OSS,
    **LLAMA4,
    **GEMMA,
    **ENCODERS,
    **IMAGES,
}

_DELTA_NET = (
    "its gated delta net, a recurrence over the sequence, has no op here, and attention in its "
    "place would cost another amount of work and memory"
)
NOT_EXPRESSIBLE = {
    "qwen3_next": _DELTA_NET,
    "qwen3_5": _DELTA_NET,
    "qwen3_5_text": _DELTA_NET,
    "qwen3_5_moe": _DELTA_NET,
    "qwen3_5_moe_text": _DELTA_NET,
    "kimi_linear": _DELTA_NET,
}
"""Model types that are refused for what no op here computes, and why."""
