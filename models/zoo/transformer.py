"""Transformer parts of a block, as GPT, BERT and the vision transformer have them.

Where the norms stand is the family's own affair. Heads stay a dim of their own, so that splitting
them is S on that dim.

Shape legend: b batch, t queries (places), s keys, k features read, n features made, h heads,
d features of a head, z the one place that is kept.
"""

from math import sqrt

from millrace.models.builder import GraphBuilder, dense, dropout
from millrace.models.errors import ModelError
from millrace.models.ops.pointwise_ops import ACTIVATIONS

INIT_STD = 0.02


def attention_part(
    builder: GraphBuilder,
    x: str,
    heads: int,
    head_dim: int,
    *,
    causal: bool = False,
    scale: float = 0.0,
    bias: bool = True,
    std: float = INIT_STD,
    out_std: float = INIT_STD,
) -> str:
    """Add attention with its projections and return what it adds to `x`.

    `scale` multiplies the scores (0: one over the root of `head_dim`), `bias` is that of q, k and
    v, `out_std` the initial deviation of the last projection.
    """
    hidden = builder.tensors[x].shape[-1]
    sizes = {"h": heads, "d": head_dim}
    query, key, value = (
        dense(builder, f"attn.{part}", x, "b t k, k h d -> b t h d", sizes, std=std, bias=bias)
        for part in ("q", "k", "v")
    )
    mixed = builder.apply(
        "attention",
        "attn.core",
        (query, key, value),
        "b t h d!, b s! h d!, b s! h d! -> b t h d!, b t h",
        attributes={"causal": causal, "scale": scale or 1 / sqrt(head_dim)},
    )
    labels = "b t h d, h d n -> b t n"
    return dense(builder, "attn.out", mixed, labels, {"n": hidden}, std=out_std)


def feed_forward_part(
    builder: GraphBuilder,
    x: str,
    ffn_hidden: int,
    activation: str,
    *,
    std: float = INIT_STD,
    out_std: float = INIT_STD,
) -> str:
    """Add two products with an activation between them and return what they add to `x`."""
    hidden = builder.tensors[x].shape[-1]
    labels = "b t k, k n -> b t n"
    wide = dense(builder, "mlp.fc1", x, labels, {"n": ffn_hidden}, std=std)
    active = builder.apply(activation, f"mlp.{activation}", (wide,), "b t n -> b t n")
    return dense(builder, "mlp.fc2", active, labels, {"n": hidden}, std=out_std)


def residual(builder: GraphBuilder, name: str, x: str, part: str, rate: float) -> str:
    """Add a part, thinned by dropout, to what it read."""
    thinned = dropout(builder, f"{name}.dropout", part, "b t n", rate)
    return builder.apply("add", name, (x, thinned), "b t n, b t n -> b t n")


def first_place(builder: GraphBuilder, name: str, x: str) -> str:
    """Keep what stands at the first place of `b t d`, as `b d`."""
    batch, _, hidden = builder.tensors[x].shape
    first = builder.apply(
        "narrow",
        f"{name}.place",
        (x,),
        "b t! d -> b z! d",
        shapes=((batch, 1, hidden),),
        attributes={"start": 0},
    )
    return builder.apply("sum", name, (first,), "b z d -> b d")


def check_heads(model: str, hidden: int, heads: int) -> None:
    """Raise ModelError when heads do not divide the hidden size."""
    if hidden % heads:
        raise ModelError(f"model `{model}`: hidden ({hidden}) is not divisible by heads ({heads})")


def check_part(model: str, activation: str, epsilon: float, dropout_rate: float) -> None:
    """Raise ModelError when an activation is unknown, or a number is out of its range."""
    if activation not in ACTIVATIONS:
        raise ModelError(
            f"model `{model}`: there is no activation `{activation}`; choose one of "
            f"{', '.join(ACTIVATIONS)}"
        )
    if not 0 < epsilon < 1:
        raise ModelError(f"model `{model}`: `epsilon` is {epsilon}; expected 0 < epsilon < 1")
    if not 0 <= dropout_rate < 1:
        raise ModelError(f"model `{model}`: `dropout` is {dropout_rate}; expected 0 <= dropout < 1")
