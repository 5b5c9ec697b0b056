"""The feed-forward part of a decoder, and the products of a mixture's experts.

Shape legend: b batch, t sequence, e experts, c places of an expert, k hidden read, n made.
"""

from millrace.models.builder import GraphBuilder, dense
from millrace.models.zoo.decoder.config import RELU2, XIELU, DecoderConfig
from millrace.models.zoo.norms import add_norm


def feed_forward(
    builder: GraphBuilder, config: DecoderConfig, name: str, x: str, width: int
) -> str:
    """Add a feed-forward part of `width` to the block and return what it adds to the stream `x`."""
    std, bias = config.init_std, config.ffn_bias
    labels = "b t k, k n -> b t n"
    parts = ("gate", "up") if config.gated else ("up",)
    wide = tuple(
        dense(builder, f"{name}.{part}", x, labels, {"n": width}, std=std, bias=bias)
        for part in parts
    )
    active = _activated(builder, config, name, wide, "b t n")
    if config.inner_norms:
        active = add_norm(
            builder, f"{name}.norm", active, "b t n", kind=config.norm, epsilon=config.epsilon
        )
    sizes = {"n": config.hidden}
    std = config.residual_std
    return dense(builder, f"{name}.down", active, labels, sizes, std=std, bias=bias)


def expert_products(builder: GraphBuilder, config: DecoderConfig, x: str) -> str:
    """Add the products of all experts over the places each has, `e b c k -> e b c n`."""
    labels = "e b c! k, e k n -> e b c! n"
    parts = ("gate", "up") if config.gated else ("up",)
    std, bias = config.init_std, config.expert_bias
    sizes = {"n": config.expert_hidden}
    wide = tuple(
        dense(builder, f"experts.{part}", x, labels, sizes, std=std, bias=bias) for part in parts
    )
    active = _activated(builder, config, "experts", wide, "e b c! n")
    sizes = {"n": config.expert_latent or config.hidden}
    std = config.residual_std
    return dense(builder, "experts.down", active, labels, sizes, std=std, bias=bias)


def _activated(
    builder: GraphBuilder, config: DecoderConfig, name: str, wide: tuple[str, ...], dims: str
) -> str:
    """Add the activation of one product, or of a gate times the other product."""
    if not config.gated:
        return pointwise(builder, config, f"{name}.active", wide[0], dims)
    labels = f"{dims}, {dims} -> {dims}"
    if config.gate_cap and (name == "experts" or not config.cap_routed):
        attributes = {"cap": config.gate_cap, "slope": config.gate_slope}
        attributes["shift"] = config.gate_shift
        name = f"{name}.active"
        return builder.apply("clamped_swiglu", name, wide, labels, attributes=attributes)
    if config.activation == "silu":
        return builder.apply("swiglu", f"{name}.active", wide, labels)
    gate, up = wide
    opened = pointwise(builder, config, f"{name}.open", gate, dims)
    return builder.apply("mul", f"{name}.active", (opened, up), labels)


def pointwise(builder: GraphBuilder, config: DecoderConfig, name: str, x: str, dims: str) -> str:
    """Add the model's activation.

    Parameters
    ----------
    builder, config
        As for any part.
    name : str
        Name of the last op within the block.
    x, dims : str
        Tensor that is read, and its labels.

    Notes
    -----
    relu2 is the square of relu (So et al., arXiv 2109.08668).
    """
    labels = f"{dims} -> {dims}"
    if config.activation == XIELU:
        return _xielu(builder, name, x, dims)
    if config.activation != RELU2:
        return builder.apply(config.activation, name, (x,), labels)
    positive = builder.apply("relu", f"{name}.relu", (x,), labels)
    return builder.apply("power", name, (positive,), labels, attributes={"exponent": 2.0})


def _xielu(builder: GraphBuilder, name: str, x: str, dims: str) -> str:
    """Add p x^2 + x / 2 for positive x, n (exp(x) - 1 - x) + x / 2 for others; p and n are learned.

    Huang and Schlag, arXiv 2411.13010 (2024), as transformers' `XIELUActivation` has it: p is the
    softplus of its parameter, n one half more than that.
    """
    labels = f"{dims} -> {dims}"

    def step(kind: str, part: str, operand: str, **attributes: float) -> str:
        return builder.apply(kind, f"{name}.{part}", (operand,), labels, attributes=attributes)

    def weighed(part: str, curve: str, at_least: float) -> str:
        parameter = builder.parameter(f"{name}.alpha_{part}", "z", (1,), init="zeros", decay=False)
        positive = builder.apply("softplus", f"{name}.{part}.softplus", (parameter,), "z -> z")
        shifted = builder.apply(
            "shift", f"{name}.{part}.shift", (positive,), "z -> z", attributes={"value": at_least}
        )
        factor = builder.apply("sum", f"{name}.{part}.factor", (shifted,), "z -> ")
        return builder.apply("mul", f"{name}.{part}", (curve, factor), f"{dims}, () -> {dims}")

    square = step("power", "square", step("relu", "positive", x), exponent=2.0)
    below = step("relu", "below", step("scale", "minus", x, factor=-1.0))
    decay = step("exp", "decay", step("scale", "negative", below, factor=-1.0))
    curve = builder.apply(
        "add",
        f"{name}.curve",
        (step("shift", "decay_less_one", decay, value=-1.0), below),
        f"{dims}, {dims} -> {dims}",
    )
    parts = (
        weighed("p", square, 0.0),
        weighed("n", curve, 0.5),
        step("scale", "half", x, factor=0.5),
    )
    return builder.apply("add", name, parts, f"{dims}, {dims}, {dims} -> {dims}")
