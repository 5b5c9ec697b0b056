"""Layer inputs: a vector of every token that a layer has of its own (Gemma 4).

A row of the layer's own table for the token, and a projection of the model's first stream, normed,
are added up; what the layer's stream makes opens this vector, which is projected back to the
stream. The published models pack the tables and projections of all layers into one each; here each
lies with its layer, whose stage of a pipeline reads nothing else of it.

Shape legend: b batch, t tokens, k n hidden, p features of the vector, v vocabulary.

Notes
-----
Google, "Gemma 3n" (May 2025) and "Gemma 4" (April 2026), as transformers' `Gemma4TextModel` and
`Gemma4TextDecoderLayer` (5.24) have it: the projection is divided by the root of the stream's
width, the row multiplied by that of its own, their sum divided by that of two.
"""

from math import sqrt

from millrace.models.builder import GraphBuilder, dense
from millrace.models.zoo.decoder.config import DecoderConfig
from millrace.models.zoo.decoder.feed_forward import pointwise
from millrace.models.zoo.norms import add_norm

NORM = "inputs.norm.weight"


def shared_norm(builder: GraphBuilder, width: int) -> None:
    """Add the weights of the norm that the vectors of all layers share, once a step.

    Parameters
    ----------
    builder : GraphBuilder
        Gets the variable, in the block of the embedding.
    width : int
        Features of a vector.
    """
    builder.variable(NORM, "p", (width,), init="ones", decay=False)


def add_layer_input(builder: GraphBuilder, config: DecoderConfig, x: str, layer: int) -> str:
    """Add a layer's vector to the stream behind its parts; return the stream.

    Parameters
    ----------
    builder, config, x, layer
        As for any part; the embedding's block has the first stream, `tokens`, and `shared_norm`.
    """
    sizes = config.layer_inputs
    if sizes is None or layer >= config.layers:
        return x
    vector = _vector(builder, config, layer, sizes.width, sizes.vocab)
    labels, std = "b t k, k n -> b t n", config.init_std
    width = {"n": sizes.width}
    logit = dense(builder, "input.gate", x, labels, width, std=std, bias=False)
    opened = pointwise(builder, config, "input.open", logit, "b t p")
    opened = builder.apply("mul", "input.opened", (opened, vector), "b t p, b t p -> b t p")
    hidden = {"n": config.hidden}
    out = dense(builder, "input.out", opened, labels, hidden, std=config.residual_std, bias=False)
    out = add_norm(builder, "input.post", out, kind=config.norm, epsilon=config.epsilon)
    return builder.apply("add", "input.residual", (x, out), "b t n, b t n -> b t n")


def _vector(
    builder: GraphBuilder, config: DecoderConfig, layer: int, width: int, vocab: int
) -> str:
    """Add the vector of every token: its row of the table, and what the first stream makes."""
    first = "embedding.tokens"
    if config.embedding_scale != 1:
        first = "embedding.tokens.scaled"
    table = builder.parameter("input.tokens.weight", "v p", (vocab, width), std=config.init_std)
    rows = builder.apply("embedding", "input.tokens", ("embedding.ids", table), "b t, v p -> b t p")
    labels, std = "b t k, k n -> b t n", config.init_std
    seen = dense(builder, "input.seen", first, labels, {"n": width}, std=std, bias=False)
    dims = "b t p"
    less = {"factor": 1 / sqrt(config.hidden)}
    seen = builder.apply(
        "scale", "input.seen.scaled", (seen,), f"{dims} -> {dims}", attributes=less
    )
    norm = f"embedding.{NORM}"
    used = f"{norm}.cast" if f"{norm}.cast" in builder.tensors else norm
    weight = builder.repeat(used, "input.norm.weight", "p")
    seen = builder.apply(
        "rms_norm",
        "input.norm",
        (seen, weight),
        "b t p!, p! -> b t p!, b t",
        attributes={"epsilon": config.epsilon},
    )
    more = {"factor": sqrt(width)}
    rows = builder.apply("scale", "input.rows", (rows,), f"{dims} -> {dims}", attributes=more)
    both = builder.apply("add", "input.sum", (seen, rows), f"{dims}, {dims} -> {dims}")
    half = {"factor": sqrt(0.5)}
    return builder.apply("scale", "input.vector", (both,), f"{dims} -> {dims}", attributes=half)
