"""The table of model types: which mapping reads which `model_type` of a configuration."""

from millrace.models.importers.huggingface.decoders import MODEL_TYPES as DECODERS
from millrace.models.importers.huggingface.encoders import MODEL_TYPES as ENCODERS
from millrace.models.importers.huggingface.expert_configs import MODEL_TYPES as EXPERTS
from millrace.models.importers.huggingface.image_configs import MODEL_TYPES as IMAGES
from millrace.models.importers.huggingface.mapping import ModelType
from millrace.models.importers.huggingface.older_decoders import MODEL_TYPES as OLDER_DECODERS

MODEL_TYPES: dict[str, ModelType] = {
    **DECODERS,
    **OLDER_DECODERS,
    **EXPERTS,
    **ENCODERS,
    **IMAGES,
}
