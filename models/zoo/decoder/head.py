"""The head of a decoder, with its loss, and modules that predict the tokens after the next.

Shape legend: b batch, t sequence, d k n hidden, v vocabulary.

Notes
-----
DeepSeek-AI, "DeepSeek-V3", arXiv 2412.19437 (2024), section 2.2 (multi-token prediction): module k
reads the stream behind the model, or behind the module before it, and the embedding of the token
k places further on, norms both, projects them together to the width of the stream (equation 21;
here a product for each half of the weight, added up) and has a layer. Embedding and head are those
of the model; the final norm is the module's. The losses' mean over modules is weighed and added
(equations 24 and 25); targets behind the end of a sample are those that follow it in the data,
where the paper leaves them out.
"""

from typing import NamedTuple

from millrace.models.builder import GraphBuilder, dense
from millrace.models.spec import ahead
from millrace.models.zoo.decoder.config import DecoderConfig
from millrace.models.zoo.decoder.layer import add_layer, final_norm, scaled, stream_norm
from millrace.models.zoo.decoder.residual import collapse


class Streams(NamedTuple):
    """Streams that a head reads, the model's first, and balance losses of all experts."""

    names: list[str]
    balance: list[str]


def add_modules(builder: GraphBuilder, config: DecoderConfig, streams: Streams, table: str) -> None:
    """Add a block for each further token to predict; its stream goes to the others.

    `table` is the token table, once a step.
    """
    shape = builder.tensors[streams.names[0]].shape[:2]
    for module in range(config.mtp_layers):
        builder.begin_block(f"mtp.{module}", template="mtp")
        ids = builder.input(
            "ids", "b t", shape, source=ahead("tokens", module + 1), values=config.vocab
        )
        used = builder.repeat(table, "tokens.weight", "v d")
        embedded = builder.apply("embedding", "tokens", (ids, used), "b t, v d -> b t d")
        embedded = scaled(builder, "tokens.scaled", embedded, "b t d", config.embedding_scale)
        parts = (("stream", streams.names[-1]), ("token", embedded))
        halves = [
            dense(
                builder,
                f"{name}.project",
                stream_norm(builder, config, f"{name}.ln", read),
                "b t k, k n -> b t n",
                {"n": config.hidden},
                std=config.init_std,
                bias=False,
            )
            for name, read in parts
        ]
        x = builder.apply("add", "joined", halves, "b t n, b t n -> b t n")
        x, unevenness = add_layer(builder, config, x, config.layers + module)
        streams.names.append(x)
        if unevenness is not None:
            streams.balance.append(unevenness)


def add_head(builder: GraphBuilder, config: DecoderConfig, streams: Streams, table: str) -> None:
    """Add the last block: logits and losses of all streams, and the number of targets."""
    builder.begin_block("head")
    x, *further = streams.names
    x = collapse(builder, config, "streams", x)
    normed = _transformed(builder, config, final_norm(builder, config, "ln", x))
    shape = builder.tensors[x].shape[:2]
    targets = builder.input("targets", "b t", shape, source="targets", values=config.vocab)
    logits = _capped(builder, config, "logits", _logits(builder, config, normed, table))
    losses = [_loss(builder, "loss", logits, targets)]
    for module, stream in enumerate(further):
        name = f"mtp.{module}"
        normed = final_norm(builder, config, f"{name}.ln", stream)
        later = builder.input(
            f"{name}.targets",
            "b t",
            shape,
            source=ahead("targets", module + 1),
            values=config.vocab,
        )
        logits = _shared_logits(builder, config, f"{name}.logits", normed)
        logits = _capped(builder, config, f"{name}.logits", logits)
        loss = _loss(builder, f"{name}.loss", logits, later)
        weight = config.mtp_loss / config.mtp_layers
        losses.append(scaled(builder, f"{name}.loss.scaled", loss, "()", weight))
    if len(losses) + len(streams.balance) > 1:
        name = "loss_with_balance" if len(losses) == 1 else "loss_of_all"
        parts = (*losses, *streams.balance)
        builder.apply("add", name, parts, f"{', ' * (len(parts) - 1)} -> ")
    builder.apply("count_valid", "token_count", (targets,), "b t -> ")


def _transformed(builder: GraphBuilder, config: DecoderConfig, x: str) -> str:
    """Add product, activation and norm before the logits, where the head has them."""
    if not config.head_activation:
        return x
    labels, sizes, std = "b t k, k n -> b t n", {"n": config.hidden}, config.init_std
    x = dense(builder, "transform", x, labels, sizes, std=std, bias=False)
    x = builder.apply(config.head_activation, "transform.active", (x,), "b t n -> b t n")
    return stream_norm(builder, config, "transform.norm", x)


def _loss(builder: GraphBuilder, name: str, logits: str, targets: str) -> str:
    """Add the cross entropy and its sum over all tokens."""
    labels = "b t v!, b t -> b t, b t"
    losses = builder.apply("cross_entropy", name, (logits, targets), labels)
    return builder.apply("sum", f"{name}_sum", (losses,), "b t -> ")


def _capped(builder: GraphBuilder, config: DecoderConfig, name: str, logits: str) -> str:
    """Add scale and soft cap of the logits, where the model has them."""
    logits = scaled(builder, f"{name}.scaled", logits, "b t v", config.logit_scale)
    if not config.logit_cap:
        return logits
    dims = "b t v"
    small = scaled(builder, f"{name}.small", logits, dims, 1 / config.logit_cap)
    bent = builder.apply("tanh", f"{name}.bent", (small,), f"{dims} -> {dims}")
    return scaled(builder, f"{name}.capped", bent, dims, config.logit_cap)


def _logits(builder: GraphBuilder, config: DecoderConfig, normed: str, table: str) -> str:
    if not config.tied:
        sizes = {"v": config.vocab}
        std, bias = config.init_std, config.head_bias
        return dense(builder, "logits", normed, "b t k, k v -> b t v", sizes, std=std, bias=bias)
    tied = builder.repeat(table, "tokens.weight", "v k")
    labels = "b t k, v k -> b t v"
    if not config.head_bias:
        return builder.apply("matmul", "logits", (normed, tied), labels)
    product = builder.apply("matmul", "logits.matmul", (normed, tied), labels)
    shape = (config.vocab,)
    bias_of = builder.parameter("logits.bias", "v", shape, init="zeros", decay=False)
    return builder.apply("add", "logits", (product, bias_of), "b t v, v -> b t v")


def _shared_logits(builder: GraphBuilder, config: DecoderConfig, name: str, normed: str) -> str:
    """Add logits by what `_logits` has brought to the microbatch."""
    table, labels = ("tokens", "v k") if config.tied else ("logits", "k v")
    weight = builder.full_name(f"{table}.weight.repeat")
    product = f"{name}.matmul" if config.head_bias else name
    logits = builder.apply("matmul", product, (normed, weight), f"b t k, {labels} -> b t v")
    if not config.head_bias:
        return logits
    bias = builder.full_name("logits.bias.repeat")
    return builder.apply("add", name, (logits, bias), "b t v, v -> b t v")
