"""ResNet: residual networks of basic and bottleneck blocks, at any size.

Version 1.5 where a bottleneck's 3x3 convolution has the stride (the first 1x1 has it with
`stride_first`). Convolutions have no bias; a batch norm follows each. Every block's sum is
rectified; its shortcut is a 1x1 convolution where shapes differ.

Shape legend: b batch, c channels, y x rows and columns of an image, k features, s classes.

Notes
-----
He et al., "Deep residual learning for image recognition", arXiv 1512.03385 (2015), table 1; the
stride in the 3x3 is that of Goyal et al., arXiv 1706.02677 (2017), section 5.1.
"""

from math import sqrt

import msgspec

from millrace.models.builder import GraphBuilder, dense
from millrace.models.errors import ModelError
from millrace.models.graph import Graph
from millrace.models.ops import FUNCTIONS
from millrace.models.spec import Config, ModelSpec
from millrace.models.zoo.convolution import (
    SAME,
    batch_norm,
    convolution,
    global_mean,
    images,
    max_pool,
)
from millrace.models.zoo.family import IMAGE, Family, check_depth, check_no_sequence, one_item

REDUCTION = 4  # a bottleneck's inner convolutions have so many times fewer channels


class ResNetConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of a ResNet: `depths` blocks per stage, each making `widths` channels.

    `block` is basic (two 3x3) or bottleneck (1x1, 3x3, 1x1). Stages after the first halve the
    image, the first one too with `shrink_first_stage`. `activation` follows the stem and every
    block's sum; inside a block it is always relu.
    """

    block: str
    depths: tuple[int, ...]
    widths: tuple[int, ...]
    stem: int = 64
    image_size: int = 224
    channels: int = 3
    classes: int = 1000
    activation: str = "relu"
    stride_first: bool = False
    shrink_first_stage: bool = False


def check(spec: ModelSpec, config: ResNetConfig) -> None:
    """Raise ModelError when sizes are out of range or a sequence length is asked for."""
    where = f"model `{spec.name}`"
    if config.block not in ("basic", "bottleneck"):
        raise ModelError(f"{where}: `block` is {config.block!r}; choose basic or bottleneck")
    if not config.depths or len(config.depths) != len(config.widths):
        raise ModelError(
            f"{where}: `depths` has {len(config.depths)} stages, `widths` {len(config.widths)}; "
            f"give the same number of both, one or more"
        )
    least = REDUCTION if config.block == "bottleneck" else 1
    rows = (("depths", config.depths, 1), ("widths", config.widths, least))
    sizes = [(field, value, bound) for field, values, bound in rows for value in values]
    sizes += [
        (field, getattr(config, field), 1)
        for field in ("stem", "image_size", "channels", "classes")
    ]
    for field, value, bound in sizes:
        if value < bound:
            raise ModelError(f"{where}: `{field}` is {value}, below {bound}")
    check_depth(spec, "depths", sum(config.depths))
    if FUNCTIONS.get(config.activation, ("", ("slope",)))[1]:
        plain = ", ".join(name for name, (_, attributes) in FUNCTIONS.items() if not attributes)
        raise ModelError(f"{where}: `activation` is {config.activation!r}; choose one of {plain}")
    check_no_sequence(spec)


def build(spec: ModelSpec, config: ResNetConfig, batch: int) -> Graph:
    """Return the forward graph: blocks `stem`, `stage.0.0` …, `head`.

    Raises
    ------
    ModelError
        Sizes are out of range, or a sequence length is asked for.
    """
    check(spec, config)
    builder = GraphBuilder(
        name=spec.name, batch=batch, tokens_per_sample=1, precision=spec.precision
    )
    x = _stem(builder, config)
    templates: dict[tuple[int, ...], str] = {}
    for stage, (depth, width) in enumerate(zip(config.depths, config.widths, strict=True)):
        for block in range(depth):
            name = f"stage.{stage}.{block}"
            shrinks = block == 0 and (stage > 0 or config.shrink_first_stage)
            stride = 2 if shrinks else 1
            signature = (*builder.tensors[x].shape, width, stride)
            builder.begin_block(name, template=templates.setdefault(signature, name))
            x = _residual_block(builder, config, x, width, stride)
    _head(builder, config, x)
    return builder.build()


def _stem(builder: GraphBuilder, config: ResNetConfig) -> str:
    builder.begin_block("stem")
    x = images(builder, "images", config.image_size, config.channels)
    x = convolution(builder, "conv", x, config.stem, size=7, stride=2)
    x = batch_norm(builder, "norm", x)
    x = builder.apply(config.activation, "active", (x,), SAME)
    return max_pool(builder, "pool", x, size=3, stride=2, pad=1)


def _residual_block(
    builder: GraphBuilder, config: ResNetConfig, x: str, width: int, stride: int
) -> str:
    """Add a residual block; its last norm is not rectified before the shortcut is added."""
    windows: tuple[tuple[int, int, int], ...]
    if config.block == "basic":
        windows = ((width, 3, stride), (width, 3, 1))
    else:
        inner = width // REDUCTION
        first, second = (stride, 1) if config.stride_first else (1, stride)
        windows = ((inner, 1, first), (inner, 3, second), (width, 1, 1))
    shortcut = x
    if stride != 1 or builder.tensors[x].shape[-1] != width:
        shortcut = convolution(builder, "shortcut.conv", x, width, size=1, stride=stride)
        shortcut = batch_norm(builder, "shortcut.norm", shortcut)
    for index, (channels, size, step) in enumerate(windows):
        x = convolution(builder, f"conv{index}", x, channels, size=size, stride=step)
        x = batch_norm(builder, f"norm{index}", x)
        if index + 1 < len(windows):
            x = builder.apply("relu", f"relu{index}", (x,), SAME)
    total = builder.apply("add", "sum", (x, shortcut), "b y x c, b y x c -> b y x c")
    return builder.apply(config.activation, "active", (total,), SAME)


def _head(builder: GraphBuilder, config: ResNetConfig, x: str) -> None:
    builder.begin_block("head")
    pooled = global_mean(builder, "pool", x)
    std = 1 / sqrt(3 * config.widths[-1])
    logits = dense(builder, "logits", pooled, "b k, k s -> b s", {"s": config.classes}, std=std)
    targets = builder.input(
        "targets", "b", (builder.batch,), source="classes", values=config.classes
    )
    losses = builder.apply("cross_entropy", "loss", (logits, targets), "b s!, b -> b, b")
    builder.apply("sum", "loss_sum", (losses,), "b -> ")
    builder.apply("count_valid", "token_count", (targets,), "b -> ")


def _sizes(block: str, *depths: int) -> Config:
    expansion = REDUCTION if block == "bottleneck" else 1
    widths = tuple(expansion * width for width in (64, 128, 256, 512))
    return {"block": block, "depths": depths, "widths": widths}


# He et al., arXiv 1512.03385, table 1.
MODELS: dict[str, Config] = {
    "resnet-demo": {
        "block": "bottleneck",
        "depths": (2, 2),
        "widths": (64, 128),
        "stem": 16,
        "image_size": 32,
        "channels": 1,
        "classes": 10,
    },
    "resnet-18": _sizes("basic", 2, 2, 2, 2),
    "resnet-34": _sizes("basic", 3, 4, 6, 3),
    "resnet-50": _sizes("bottleneck", 3, 4, 6, 3),
    "resnet-101": _sizes("bottleneck", 3, 4, 23, 3),
    "resnet-152": _sizes("bottleneck", 3, 8, 36, 3),
}

ALIASES = {
    "resnet18": "resnet-18",
    "resnet34": "resnet-34",
    "resnet50": "resnet-50",
    "resnet-50-v1.5": "resnet-50",
    "resnet101": "resnet-101",
    "resnet152": "resnet-152",
}

FAMILY = Family(ResNetConfig, check, one_item, build, MODELS, ALIASES, IMAGE)
