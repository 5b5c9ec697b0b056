"""The table of model types: which mapping reads which `model_type` of a configuration."""

from models.importers.huggingface.decoders import MODEL_TYPES as DECODERS
from models.importers.huggingface.encoders import MODEL_TYPES as ENCODERS
from models.importers.huggingface.experts import MODEL_TYPES as EXPERTS
from models.importers.huggingface.images import MODEL_TYPES as IMAGES
from models.importers.huggingface.mapping import ModelType
from models.importers.huggingface.older_decoders import MODEL_TYPES as OLDER_DECODERS

MODEL_TYPES: dict[str, ModelType] = {
    **DECODERS,
    **OLDER_DECODERS,
    **EXPERTS,
    **ENCODERS,
    **IMAGES,
}
