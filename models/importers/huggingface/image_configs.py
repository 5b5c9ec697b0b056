"""Configs of convolutional networks of images: ResNet.

Defaults are those of the configuration class of transformers (release 5), which names no size of
images: they are as large as published.
"""

from millrace.models.importers.huggingface.activations import ACTIVATIONS
from millrace.models.importers.huggingface.encoders import labels
from millrace.models.importers.huggingface.keys import LAYERS_MAX, Keys
from millrace.models.importers.huggingface.mapping import Mapped, ModelType
from millrace.models.spec import Config

_BLOCKS = {"basic": "basic", "bottleneck": "bottleneck"}


def read_resnet(keys: Keys, architecture: str) -> Mapped:
    """Return the configuration of a ResNet that classifies images."""
    config: Config = {
        "block": keys.choice("layer_type", _BLOCKS, "bottleneck"),
        "depths": keys.integers("depths", (3, 4, 6, 3), most=LAYERS_MAX),
        "widths": keys.integers("hidden_sizes", (256, 512, 1024, 2048)),
        "stem": keys.integer("embedding_size", 64),
        "channels": keys.integer("num_channels", 3),
        "classes": labels(keys),
        "activation": keys.choice("hidden_act", ACTIVATIONS, "relu"),
        "stride_first": keys.flag("downsample_in_bottleneck", False),
        "shrink_first_stage": keys.flag("downsample_in_first_stage", False),
    }
    return Mapped("resnet", config, 1)


MODEL_TYPES: dict[str, ModelType] = {
    "resnet": ModelType(("ResNetForImageClassification",), read_resnet),
}
