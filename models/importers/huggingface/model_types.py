"""Model types: the mapping that reads each `model_type`, and those that none can read."""

from millrace.models.importers.huggingface.decoder_features import read_decoder
from millrace.models.importers.huggingface.decoder_types import DecoderType, decoder_types
from millrace.models.importers.huggingface.encoders import MODEL_TYPES as ENCODERS
from millrace.models.importers.huggingface.image_configs import MODEL_TYPES as IMAGES
from millrace.models.importers.huggingface.mapping import ModelType
from millrace.models.importers.huggingface.text_parts import MODEL_TYPES as TEXT_PARTS


def _decoder(row: DecoderType) -> ModelType:
    return ModelType(row.classes, lambda keys, _: read_decoder(keys, row))


MODEL_TYPES: dict[str, ModelType] = {
    **{name: _decoder(row) for name, row in decoder_types().items()},
    **TEXT_PARTS,
    **ENCODERS,
    **IMAGES,
}

_MAMBA1 = (
    "its Mamba-1 scan, with a decay of every channel and row of its state that is made inside, has "
    "no op here (Mamba-2's has), and attention in its place would cost another amount of work"
)
_WKV = (
    "its recurrence (WKV), whose state is normed as it goes, has no op here, and its class writes "
    "it out token by token"
)
NOT_EXPRESSIBLE = {**dict.fromkeys(("mamba", "falcon_mamba", "jamba"), _MAMBA1), "rwkv": _WKV}
"""Model types that are refused for what no op here computes, and why."""
