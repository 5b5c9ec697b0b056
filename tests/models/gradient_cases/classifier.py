"""A small classifier around what is to be differentiated.

Shape legend: b samples, t tokens, k features, v classes, h heads, d features of a head.
"""

from collections.abc import Callable

from millrace.models.builder import GraphBuilder, dense
from millrace.models.graph import Graph

B, T, K, H, D, V = 2, 3, 4, 2, 3, 5
Body = Callable[[GraphBuilder, str], str]
"""From features b t k to features b t k."""

Ending = Callable[[GraphBuilder, str], None]
"""From features b t k to a scalar loss and a count."""


def token_losses(builder: GraphBuilder, x: str) -> str:
    """Losses b t of features b t k, and their count."""
    logits = dense(builder, "out_of", x, "b t k, k v -> b t v", {"v": V})
    targets = builder.input("targets", "b t", (B, T), source="targets", values=V)
    builder.apply("count_valid", "token_count", (targets,), "b t -> ")
    return builder.apply("cross_entropy", "loss", (logits, targets), "b t v!, b t -> b t, b t")


def plain(builder: GraphBuilder, x: str) -> None:
    """The sum of the losses."""
    builder.apply("sum", "loss_sum", (token_losses(builder, x),), "b t -> ")


def classifier(body: Body, ending: Ending = plain, precision: str = "fp64") -> Graph:
    """Features b t k, through one trained layer and `body`, to a loss."""
    builder = GraphBuilder(name="case", batch=B, tokens_per_sample=T, precision=precision)
    builder.begin_block("body")
    x = builder.input("x", "b t k", (B, T, K), source="features")
    trained = dense(builder, "into", x, "b t k, k n -> b t n", {"n": K}, std=1.0)
    ending(builder, body(builder, trained))
    return builder.build()


def unchanged(builder: GraphBuilder, x: str) -> str:
    """No body."""
    return x
