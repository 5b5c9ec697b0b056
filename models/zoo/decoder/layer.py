"""One layer of a decoder: attention and a feed-forward part, each behind a norm.

Shape legend: b batch, t sequence, d n hidden.
"""

from millrace.models.builder import GraphBuilder, dense
from millrace.models.zoo.decoder.attention import attention
from millrace.models.zoo.decoder.compressed import compressed_attention
from millrace.models.zoo.decoder.config import DecoderConfig
from millrace.models.zoo.decoder.experts import experts
from millrace.models.zoo.decoder.feed_forward import feed_forward
from millrace.models.zoo.decoder.latent_attention import latent_attention
from millrace.models.zoo.decoder.part_sizes import HyperConnections
from millrace.models.zoo.decoder.recurrent import (
    delta_net,
    gated_unit,
    kimi_delta,
    short_convolution,
    state_space,
)
from millrace.models.zoo.decoder.recurrent_sizes import (
    BOTH,
    DELTA_NET,
    GATED_UNIT,
    KIMI_DELTA,
    SHORT_CONVOLUTION,
    STATE_SPACE,
)
from millrace.models.zoo.decoder.residual import add_layer_input, connect, joined
from millrace.models.zoo.norms import add_norm

RECURRENT = {
    STATE_SPACE: state_space,
    DELTA_NET: delta_net,
    KIMI_DELTA: kimi_delta,
    SHORT_CONVOLUTION: short_convolution,
    GATED_UNIT: gated_unit,
}


def add_layer(
    builder: GraphBuilder, config: DecoderConfig, x: str, layer: int
) -> tuple[str, str | None]:
    """Add one layer; return the stream behind it and the balance loss of its experts, if any."""
    if config.is_bare(layer):
        return _bare_layer(builder, config, x, layer)
    if config.connections is not None:
        return _connected_layer(builder, config, config.connections, x, layer)
    first = _pre_norm(builder, config, "ln1", x, layer)
    mixed = _addend(builder, config, "attn", _mixed(builder, config, first, layer), layer)
    if not config.parallel:
        x = _summed(builder, config, "attn", "ln1", (x, mixed))
    second = first if config.shared_norm else _pre_norm(builder, config, "ln2", x, layer)
    mlp_output, balance = _fed_forward(builder, config, second, layer, x)
    mlp_output = _addend(builder, config, "mlp", mlp_output, layer)
    if config.parallel:
        labels = "b t n, b t n, b t n -> b t n"
        return builder.apply("add", "residual", (x, mixed, mlp_output), labels), balance
    x = _summed(builder, config, "mlp", "ln2", (x, mlp_output))
    return add_layer_input(builder, config, x, layer), balance


def _connected_layer(
    builder: GraphBuilder, config: DecoderConfig, sizes: HyperConnections, x: str, layer: int
) -> tuple[str, str | None]:
    """Add parts which each read a mixture of several streams, and go into all of them."""
    read, mixture = connect(builder, config, sizes, "attn.streams", x)
    normed = _pre_norm(builder, config, "ln1", read, layer)
    x = joined(builder, "attn.streams", mixture, _mixed(builder, config, normed, layer))
    read, mixture = connect(builder, config, sizes, "mlp.streams", x)
    normed = _pre_norm(builder, config, "ln2", read, layer)
    output, balance = _fed_forward(builder, config, normed, layer, read)
    return joined(builder, "mlp.streams", mixture, output), balance


def _bare_layer(
    builder: GraphBuilder, config: DecoderConfig, x: str, layer: int
) -> tuple[str, str | None]:
    """Add one part behind one norm."""
    normed, balance = _pre_norm(builder, config, "ln", x, layer), None
    if config.has_experts(layer) or config.has_dense(layer):
        part, balance = _fed_forward(builder, config, normed, layer, x)
    else:
        part = _mixed(builder, config, normed, layer)
    part = _addend(builder, config, "part", part, layer)
    return builder.apply("add", "residual", (x, part), "b t n, b t n -> b t n"), balance


def _mixed(builder: GraphBuilder, config: DecoderConfig, x: str, layer: int) -> str:
    """Add what mixes the tokens of a layer."""
    if config.compression is not None:
        return compressed_attention(builder, config, config.compression, x, layer)
    attend = latent_attention if config.kv_lora else attention
    if config.letter(layer) == BOTH:
        parts = attend(builder, config, x, layer), state_space(builder, config, x, layer)
        return builder.apply("add", "mixers.sum", parts, "b t n, b t n -> b t n")
    return RECURRENT.get(config.letter(layer), attend)(builder, config, x, layer)


def _fed_forward(
    builder: GraphBuilder, config: DecoderConfig, x: str, layer: int, stream: str
) -> tuple[str, str | None]:
    """Add the feed-forward part of a layer, or its experts with their balance loss, or both."""
    if not config.has_experts(layer):
        return feed_forward(builder, config, "mlp", x, config.ffn_width(layer)), None
    if not config.dense_beside:
        return experts(builder, config, x)
    beside = feed_forward(builder, config, "mlp", x, config.ffn_width(layer))
    beside = stream_norm(builder, config, "mlp.norm", beside)
    scored = stream_norm(builder, config, "experts.router.norm", stream)
    scored = scaled(builder, "experts.router.scaled", scored, "b t n", config.hidden**-0.5)
    sent = stream_norm(builder, config, "experts.ln", stream)
    routed, balance = experts(builder, config, sent, scored)
    routed = stream_norm(builder, config, "experts.norm", routed)
    labels = "b t n, b t n -> b t n"
    return builder.apply("add", "mlp.both", (beside, routed), labels), balance


def stream_norm(builder: GraphBuilder, config: DecoderConfig, name: str, x: str) -> str:
    """Add the model's kind of norm of the residual stream `x`, `b t d`."""
    return add_norm(builder, name, x, "b t d", kind=config.norm, epsilon=config.epsilon)


def final_norm(builder: GraphBuilder, config: DecoderConfig, name: str, x: str) -> str:
    """Add the norm before the head, where sums are not normed already."""
    return x if config.sum_norms else stream_norm(builder, config, name, x)


def scaled(builder: GraphBuilder, name: str, x: str, dims: str, factor: float) -> str:
    """Add a multiplication by a number; nothing where it is one."""
    if factor == 1:
        return x
    return builder.apply("scale", name, (x,), f"{dims} -> {dims}", attributes={"factor": factor})


def _summed(
    builder: GraphBuilder, config: DecoderConfig, part: str, norm: str, operands: tuple[str, str]
) -> str:
    """Add the sum of stream and part, and its norm where the model has it there."""
    x = builder.apply("add", f"{part}.residual", operands, "b t n, b t n -> b t n")
    return stream_norm(builder, config, norm, x) if config.sum_norms else x


def _pre_norm(builder: GraphBuilder, config: DecoderConfig, name: str, x: str, layer: int) -> str:
    """Add the norm of what a part reads, where the layer has one, and the gate of that."""
    first = layer == 0 and name == "ln1"
    if not config.norms_before(layer) or (first and not config.first_norm):
        return x
    normed = stream_norm(builder, config, name, x)
    if not config.norm_gate_rank or (name == "ln2" and not config.has_experts(layer)):
        return normed
    labels, std = "b t k, k c -> b t c", config.init_std
    sizes = {"c": config.norm_gate_rank}
    narrow = dense(builder, f"{name}.gate.narrow", normed, labels, sizes, std=std, bias=False)
    narrow = builder.apply("silu", f"{name}.gate.active", (narrow,), "b t c -> b t c")
    labels, sizes = "b t c, c n -> b t n", {"n": config.hidden}
    logit = dense(builder, f"{name}.gate.widen", narrow, labels, sizes, std=std, bias=False)
    gate = builder.apply("sigmoid", f"{name}.gate.open", (logit,), "b t n -> b t n")
    return builder.apply("mul", f"{name}.gated", (normed, gate), "b t n, b t n -> b t n")


def _addend(builder: GraphBuilder, config: DecoderConfig, name: str, part: str, layer: int) -> str:
    """Add norm and scale of what a part adds to the stream, where the layer has them."""
    if config.norms_behind(layer):
        part = stream_norm(builder, config, f"{name}.post", part)
    return scaled(builder, f"{name}.scaled", part, "b t n", config.residual_scale)
