"""Decoders: blocks `embedding`, `h.0` …, `mtp.0` … where further tokens are predicted, `head`.

Shape legend: b batch, t sequence, d hidden, v vocabulary.
"""

import numpy as np

from millrace.models.builder import GraphBuilder
from millrace.models.graph import Graph
from millrace.models.spec import ModelSpec
from millrace.models.zoo.decoder.approximations import approximations
from millrace.models.zoo.decoder.config import DecoderConfig, check
from millrace.models.zoo.decoder.head import Streams, add_head, add_modules
from millrace.models.zoo.decoder.layer import add_layer, scaled, stream_norm
from millrace.models.zoo.decoder.names import ALIASES, MODELS
from millrace.models.zoo.decoder.recurrent_sizes import KINDS
from millrace.models.zoo.decoder.residual import shared_norm, spread
from millrace.models.zoo.family import Family


def default_seq_len(config: DecoderConfig) -> int:
    """The longest sequence that the model was made for."""
    return config.positions


def build(spec: ModelSpec, config: DecoderConfig, batch: int) -> Graph:
    """Return the forward graph; layers of one kind share a template.

    Raises
    ------
    ModelError
        The sizes do not make a model (see `config.check`).
    """
    check(spec, config)
    builder = GraphBuilder(
        name=spec.name, batch=batch, tokens_per_sample=spec.seq_len, precision=spec.precision
    )
    x, table = _embedding(builder, config, spec.seq_len)
    balance: list[str] = []
    for layer in range(config.layers):
        builder.begin_block(f"h.{layer}", template=_template(config, layer))
        x, unevenness = add_layer(builder, config, x, layer)
        if unevenness is not None:
            balance.append(unevenness)
    streams = Streams([x], balance)
    add_modules(builder, config, streams, table)
    add_head(builder, config, streams, table)
    return builder.build()


def _template(config: DecoderConfig, layer: int) -> str:
    """Name the kind of a layer, where a model has several."""
    parts = ["h"]
    if config.pattern:
        parts.append(KINDS[config.letter(layer)])
    if config.experts and not config.bare_layers:
        parts.append("experts" if config.has_experts(layer) else "dense")
    if config.compression is not None:
        parts.append(f"ratio{config.compression.ratios[layer]}")
    elif config.full_layers:
        parts.append("full" if layer in config.full_layers else "window")
    if config.reusing_layers:
        parts.append("reusing" if config.reuses(layer) else "own")
    if config.unturned_layers:
        parts.append("unturned" if layer in config.unturned_layers else "turned")
    if config.index_reusing_layers:
        parts.append("reusing" if layer in config.index_reusing_layers else "indexing")
    if not config.first_norm:
        parts.append("others" if layer else "first")
    if config.last_out_bias:
        parts.append("last" if layer == config.layers - 1 else "others")
    return ".".join(parts)


def _embedding(builder: GraphBuilder, config: DecoderConfig, seq_len: int) -> tuple[str, str]:
    """Return the first hidden state and the token table (once a step), which a head may share."""
    builder.begin_block("embedding")
    shape = (builder.batch, seq_len)
    ids = builder.input("ids", "b t", shape, source="tokens", values=config.vocab)
    size = (config.vocab, config.hidden)
    table = builder.variable("tokens.weight", "v d", size, std=config.init_std)
    used = builder.repeat(table, "tokens.weight", "v d")
    x = builder.apply("embedding", "tokens", (ids, used), "b t, v d -> b t d")
    x = scaled(builder, "tokens.scaled", x, "b t d", config.embedding_scale)
    if config.layer_inputs is not None:
        shared_norm(builder, config.layer_inputs.width)
    if config.learned_positions:
        x = _with_positions(builder, config, x, seq_len)
    if config.sinusoid_base:
        x = _with_sinusoids(builder, config, x, seq_len)
    if config.embedding_norm:
        x = stream_norm(builder, config, "ln", x)
    return spread(builder, config, x), table


def _with_positions(builder: GraphBuilder, config: DecoderConfig, x: str, seq_len: int) -> str:
    """Add the rows of the learned positions of a sample."""
    size = (config.learned_positions, config.hidden)
    rows = builder.variable("positions.weight", "p d", size, std=config.init_std)
    if seq_len < config.learned_positions:
        rows = builder.apply(
            "narrow",
            "positions.weight.rows",
            (rows,),
            "p! d -> t! d",
            shapes=((seq_len, config.hidden),),
            attributes={"start": config.position_offset},
        )
    used = builder.repeat(rows, "positions.weight", "t d")
    return builder.apply("add", "sum", (x, used), "b t d, t d -> b t d")


def _with_sinusoids(builder: GraphBuilder, config: DecoderConfig, x: str, seq_len: int) -> str:
    """Add sines and cosines of the positions (Vaswani et al., arXiv 1706.03762, section 3.5)."""
    half = config.hidden // 2
    places = np.arange(seq_len, dtype=np.float64) + config.position_offset
    place = builder.constant("positions.places", "t", places)
    spread = builder.apply(
        "broadcast", "positions.spread", (place,), "t -> t p", shapes=((seq_len, half),)
    )
    turn = config.sinusoid_base ** (-np.arange(half, dtype=np.float64) / half)
    speed = builder.constant("positions.speeds", "p", turn)
    angle = builder.apply("mul", "positions.angles", (spread, speed), "t p, p -> t p")
    waves = [builder.apply(kind, f"positions.{kind}", (angle,), "t p -> t p") for kind in WAVES]
    labels, shape = "t p!, t q! -> t d!", (seq_len, config.hidden)
    rows = builder.apply("concat", "positions.rows", waves, labels, shapes=(shape,))
    return builder.apply("add", "sum", (x, rows), "b t d, t d -> b t d")


WAVES = ("sin", "cos")

FAMILY = Family(
    DecoderConfig,
    check,
    default_seq_len,
    build,
    MODELS,
    ALIASES,
    approximations=approximations,
)
