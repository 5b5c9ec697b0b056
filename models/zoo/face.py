"""Face recognition: a convolutional network, and an ArcFace classifier of many identities.

The classifier's weight is what grows: with a class per person it outweighs the network, and is
split by identity (label s) while images are split by sample. Features and the rows of the weight
have length one, so that a logit is the cosine of their angle; the angle to the own class grows by
a margin, and all cosines are scaled.

Shape legend: b batch, c channels, y x rows and columns of an image, d features, s identities.

Notes
-----
Deng et al., "ArcFace", arXiv 1801.07698 (2018): scale 64 and margin 0.5 by its section 3.1; the
residual unit (norm, convolution, norm, PReLU, convolution, norm) and the output (norm, fully
connected, norm without a scale) by section 3.1 and the authors' deepinsight/insightface
(recognition/arcface_torch/backbones/iresnet.py). MobileFaceNet: Chen et al., arXiv 1804.07573
(2018), table 1.
"""

from math import prod, sqrt
from typing import NamedTuple

import msgspec

from millrace.models.builder import GraphBuilder, dense
from millrace.models.errors import ModelError
from millrace.models.graph import Graph
from millrace.models.spec import Config, ModelSpec
from millrace.models.zoo.convolution import batch_norm, convolution, images, prelu
from millrace.models.zoo.family import (
    IMAGE,
    Family,
    check_depth,
    check_no_sequence,
    check_sizes,
    one_item,
)

MS1MV2_IDENTITIES = 85742  # Deng et al., arXiv 1801.07698, table 1 (MS1MV2: 85K identities)
LENGTH_EPSILON = 1e-12  # added to squared lengths: a row of zeros stays zeros


class Stage(NamedTuple):
    """Inverted residual units of MobileFaceNet: the first may halve the image."""

    expansion: int
    width: int
    units: int
    stride: int


# Chen et al., arXiv 1804.07573, table 1, for a stem of 64 channels.
MOBILE_STEM = 64
MOBILE_STAGES = (
    Stage(2, 64, 5, 2),
    Stage(4, 128, 1, 2),
    Stage(2, 128, 6, 1),
    Stage(4, 128, 1, 2),
    Stage(2, 128, 2, 1),
)
MOBILE_LAST = 512


class FaceConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of a face recogniser.

    `network` is iresnet (`depths` units per stage, each stage making `widths` channels from an
    image half as large) or mobilefacenet (whose table of stages is fixed: `widths` and `depths`
    are left out, `width_percent` of its channels are made).
    """

    network: str
    depths: tuple[int, ...] = ()
    widths: tuple[int, ...] = ()
    width_percent: int = 100
    features: int = 512
    classes: int = MS1MV2_IDENTITIES
    image_size: int = 112
    channels: int = 3
    scale: float = 64.0
    margin: float = 0.5


def check(spec: ModelSpec, config: FaceConfig) -> None:
    """Raise ModelError when sizes are out of range or a sequence length is asked for."""
    where = f"model `{spec.name}`"
    if config.network not in ("iresnet", "mobilefacenet"):
        raise ModelError(f"{where}: `network` is {config.network!r}; choose iresnet, mobilefacenet")
    stages = len(config.depths)
    wanted = config.network == "iresnet"
    if len(config.widths) != stages or (stages > 0) != wanted:
        raise ModelError(
            f"{where}: {stages} `depths` and {len(config.widths)} `widths`; expected "
            f"{'one of each per stage' if wanted else 'none, as mobilefacenet has its own'}"
        )
    sizes = ("width_percent", "features", "classes", "image_size", "channels", "depths", "widths")
    check_sizes(spec, config, *sizes)
    check_depth(spec, "depths", sum(config.depths))
    if not config.scale > 0:
        raise ModelError(f"{where}: `scale` is {config.scale}, not above 0")
    if not 0 <= config.margin < 1:
        raise ModelError(f"{where}: `margin` is {config.margin} radians; expected 0 to 1")
    check_no_sequence(spec)


def build(spec: ModelSpec, config: FaceConfig, batch: int) -> Graph:
    """Return the forward graph: blocks `stem`, `stage.0.0` …, `features`, `head`.

    Raises
    ------
    ModelError
        Sizes are out of range, or a sequence length is asked for.
    """
    check(spec, config)
    builder = GraphBuilder(
        name=spec.name, batch=batch, tokens_per_sample=1, precision=spec.precision
    )
    network = _iresnet if config.network == "iresnet" else _mobilefacenet
    _head(builder, config, network(builder, config))
    return builder.build()


def _images(builder: GraphBuilder, config: FaceConfig) -> str:
    builder.begin_block("stem")
    return images(builder, "images", config.image_size, config.channels)


def _iresnet(builder: GraphBuilder, config: FaceConfig) -> str:
    x = _images(builder, config)
    x = convolution(builder, "conv", x, config.widths[0])
    x = prelu(builder, "prelu", batch_norm(builder, "norm", x))
    templates: dict[tuple[int, ...], str] = {}
    for stage, (depth, width) in enumerate(zip(config.depths, config.widths, strict=True)):
        for unit in range(depth):
            name = f"stage.{stage}.{unit}"
            stride = 1 if unit else 2
            signature = (*builder.tensors[x].shape, width, stride)
            builder.begin_block(name, template=templates.setdefault(signature, name))
            x = _residual_unit(builder, x, width, stride)
    builder.begin_block("features")
    x = batch_norm(builder, "norm", x)
    std = sqrt(2 / _size(builder, x))
    labels = "b y x c, y x c d -> b d"
    x = dense(builder, "fc", x, labels, {"d": config.features}, std=std)
    return batch_norm(builder, "fc.norm", x, scaled=False)


def _residual_unit(builder: GraphBuilder, x: str, width: int, stride: int) -> str:
    shortcut = x
    if stride != 1 or builder.tensors[x].shape[-1] != width:
        shortcut = convolution(builder, "shortcut.conv", x, width, size=1, stride=stride)
        shortcut = batch_norm(builder, "shortcut.norm", shortcut)
    x = batch_norm(builder, "norm0", x)
    x = convolution(builder, "conv0", x, width)
    x = prelu(builder, "prelu", batch_norm(builder, "norm1", x))
    x = convolution(builder, "conv1", x, width, stride=stride)
    x = batch_norm(builder, "norm2", x)
    return builder.apply("add", "sum", (x, shortcut), "b y x c, b y x c -> b y x c")


def _mobilefacenet(builder: GraphBuilder, config: FaceConfig) -> str:
    def scaled(channels: int) -> int:
        return max(channels * config.width_percent // 100, 1)

    x = _images(builder, config)
    x = _rectified(builder, "conv", x, scaled(MOBILE_STEM), stride=2)
    x = _rectified(builder, "depthwise", x, scaled(MOBILE_STEM), depthwise=True)
    templates: dict[tuple[int, ...], str] = {}
    for number, stage in enumerate(MOBILE_STAGES):
        for unit in range(stage.units):
            name = f"stage.{number}.{unit}"
            sizes = (stage.expansion, scaled(stage.width), 1 if unit else stage.stride)
            signature = (*builder.tensors[x].shape, *sizes)
            builder.begin_block(name, template=templates.setdefault(signature, name))
            x = _inverted_unit(builder, x, *sizes)
    builder.begin_block("features")
    x = _rectified(builder, "conv", x, scaled(MOBILE_LAST), size=1)
    rows = builder.tensors[x].shape[1]
    x = convolution(builder, "whole", x, scaled(MOBILE_LAST), size=rows, padding=0, depthwise=True)
    x = batch_norm(builder, "whole.norm", x)
    std = sqrt(2 / _size(builder, x))
    labels = "b y x c, y x c d -> b d"
    x = dense(builder, "fc", x, labels, {"d": config.features}, std=std, bias=False)
    return batch_norm(builder, "fc.norm", x)


def _inverted_unit(builder: GraphBuilder, x: str, expansion: int, width: int, stride: int) -> str:
    """Add a unit wide inside, narrow outside, whose last convolution is not rectified."""
    read = builder.tensors[x].shape[-1]
    inner = _rectified(builder, "conv0", x, expansion * read, size=1)
    inner = _rectified(builder, "depthwise", inner, expansion * read, stride=stride, depthwise=True)
    narrowed = convolution(builder, "conv1", inner, width, size=1)
    narrowed = batch_norm(builder, "conv1.norm", narrowed)
    if stride != 1 or read != width:
        return narrowed
    return builder.apply("add", "sum", (narrowed, x), "b y x c, b y x c -> b y x c")


def _rectified(
    builder: GraphBuilder,
    name: str,
    x: str,
    channels: int,
    *,
    size: int = 3,
    stride: int = 1,
    depthwise: bool = False,
) -> str:
    """Add a convolution, its norm and a PReLU."""
    x = convolution(builder, name, x, channels, size=size, stride=stride, depthwise=depthwise)
    return prelu(builder, f"{name}.prelu", batch_norm(builder, f"{name}.norm", x))


def _size(builder: GraphBuilder, x: str) -> int:
    """Number of values of one sample of a tensor."""
    return prod(builder.tensors[x].shape[1:])


def _head(builder: GraphBuilder, config: FaceConfig, x: str) -> None:
    """Add the classifier; its weight's rows are brought to length one once a step."""
    builder.begin_block("head")
    epsilon = {"epsilon": LENGTH_EPSILON}
    x = builder.apply("l2_normalize", "unit", (x,), "b d! -> b d!, b", attributes=epsilon)
    shape = (config.classes, config.features)
    weight = builder.variable("classes.weight", "s d", shape, std=0.01)
    weight = builder.apply(
        "l2_normalize", "classes.unit", (weight,), "s d! -> s d!, s", attributes=epsilon
    )
    weight = builder.repeat(weight, "classes.unit", "s d")
    cosine = builder.apply("matmul", "cosine", (x, weight), "b d, s d -> b s")
    identities = builder.input(
        "targets", "b", (builder.batch,), source="identities", values=config.classes
    )
    logits = builder.apply(
        "arc_margin",
        "logits",
        (cosine, identities),
        "b s, b -> b s",
        attributes={"scale": config.scale, "margin": config.margin},
    )
    losses = builder.apply("cross_entropy", "loss", (logits, identities), "b s!, b -> b, b")
    builder.apply("sum", "loss_sum", (losses,), "b -> ")
    builder.apply("count_valid", "token_count", (identities,), "b -> ")


def _iresnet_sizes(*depths: int, **other: int) -> Config:
    widths = (64, 128, 256, 512)
    return {"network": "iresnet", "depths": depths, "widths": widths, **other}


def _mobile_sizes(**other: int) -> Config:
    return {"network": "mobilefacenet", "features": 128, **other}


MODELS: dict[str, Config] = {
    "arcface-demo": {
        "network": "iresnet",
        "depths": (1, 1),
        "widths": (16, 32),
        "features": 64,
        "classes": 1024,
        "image_size": 32,
        "channels": 1,
        "scale": 16.0,
    },
    "arcface-r50": _iresnet_sizes(3, 4, 14, 3),
    "arcface-r100": _iresnet_sizes(3, 13, 30, 3),
    "arcface-r100-1e6": _iresnet_sizes(3, 13, 30, 3, classes=10**6),
    "arcface-r100-1e7": _iresnet_sizes(3, 13, 30, 3, classes=10**7),
    "arcface-mobilefacenet": _mobile_sizes(),
    "arcface-mobilefacenet-1e6": _mobile_sizes(classes=10**6),
    "arcface-mobilefacenet-1e7": _mobile_sizes(classes=10**7),
}

ALIASES = {
    "arcface": "arcface-r100",
    "arcface-resnet-100": "arcface-r100",
    "mobilefacenet": "arcface-mobilefacenet",
}

FAMILY = Family(FaceConfig, check, one_item, build, MODELS, ALIASES, IMAGE)
