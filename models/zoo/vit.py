"""ViT, the vision transformer: an encoder over an image's patches and a class token before them.

Patches by a convolution whose windows do not overlap (what is left over at the right and below is
not read), learned positions, a layer norm before each part, GELU in its exact form, a classifier on
the class token.

Shape legend: b batch, c channels read, n features made, y x rows and columns of the image, q p of a
patch, j i of the grid of patches, t places (the class token, then patches by rows), z one place,
d k hidden, s classes.

Notes
-----
Dosovitskiy et al., "An image is worth 16x16 words", arXiv 2010.11929 (2020); without the hidden
layer that the classifier has in pre-training alone. `dropout` applies to the embeddings and to what
each part adds.
"""

from math import sqrt

import msgspec

from millrace.models.builder import GraphBuilder, dense, dropout
from millrace.models.errors import ModelError
from millrace.models.graph import Graph
from millrace.models.spec import Config, ModelSpec
from millrace.models.zoo import transformer
from millrace.models.zoo.family import IMAGE, Family, check_no_sequence, check_sizes, one_item
from millrace.models.zoo.norms import add_norm


class VitConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of a vision transformer; `image` and `patch` are rows and columns of pixels.

    `head_dim` 0 stands for the hidden size divided by the heads.
    """

    layers: int
    hidden: int
    heads: int
    ffn_hidden: int
    classes: int
    head_dim: int = 0
    image: tuple[int, int] = (224, 224)
    patch: tuple[int, int] = (16, 16)
    channels: int = 3
    qkv_bias: bool = True
    activation: str = "gelu_erf"
    epsilon: float = 1e-6
    dropout: float = 0.0

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.image[0] // self.patch[0], self.image[1] // self.patch[1]


def check(spec: ModelSpec, config: VitConfig) -> None:
    """Raise ModelError when sizes do not divide or a sequence length is asked for."""
    sizes = ("layers", "hidden", "heads", "ffn_hidden", "classes", "channels", "image", "patch")
    check_sizes(spec, config, *sizes)
    if config.head_dim < 0:
        raise ModelError(f"model `{spec.name}`: `head_dim` is {config.head_dim}, below 0")
    if not config.head_dim:
        transformer.check_heads(spec.name, config.hidden, config.heads)
    transformer.check_part(spec.name, config.activation, config.epsilon, config.dropout)
    if min(config.grid) < 1:
        raise ModelError(
            f"model `{spec.name}`: an image of {config.image[0]} x {config.image[1]} pixels holds "
            f"no patch of {config.patch[0]} x {config.patch[1]}; take smaller patches"
        )
    check_no_sequence(spec)


def build(spec: ModelSpec, config: VitConfig, batch: int) -> Graph:
    """Return the forward graph: blocks `embedding`, `layer.0` …, `head`.

    Raises
    ------
    ModelError
        Sizes do not divide, or a sequence length is asked for.
    """
    check(spec, config)
    builder = GraphBuilder(
        name=spec.name, batch=batch, tokens_per_sample=1, precision=spec.precision
    )
    head_dim = config.head_dim or config.hidden // config.heads
    builder.begin_block("embedding")
    x = _places(builder, config, _patches(builder, config))
    for layer in range(config.layers):
        builder.begin_block(f"layer.{layer}", template="layer")
        normed = add_norm(builder, "ln1", x, epsilon=config.epsilon)
        mixed = transformer.attention_part(
            builder, normed, config.heads, head_dim, bias=config.qkv_bias
        )
        x = transformer.residual(builder, "attn.residual", x, mixed, config.dropout)
        normed = add_norm(builder, "ln2", x, epsilon=config.epsilon)
        mlp_output = transformer.feed_forward_part(
            builder, normed, config.ffn_hidden, config.activation
        )
        x = transformer.residual(builder, "mlp.residual", x, mlp_output, config.dropout)
    _head(builder, config, x)
    return builder.build()


def _patches(builder: GraphBuilder, config: VitConfig) -> str:
    """Cut the image into patches and return their features, `b t n`."""
    shape = (builder.batch, *config.image, config.channels)
    image = builder.input("image", "b y x c", shape, source="images", channels_last=True)
    window = (config.hidden, *config.patch, config.channels)
    fan_in = config.channels * config.patch[0] * config.patch[1]
    weight = builder.parameter("patches.weight", "n q p c", window, std=1 / sqrt(fan_in))
    bias = builder.parameter("patches.bias", "n", (config.hidden,), init="zeros", decay=False)
    cut = builder.apply(
        "conv",
        "patches.conv",
        (image, weight),
        "b y! x! c, n q! p! c -> b j! i! n",
        shapes=((builder.batch, *config.grid, config.hidden),),
        attributes={
            "stride_y": config.patch[0],
            "stride_x": config.patch[1],
            "pad_y": 0,
            "pad_x": 0,
        },
    )
    row = builder.apply("rearrange", "patches.row", (cut,), "b j i n -> b (j i) n")
    return builder.apply("add", "patches", (row, bias), "b t n, n -> b t n")


def _places(builder: GraphBuilder, config: VitConfig, patches: str) -> str:
    """Set the class token before the patches and add the positions."""
    hidden, places = config.hidden, 1 + config.grid[0] * config.grid[1]
    token = builder.parameter("class.weight", "d", (hidden,))
    spread = builder.apply(
        "broadcast", "class", (token,), "d -> b z d", shapes=((builder.batch, 1, hidden),)
    )
    row = builder.apply(
        "concat",
        "places",
        (spread, patches),
        "b z! d, b p! d -> b t! d",
        shapes=((builder.batch, places, hidden),),
    )
    positions = builder.parameter("positions.weight", "t d", (places, hidden))
    x = builder.apply("add", "sum", (row, positions), "b t d, t d -> b t d")
    return dropout(builder, "dropout", x, "b t d", config.dropout)


def _head(builder: GraphBuilder, config: VitConfig, x: str) -> None:
    builder.begin_block("head")
    normed = add_norm(builder, "ln", x, epsilon=config.epsilon)
    first = transformer.first_place(builder, "first", normed)
    logits = dense(builder, "logits", first, "b k, k s -> b s", {"s": config.classes})
    shape = (builder.batch,)
    targets = builder.input("targets", "b", shape, source="classes", values=config.classes)
    losses = builder.apply("cross_entropy", "loss", (logits, targets), "b s!, b -> b, b")
    builder.apply("sum", "loss_sum", (losses,), "b -> ")
    builder.apply("count_valid", "token_count", (targets,), "b -> ")


# Dosovitskiy et al., arXiv 2010.11929 (2020), table 1, over the 1,000 classes of ImageNet.
def _sizes(layers: int, hidden: int, heads: int, patch: int) -> Config:
    return {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "ffn_hidden": 4 * hidden,
        "classes": 1000,
        "patch": (patch, patch),
    }


MODELS: dict[str, Config] = {
    "vit-demo": {
        "layers": 4,
        "hidden": 64,
        "heads": 4,
        "ffn_hidden": 256,
        "classes": 10,
        "image": (8, 8),
        "patch": (2, 2),
        "channels": 1,
    },
    "vit-b": _sizes(12, 768, 12, 16),
    "vit-l": _sizes(24, 1024, 16, 16),
    "vit-h": _sizes(32, 1280, 16, 14),
}

ALIASES = {
    "vit-b-16": "vit-b",
    "vit-l-16": "vit-l",
    "vit-h-14": "vit-h",
    "vit-base": "vit-b",
    "vit-large": "vit-l",
    "vit-huge": "vit-h",
    "vit-base-patch16-224": "vit-b",
    "vit-large-patch16-224": "vit-l",
    "vit-huge-patch14-224": "vit-h",
}

FAMILY = Family(VitConfig, check, one_item, build, MODELS, ALIASES, IMAGE)
