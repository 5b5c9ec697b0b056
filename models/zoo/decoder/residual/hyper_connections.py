"""Hyper-connections: several residual streams, of which every part reads and writes a mixture.

What all streams of a token make together says how much of each a part reads, how much of what the
part makes each gets, and how the streams themselves are mixed: by a doubly stochastic matrix, so
that nothing grows however deep the model is.

Shape legend: b batch, t tokens, m streams read, n streams made, d hidden, k features of all
streams, c numbers that are made of them.

Notes
-----
Xie et al., "mHC: Manifold-constrained hyper-connections", arXiv 2512.24880 (2025), section 4;
DeepSeek-AI, "DeepSeek-V4", arXiv 2606.19348 (2026), section 2.2, as transformers'
`DeepseekV4HyperConnection` (5.24) has it.
"""

from typing import NamedTuple

from millrace.models.builder import GraphBuilder, dense
from millrace.models.zoo.decoder.config import DecoderConfig
from millrace.models.zoo.decoder.part_sizes import HyperConnections
from millrace.models.zoo.norms import add_norm


class Mixture(NamedTuple):
    """Streams, and how a part's output and they themselves go into the streams behind it."""

    streams: str
    output_shares: str
    stream_shares: str | None


def spread(builder: GraphBuilder, config: DecoderConfig, x: str) -> str:
    """Add the streams that a model begins with, all alike; `x` itself where it has one.

    Parameters
    ----------
    builder, config, x
        As for any part.
    """
    if config.connections is None:
        return x
    batch, tokens, hidden = builder.tensors[x].shape
    shapes = ((batch, tokens, config.connections.streams, hidden),)
    return builder.apply("broadcast", "streams", (x,), "b t d -> b t m d", shapes=shapes)


def collapse(builder: GraphBuilder, config: DecoderConfig, name: str, x: str) -> str:
    """Add the mixture of streams that the head reads; `x` itself where there is one stream.

    Parameters
    ----------
    builder, config, name, x
        As for any part; `name` begins the names of ops and weights.
    """
    sizes = config.connections
    if sizes is None:
        return x
    shares = dense(
        builder, name, _flat(builder, config, name, x), "b t k, k m -> b t m",
        {"m": sizes.streams}, std=config.init_std, bias=False,
    )  # fmt: skip
    return _read(builder, sizes, name, x, shares)


def connect(
    builder: GraphBuilder, config: DecoderConfig, sizes: HyperConnections, name: str, x: str
) -> tuple[str, Mixture]:
    """Add the mixture that a part reads; return it, and what `joined` needs.

    Parameters
    ----------
    builder, config, name, x
        As for any part; `name` begins the names of ops and weights.
    sizes : HyperConnections
        Those of the model.
    """
    streams = sizes.streams
    numbers = dense(
        builder, name, _flat(builder, config, name, x), "b t k, k c -> b t c",
        {"c": streams * (streams + 2 if sizes.rounds else 2)}, std=config.init_std, bias=False,
    )  # fmt: skip
    read, output = (
        _piece(builder, f"{name}.{part}", numbers, start, streams)
        for part, start in (("read", 0), ("output", streams))
    )
    output = _scaled(builder, f"{name}.output", output, "b t m", (streams,))
    output = builder.apply("sigmoid", f"{name}.output.sigmoid", (output,), "b t m -> b t m")
    largest = {"factor": sizes.magnitude}
    output = builder.apply(
        "scale", f"{name}.output.shares", (output,), "b t m -> b t m", attributes=largest
    )
    if not sizes.rounds:
        output = _above(builder, sizes, f"{name}.output", output, "b t m")
        return _read(builder, sizes, f"{name}.read", x, read), Mixture(x, output, None)
    mixing = _piece(builder, f"{name}.mixing", numbers, 2 * streams, streams**2)
    shape = (*builder.tensors[mixing].shape[:2], streams, streams)
    mixing = builder.apply(
        "rearrange", f"{name}.mixing.square", (mixing,), "b t (m n) -> b t m n", shapes=(shape,)
    )
    mixing = _scaled(builder, f"{name}.mixing", mixing, "b t m n", shape[2:])
    mixing = builder.apply("softmax", f"{name}.mixing.softmax", (mixing,), "b t m n! -> b t m n!")
    mixing = _above(builder, sizes, f"{name}.mixing", mixing, "b t m n")
    mixing = builder.apply(
        "sinkhorn",
        f"{name}.mixing.shares",
        (mixing,),
        "b t m! n! -> b t m! n!",
        attributes={"rounds": sizes.rounds, "epsilon": sizes.epsilon},
    )
    return _read(builder, sizes, f"{name}.read", x, read), Mixture(x, output, mixing)


def joined(builder: GraphBuilder, name: str, mixture: Mixture, output: str) -> str:
    """Add the streams behind a part: the ones before it, mixed, and shares of its output.

    Parameters
    ----------
    builder, name
        As for `connect`.
    mixture : Mixture
        What `connect` returned.
    output : str
        Tensor that the part made [b t d].
    """
    mixed = mixture.streams
    if mixture.stream_shares is not None:
        labels = "b t m n, b t m d -> b t n d"
        operands = (mixture.stream_shares, mixture.streams)
        mixed = builder.apply("mul", f"{name}.mixed", operands, labels)
    labels = "b t n, b t d -> b t n d"
    spread_out = builder.apply("mul", f"{name}.spread", (mixture.output_shares, output), labels)
    labels = "b t n d, b t n d -> b t n d"
    return builder.apply("add", f"{name}.joined", (mixed, spread_out), labels)


def _flat(builder: GraphBuilder, config: DecoderConfig, name: str, x: str) -> str:
    """Add the norm, without weights, of all streams of a token together."""
    flat = builder.apply("rearrange", f"{name}.flat", (x,), "b t m d -> b t (m d)")
    epsilon = config.epsilon
    return add_norm(builder, f"{name}.norm", flat, "b t k", kind="unscaled", epsilon=epsilon)


def _piece(builder: GraphBuilder, name: str, numbers: str, start: int, size: int) -> str:
    shapes = ((*builder.tensors[numbers].shape[:2], size),)
    attributes = {"start": start}
    labels = "b t c! -> b t m!"
    return builder.apply("narrow", name, (numbers,), labels, shapes=shapes, attributes=attributes)


def _scaled(builder: GraphBuilder, name: str, x: str, dims: str, shape: tuple[int, ...]) -> str:
    """Add a learned factor and a learned bias for each number."""
    factor = builder.parameter(f"{name}.factor.weight", "z", (1,), init="ones", decay=False)
    factor = builder.apply("sum", f"{name}.factor", (factor,), "z -> ")
    x = builder.apply("mul", f"{name}.scaled", (x, factor), f"{dims}, () -> {dims}")
    bias_dims = dims.removeprefix("b t ")
    bias = builder.parameter(f"{name}.bias", bias_dims, shape, init="zeros", decay=False)
    return builder.apply("add", f"{name}.logits", (x, bias), f"{dims}, {bias_dims} -> {dims}")


def _above(builder: GraphBuilder, sizes: HyperConnections, name: str, x: str, dims: str) -> str:
    attributes = {"value": sizes.epsilon}
    return builder.apply(
        "shift", f"{name}.positive", (x,), f"{dims} -> {dims}", attributes=attributes
    )


def _read(builder: GraphBuilder, sizes: HyperConnections, name: str, x: str, shares: str) -> str:
    """Add the mixture of streams by the sigmoids of what was made for it."""
    logits = _scaled(builder, name, shares, "b t m", (sizes.streams,))
    opened = builder.apply("sigmoid", f"{name}.sigmoid", (logits,), "b t m -> b t m")
    opened = _above(builder, sizes, name, opened, "b t m")
    return builder.apply("mul", f"{name}.collapsed", (opened, x), "b t m, b t m d -> b t d")
