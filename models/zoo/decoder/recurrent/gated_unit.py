"""Gated unit: a linear recurrence of every feature by itself, gated (Griffin, RecurrentGemma).

Shape legend: b batch, t tokens, k hidden read, o hidden made; g blocks of r features, s features
made of those of a block, n the one row and p the one column of a feature's state.

Notes
-----
De et al., "Griffin", arXiv 2402.19427 (2024), section 2.4: the state decays by
exp(-8 softplus(rate) gate), and what enters is multiplied by the root of one minus the decay's
square, but for the first token.
"""

import numpy as np

from millrace.models.builder import GraphBuilder, dense
from millrace.models.zoo.decoder.config import DecoderConfig
from millrace.models.zoo.decoder.recurrent.streams import convolved, head_parameter, projected

DECAY = -8.0  # Griffin, section 2.4: the exponent c
FEATURES = "b t g r"
BY_FEATURE = f"{FEATURES}, {FEATURES} -> {FEATURES}"


def gated_unit(builder: GraphBuilder, config: DecoderConfig, x: str, layer: int) -> str:
    """Add the gated linear recurrence of one layer and return what it adds to the stream `x`.

    Parameters and errors as for `state_space`.
    """
    sizes = config.gated_unit
    assert sizes is not None, "checked with the pattern"
    blocks = {"g": sizes.blocks, "r": sizes.width // sizes.blocks}
    beside, value = (
        projected(builder, config, f"unit.{part}", x, "g r", blocks, bias=True) for part in "yx"
    )
    value = convolved(builder, "unit.x", value, "g r", sizes.taps, bias=True, active=False)

    def gate(part: str) -> str:
        labels, widths = f"{FEATURES}, g r s -> b t g s", {"s": blocks["r"]}
        logit = dense(builder, f"unit.{part}", value, labels, widths, std=config.init_std)
        return builder.apply("sigmoid", f"unit.{part}.open", (logit,), f"{FEATURES} -> {FEATURES}")

    opened, decay = gate("input"), _decay(builder, gate("decay"))
    entering = builder.apply("mul", "unit.opened", (value, opened), BY_FEATURE)
    entering = builder.apply("mul", "unit.entering", (entering, _share(builder, decay)), BY_FEATURE)
    scanned = _scanned(builder, entering, decay)
    beside = builder.apply("gelu", "unit.y.active", (beside,), f"{FEATURES} -> {FEATURES}")
    out = builder.apply("mul", "unit.gated", (scanned, beside), BY_FEATURE)
    labels, std = f"{FEATURES}, g r o -> b t o", config.residual_std
    return dense(builder, "unit.out", out, labels, {"o": config.hidden}, std=std)


def _decay(builder: GraphBuilder, gate: str) -> str:
    """Add the logarithms of decays."""
    weight = head_parameter(builder, "unit.rate.weight", gate, "g r", init="zeros")
    rate = builder.apply("softplus", "unit.rate", (weight,), "g r -> g r")
    product = builder.apply("mul", "unit.fallen", (gate, rate), f"{FEATURES}, g r -> {FEATURES}")
    return _scaled(builder, "unit.decay.log", product, DECAY)


def _share(builder: GraphBuilder, decay: str) -> str:
    """Add the roots of one minus the decays' squares; one for the first token."""
    tokens, labels = builder.tensors[decay].shape[1], f"{FEATURES} -> {FEATURES}"
    square = builder.apply(
        "exp", "unit.square", (_scaled(builder, "unit.twice", decay, 2.0),), labels
    )
    minus = builder.constant("unit.later", "t", -(np.arange(tokens) > 0).astype(float))
    ones = builder.constant("unit.ones", "t", np.ones(tokens))
    for op, operand in (("mul", minus), ("add", ones)):
        by_token = f"{FEATURES}, t -> {FEATURES}"
        square = builder.apply(op, f"unit.rest.{op}", (square, operand), by_token)
    return builder.apply("sqrt", "unit.share", (square,), labels)


def _scanned(builder: GraphBuilder, entering: str, decay: str) -> str:
    """Add the recurrence, as a scan whose keys and queries are ones."""
    shape = builder.tensors[entering].shape
    (ones,) = builder.emit(
        "fill",
        builder.full_name("unit.keys"),
        (),
        "-> b t g n",
        shapes=((*shape[:3], 1),),
        dtype=builder.tensors[entering].dtype,
        attributes={"value": 1.0},
    )
    labels = f"{FEATURES} -> {FEATURES} p"
    value = builder.apply("broadcast", "unit.value", (entering,), labels, shapes=((*shape, 1),))
    labels = "b t! g n!, b t! g n!, b t! g r p, b t! g r -> b t! g r p"
    states = builder.apply("state_space_scan", "unit.core", (ones, ones, value, decay), labels)
    return builder.apply("sum", "unit.scanned", (states,), f"{FEATURES} p -> {FEATURES}")


def _scaled(builder: GraphBuilder, name: str, x: str, factor: float) -> str:
    labels = f"{FEATURES} -> {FEATURES}"
    return builder.apply("scale", name, (x,), labels, attributes={"factor": factor})
