"""The table of model types: which mapping reads which `model_type` of a configuration."""

from models.importers.huggingface.decoders import MODEL_TYPES as DECODERS
from models.importers.huggingface.mapping import ModelType

MODEL_TYPES: dict[str, ModelType] = {
    **DECODERS,
}
