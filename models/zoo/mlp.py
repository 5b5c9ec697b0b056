"""MLP: a classifier of small images, the least model that has every part of a training step.

Shape legend: b batch, i rows and j columns of an image, k features read, n features made,
c classes.
"""

from math import sqrt

import msgspec

from millrace.models.builder import GraphBuilder, dense
from millrace.models.errors import ModelError
from millrace.models.graph import Graph
from millrace.models.spec import Config, ModelSpec
from millrace.models.zoo.family import SAMPLE, Family, check_no_sequence, check_sizes, one_item


class MlpConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of an MLP: images of `inputs` pixels in rows of `columns`, `layers` hidden layers."""

    inputs: int
    columns: int
    hidden: int
    layers: int
    classes: int


def check(spec: ModelSpec, config: MlpConfig) -> None:
    """Raise ModelError when the sizes do not divide or a sequence length is asked for."""
    check_sizes(spec, config, *config.__struct_fields__)
    if config.inputs % config.columns:
        raise ModelError(
            f"model `{spec.name}`: inputs ({config.inputs}) is not divisible by columns "
            f"({config.columns})"
        )
    check_no_sequence(spec)


def build(spec: ModelSpec, config: MlpConfig, batch: int) -> Graph:
    """Return the forward graph: blocks `stem`, `layer.0` …, `head`.

    The stem makes the first of the `layers` hidden layers. Weights start at He et al.'s deviation
    sqrt(2 / inputs of the layer) (arXiv 1502.01852, section 2.2).

    Raises
    ------
    ModelError
        A sequence length is asked for, or the sizes do not divide.
    """
    check(spec, config)
    builder = GraphBuilder(
        name=spec.name, batch=batch, tokens_per_sample=1, precision=spec.precision
    )
    rows = config.inputs // config.columns
    builder.begin_block("stem")
    shape = (batch, rows, config.columns)
    image = builder.input("features", "b i j", shape, source="features")
    x = builder.apply("rearrange", "flat", (image,), "b i j -> b (i j)")
    x = _hidden(builder, x, config.inputs, config.hidden)
    for layer in range(config.layers - 1):
        builder.begin_block(f"layer.{layer}", template="layer")
        x = _hidden(builder, x, config.hidden, config.hidden)
    _head(builder, config, x)
    return builder.build()


def _hidden(builder: GraphBuilder, x: str, inputs: int, outputs: int) -> str:
    sizes = {"n": outputs}
    product = dense(builder, "fc", x, "b k, k n -> b n", sizes, std=sqrt(2 / inputs))
    return builder.apply("relu", "relu", (product,), "b n -> b n")


def _head(builder: GraphBuilder, config: MlpConfig, x: str) -> None:
    builder.begin_block("head")
    sizes = {"c": config.classes}
    logits = dense(builder, "logits", x, "b k, k c -> b c", sizes, std=sqrt(2 / config.hidden))
    classes = (builder.batch,)
    targets = builder.input("targets", "b", classes, source="classes", values=config.classes)
    losses = builder.apply("cross_entropy", "loss", (logits, targets), "b c!, b -> b, b")
    builder.apply("sum", "loss_sum", (losses,), "b -> ")
    builder.apply("count_valid", "token_count", (targets,), "b -> ")


MODELS: dict[str, Config] = {
    "mlp": {"inputs": 784, "columns": 28, "hidden": 256, "layers": 4, "classes": 10},
}

FAMILY = Family(MlpConfig, check, one_item, build, MODELS, {}, SAMPLE)
