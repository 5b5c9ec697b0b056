"""T5: an encoder of the source, and a decoder that reads it while it writes the targets.

Distances between places take the place of positions: a learned number per head and bucket of
distances is added to the scores, one table for all blocks of a stack. The norm is by the root mean
square alone, nothing has a bias, scores are not scaled. T5 1.1 (and Flan-T5) has a gated GELU
between its products and a head of its own.

Shape legend: b batch, t queries, s keys, d hidden (k where contracted, n where made), h heads,
v vocabulary, m buckets of distances.

Notes
-----
Raffel et al., "Exploring the limits of transfer learning with a unified text-to-text transformer",
arXiv 1910.10683 (2019); version 1.1 after Shazeer, "GLU variants improve transformer", arXiv
2002.05202 (2020). `dropout` applies to embeddings, to what each part adds, between the two products
and after each stack; the paper's dropout on attention probabilities has no place in a fused
attention and is left out.
"""

from math import sqrt

import msgspec

from millrace.models.builder import GraphBuilder, dense, dropout
from millrace.models.errors import ModelError
from millrace.models.graph import Graph
from millrace.models.spec import Config, ModelSpec
from millrace.models.zoo import transformer
from millrace.models.zoo.family import Family, check_depth, check_sizes
from millrace.models.zoo.norms import add_norm

SEQ_LEN = 512
"""Tokens of a source in the paper's pre-training (section 3.1.2); distances set no limit."""


class T5Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of a T5; source and targets are sequences of the same length.

    `decoder_layers` 0 stands for as many as the encoder's. `gated` puts a second product beside the
    activation. Without `tied` the head has a table of its own; with `scaled_output` what it reads
    is multiplied by hidden ** -0.5.
    """

    layers: int
    hidden: int
    heads: int
    head_dim: int
    ffn_hidden: int
    vocab: int
    decoder_layers: int = 0
    gated: bool = False
    activation: str = "relu"
    tied: bool = True
    scaled_output: bool = True
    buckets: int = 32
    max_distance: int = 128
    epsilon: float = 1e-6
    dropout: float = 0.0


def check(spec: ModelSpec, config: T5Config) -> None:
    """Raise ModelError when a size is out of its range."""
    sizes = ("layers", "hidden", "heads", "head_dim", "ffn_hidden", "vocab", "max_distance")
    check_sizes(spec, config, *sizes)
    check_sizes(spec, spec, "seq_len")
    transformer.check_part(spec.name, config.activation, config.epsilon, config.dropout)
    check_depth(spec, "decoder_layers", config.decoder_layers)
    if config.decoder_layers < 0:
        raise ModelError(
            f"model `{spec.name}`: `decoder_layers` is {config.decoder_layers}; expected 1 or more "
            f"(0: as many as layers)"
        )
    # Buckets halve for the direction in the encoder, and again into near and far.
    if config.buckets < 4:
        raise ModelError(f"model `{spec.name}`: `buckets` is {config.buckets}, below 4")
    if config.max_distance <= config.buckets // 2:
        raise ModelError(
            f"model `{spec.name}`: `max_distance` is {config.max_distance}; expected more than "
            f"half of `buckets` ({config.buckets})"
        )


def default_seq_len(config: T5Config) -> int:
    """Sequence length of the paper's pre-training."""
    return SEQ_LEN


def build(spec: ModelSpec, config: T5Config, batch: int) -> Graph:
    """Return the forward graph.

    Blocks are `source`, `encoder.0` …, `targets` (the encoder's last norm, the decoder's
    embedding), `decoder.0` …, `head`.

    Raises
    ------
    ModelError
        A size is out of its range.
    """
    check(spec, config)
    builder = GraphBuilder(
        name=spec.name, batch=batch, tokens_per_sample=spec.seq_len, precision=spec.precision
    )
    builder.begin_block("source")
    table = builder.variable("tokens.weight", "v d", (config.vocab, config.hidden), std=1.0)
    x = _embedding(builder, config, table, "source_tokens", spec.seq_len)
    distances = _distances(builder, config)
    for layer in range(config.layers):
        builder.begin_block(f"encoder.{layer}", template="encoder")
        x = _self_attention(builder, config, x, distances, causal=False)
        x = _feed_forward(builder, config, x)
    builder.begin_block("targets")
    read = _last_norm(builder, config, x)
    x = _embedding(builder, config, table, "decoder_tokens", spec.seq_len)
    distances = _distances(builder, config)
    for layer in range(config.decoder_layers or config.layers):
        builder.begin_block(f"decoder.{layer}", template="decoder")
        x = _self_attention(builder, config, x, distances, causal=True)
        x = _cross_attention(builder, config, x, read)
        x = _feed_forward(builder, config, x)
    builder.begin_block("head")
    _head(builder, config, _last_norm(builder, config, x), table, spec.seq_len)
    return builder.build()


def _embedding(
    builder: GraphBuilder, config: T5Config, table: str, source: str, seq_len: int
) -> str:
    shape = (builder.batch, seq_len)
    ids = builder.input("ids", "b t", shape, source=source, values=config.vocab)
    used = builder.repeat(table, "tokens.weight", "v d")
    x = builder.apply("embedding", "tokens", (ids, used), "b t, v d -> b t d")
    return dropout(builder, "dropout", x, "b t d", config.dropout)


def _distances(builder: GraphBuilder, config: T5Config) -> str:
    """Add the table of one stack's distances (once a step), which all of its blocks read."""
    shape = (config.buckets, config.heads)
    return builder.variable("distances.weight", "m h", shape, std=config.hidden**-0.5)


def _self_attention(
    builder: GraphBuilder, config: T5Config, x: str, distances: str, *, causal: bool
) -> str:
    normed = _norm(builder, "attn.norm", x, config)
    seq_len = builder.tensors[x].shape[1]
    used = builder.repeat(distances, "distances.weight", "m h")
    bias = builder.apply(
        "relative_bias",
        "attn.bias",
        (used,),
        "m! h -> h t s!",
        shapes=((config.heads, seq_len, seq_len),),
        attributes={"bidirectional": not causal, "max_distance": config.max_distance},
    )
    mixed = builder.apply(
        "biased_attention",
        "attn.core",
        (*_queries_keys_values(builder, config, "attn", normed, normed), bias),
        "b t h d!, b s! h d!, b s! h d!, h t s! -> b t h d!, b t h",
        attributes={"causal": causal, "scale": 1.0},
    )
    return _projected(builder, config, "attn", x, mixed)


def _cross_attention(builder: GraphBuilder, config: T5Config, x: str, read: str) -> str:
    normed = _norm(builder, "cross.norm", x, config)
    mixed = builder.apply(
        "attention",
        "cross.core",
        _queries_keys_values(builder, config, "cross", normed, read),
        "b t h d!, b s! h d!, b s! h d! -> b t h d!, b t h",
        attributes={"causal": False, "scale": 1.0},
    )
    return _projected(builder, config, "cross", x, mixed)


def _queries_keys_values(
    builder: GraphBuilder, config: T5Config, part: str, x: str, read: str
) -> tuple[str, str, str]:
    sizes = {"h": config.heads, "d": config.head_dim}
    labels = "b t k, k h d -> b t h d"
    std = config.hidden**-0.5
    query_std = (config.hidden * config.head_dim) ** -0.5  # in place of scaled scores
    return (
        dense(builder, f"{part}.q", x, labels, sizes, std=query_std, bias=False),
        dense(builder, f"{part}.k", read, labels, sizes, std=std, bias=False),
        dense(builder, f"{part}.v", read, labels, sizes, std=std, bias=False),
    )


def _projected(builder: GraphBuilder, config: T5Config, part: str, x: str, mixed: str) -> str:
    """Bring what the heads made back to the hidden size and add it to `x`."""
    std = (config.heads * config.head_dim) ** -0.5
    labels = "b t h d, h d n -> b t n"
    sizes = {"n": config.hidden}
    out = dense(builder, f"{part}.out", mixed, labels, sizes, std=std, bias=False)
    return transformer.residual(builder, f"{part}.residual", x, out, config.dropout)


def _feed_forward(builder: GraphBuilder, config: T5Config, x: str) -> str:
    normed = _norm(builder, "mlp.norm", x, config)
    labels = "b t k, k n -> b t n"
    wide, std = {"n": config.ffn_hidden}, config.hidden**-0.5
    inner = dense(builder, "mlp.fc1", normed, labels, wide, std=std, bias=False)
    inner = builder.apply(config.activation, f"mlp.{config.activation}", (inner,), "b t n -> b t n")
    if config.gated:
        up = dense(builder, "mlp.up", normed, labels, wide, std=std, bias=False)
        inner = builder.apply("mul", "mlp.gated", (inner, up), "b t n, b t n -> b t n")
    inner = dropout(builder, "mlp.dropout", inner, "b t n", config.dropout)
    narrow, std = {"n": config.hidden}, config.ffn_hidden**-0.5
    out = dense(builder, "mlp.fc2", inner, labels, narrow, std=std, bias=False)
    return transformer.residual(builder, "mlp.residual", x, out, config.dropout)


def _last_norm(builder: GraphBuilder, config: T5Config, x: str) -> str:
    """Add the norm at the end of a stack."""
    normed = _norm(builder, "norm", x, config)
    return dropout(builder, "norm.dropout", normed, "b t d", config.dropout)


def _head(builder: GraphBuilder, config: T5Config, x: str, table: str, seq_len: int) -> None:
    if config.scaled_output:
        factor = {"factor": 1 / sqrt(config.hidden)}
        x = builder.apply("scale", "scaled", (x,), "b t d -> b t d", attributes=factor)
    if config.tied:
        decoder = builder.repeat(table, "tokens.weight", "v k")
    else:
        shape, std = (config.vocab, config.hidden), config.hidden**-0.5
        decoder = builder.parameter("logits.weight", "v k", shape, std=std)
    logits = builder.apply("matmul", "logits", (x, decoder), "b t k, v k -> b t v")
    shape = (builder.batch, seq_len)
    targets = builder.input("targets", "b t", shape, source="decoder_targets", values=config.vocab)
    losses = builder.apply("cross_entropy", "loss", (logits, targets), "b t v!, b t -> b t, b t")
    builder.apply("sum", "loss_sum", (losses,), "b t -> ")
    builder.apply("count_valid", "token_count", (targets,), "b t -> ")


def _norm(builder: GraphBuilder, name: str, x: str, config: T5Config) -> str:
    return add_norm(builder, name, x, kind="rms", epsilon=config.epsilon)


VOCAB = 32128  # 32,000 pieces and 100 sentinels, rounded up to a multiple of 128


def _first(layers: int, hidden: int, heads: int, head_dim: int, ffn_hidden: int) -> Config:
    return {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "head_dim": head_dim,
        "ffn_hidden": ffn_hidden,
        "vocab": VOCAB,
    }


def _second(layers: int, hidden: int, heads: int, ffn_hidden: int) -> Config:
    """Sizes of version 1.1: gated, with a head of its own that reads unscaled values."""
    version_fields: Config = {
        "gated": True,
        "activation": "gelu",
        "tied": False,
        "scaled_output": False,
    }
    return _first(layers, hidden, heads, 64, ffn_hidden) | version_fields


# Raffel et al., arXiv 1910.10683 (2019), section 3.7; version 1.1 as in its released gin files
# (google-research/text-to-text-transfer-transformer, released_checkpoints.md, 2020).
MODELS: dict[str, Config] = {
    "t5-demo": _first(2, 128, 4, 32, 512) | {"vocab": 256},
    "t5-small": _first(6, 512, 8, 64, 2048),
    "t5-base": _first(12, 768, 12, 64, 3072),
    "t5-large": _first(24, 1024, 16, 64, 4096),
    "t5-3b": _first(24, 1024, 32, 128, 16384),
    "t5-11b": _first(24, 1024, 128, 128, 65536),
    "t5-v1.1-small": _second(8, 512, 6, 1024),
    "t5-v1.1-base": _second(12, 768, 12, 2048),
    "t5-v1.1-large": _second(24, 1024, 16, 2816),
    "t5-v1.1-xl": _second(24, 2048, 32, 5120),
    "t5-v1.1-xxl": _second(24, 4096, 64, 10240),
}

ALIASES = {
    "t5": "t5-base",
    **{f"flan-t5-{size}": f"t5-v1.1-{size}" for size in ("small", "base", "large", "xl", "xxl")},
}

FAMILY = Family(T5Config, check, default_seq_len, build, MODELS, ALIASES)
