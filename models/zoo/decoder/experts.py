"""Experts of a decoder: routing, their products, the expert all tokens visit, the balance.

Experts have a capacity per sample, so that neither microbatch nor split changes who is dropped.

Shape legend: b batch, t tokens, e experts, n the same experts as a token's scores, k choices of a
token, c places of an expert, d hidden.

Notes
-----
Jiang et al., "Mixtral of experts", arXiv 2401.04088 (2024), section 2.1. DeepSeek-AI,
"DeepSeek-V3", arXiv 2412.19437 (2024), section 2.1.2: sigmoid scores, experts of the best groups,
weights that sum to one, a shared expert; the bias that steers its choices without a loss starts at
zero and is not part of the graph. The balance loss is that section's (equations 17 to 20), which
for softmax scores is that of Fedus et al., "Switch transformers", arXiv 2101.03961 (2021),
equation 4, for every sample by itself.
"""

from math import ceil

from millrace.models.builder import GraphBuilder, dense
from millrace.models.zoo.decoder.config import DecoderConfig
from millrace.models.zoo.decoder.feed_forward import expert_products, feed_forward
from millrace.models.zoo.norms import add_norm


def capacity(config: DecoderConfig, seq_len: int) -> int:
    """Places that an expert has for one sample: at least one, at most its tokens."""
    if not config.capacity_factor:
        return seq_len
    share = config.experts_per_token * seq_len / config.experts
    return max(1, min(seq_len, ceil(share * config.capacity_factor)))


def experts(
    builder: GraphBuilder, config: DecoderConfig, x: str, scored: str = ""
) -> tuple[str, str | None]:
    """Add a mixture to the block; return what it adds to the stream `x`, and its balance loss.

    The router reads `scored`, where that is another than what is sent to experts.
    The balance loss, a scalar summed over all tokens, is None where the model has none.
    """
    scores = _scores(builder, config, scored or x)
    batch, seq_len, hidden = builder.tensors[x].shape
    places = capacity(config, seq_len)
    chosen = (batch, seq_len, config.experts_per_token)
    attributes = {
        "capacity": places,
        "groups": config.router_groups,
        "kept_groups": config.kept_groups,
    }
    corrected, table = scores, ""
    if config.router_correction:
        corrected, table = _corrected(builder, config, scores)
    value = builder.apply(
        "top_k",
        "experts.chosen",
        (corrected,),
        "b t! n! -> b t! k!, b t! k!, b t! k!",
        shapes=(chosen,) * 3,
        attributes=attributes,
    )
    routes = (f"{value}.expert", f"{value}.place")
    if table:
        value = _uncorrected(builder, value, routes[0], table)
    routed, weight = _narrowed(builder, config, "narrow", x, config.expert_latent), ""
    if config.weigh_inputs:
        routed, weight = _weighed(builder, x, _weights(builder, config, value))
    sent = builder.apply(
        "dispatch",
        "experts.dispatch",
        (routed, *routes),
        "b t! d, b t! k!, b t! k! -> e b c! d",
        shapes=((config.experts, batch, places, config.expert_latent or hidden),),
    )
    expert_outputs = expert_products(builder, config, sent)
    weight = weight or _weights(builder, config, value)
    if config.dense_beside:
        factors = _expert_factors(builder, config, routes[0])
        weight = builder.apply(
            "mul", "experts.weights.own", (weight, factors), "b t k, b t k -> b t k"
        )
    out = builder.apply(
        "combine",
        "experts.combine",
        (expert_outputs, *routes, weight),
        "e b c! d, b t! k!, b t! k!, b t! k! -> b t! d",
    )
    out = _narrowed(builder, config, "widen", out, hidden)
    if config.shared_hidden:
        shared = feed_forward(builder, config, "shared", x, config.shared_hidden)
        if config.shared_gate:
            shared = _opened(builder, config, x, shared)
        out = builder.apply("add", "experts.sum", (out, shared), "b t n, b t n -> b t n")
    if config.expert_norm:
        out = add_norm(
            builder, "experts.norm", out, "b t n", kind=config.norm, epsilon=config.epsilon
        )
    return out, _balance(builder, config, scores, routes[0])


def _narrowed(builder: GraphBuilder, config: DecoderConfig, part: str, x: str, width: int) -> str:
    """Add the product before or behind experts that are narrower than the stream (Nemotron 3)."""
    if not config.expert_latent:
        return x
    labels, std, bias = "b t k, k n -> b t n", config.init_std, config.ffn_bias
    return dense(builder, f"experts.{part}", x, labels, {"n": width}, std=std, bias=bias)


def _opened(builder: GraphBuilder, config: DecoderConfig, x: str, shared: str) -> str:
    """Add the gate of the expert that all tokens visit (Qwen2-MoE)."""
    labels = "b t k, k n -> b t n"
    logit = dense(builder, "shared.open", x, labels, {"n": 1}, std=config.init_std, bias=False)
    share = builder.apply("sigmoid", "shared.open.sigmoid", (logit,), "b t n -> b t n")
    alone = builder.apply("sum", "shared.open.sum", (share,), "b t n -> b t")
    return builder.apply("mul", "shared.opened", (shared, alone), "b t n, b t -> b t n")


def _scores(builder: GraphBuilder, config: DecoderConfig, x: str) -> str:
    logits = dense(
        builder,
        "experts.router",
        x,
        "b t k, k n -> b t n",  # not `e`: routing is every token's own, wherever experts lie
        {"n": config.experts},
        std=config.init_std,
        bias=config.router_bias,
    )
    labels = "b t n -> b t n"
    if config.router == "sqrt_softplus":
        positive = builder.apply("softplus", "experts.softplus", (logits,), labels)
        return builder.apply("sqrt", "experts.scores", (positive,), labels)
    labels = "b t n! -> b t n!" if config.router == "softmax" else labels
    return builder.apply(config.router, "experts.scores", (logits,), labels)


def _corrected(builder: GraphBuilder, config: DecoderConfig, scores: str) -> tuple[str, str]:
    """Add the corrections of the scores; return their sums, and the table of corrections."""
    shape = (config.experts, 1)
    table = builder.parameter(
        "experts.correction.bias", "n z", shape, init="zeros", decay=False, frozen=True
    )
    row = builder.apply("rearrange", "experts.correction.row", (table,), "n z -> (n z)")
    corrected = builder.apply("add", "experts.corrected", (scores, row), "b t n, n -> b t n")
    return corrected, table


def _looked_up(builder: GraphBuilder, name: str, expert: str, table: str) -> str:
    """Add the look-up of the number that a table has for every chosen expert."""
    rows = builder.apply("embedding", name, (expert, table), "b t k, n z -> b t k z")
    return builder.apply("sum", f"{name}.sum", (rows,), "b t k z -> b t k")


def _expert_factors(builder: GraphBuilder, config: DecoderConfig, expert: str) -> str:
    """Add the learned factors of the chosen experts (Gemma 4)."""
    shape = (config.experts, 1)
    table = builder.parameter("experts.factors.weight", "n z", shape, init="ones", decay=False)
    return _looked_up(builder, "experts.factors", expert, table)


def _uncorrected(builder: GraphBuilder, value: str, expert: str, table: str) -> str:
    """Add the difference of chosen scores and the corrections of their experts."""
    minus = builder.apply(
        "scale",
        "experts.chosen.minus",
        (_looked_up(builder, "experts.chosen.correction", expert, table),),
        "b t k -> b t k",
        attributes={"factor": -1.0},
    )
    return builder.apply("add", "experts.chosen.plain", (value, minus), "b t k, b t k -> b t k")


def _weighed(builder: GraphBuilder, x: str, weight: str) -> tuple[str, str]:
    """Return tokens times the weight of their one expert, and weights of one (Llama 4)."""
    alone = builder.apply("sum", "experts.weight", (weight,), "b t k -> b t")
    routed = builder.apply("mul", "experts.weighed", (x, alone), "b t d, b t -> b t d")
    (ones,) = builder.emit(
        "fill",
        builder.full_name("experts.ones"),
        (),
        "-> b t k",
        shapes=(builder.tensors[weight].shape,),
        dtype=builder.tensors[weight].dtype,
        attributes={"value": 1.0},
    )
    return routed, ones


def _weights(builder: GraphBuilder, config: DecoderConfig, value: str) -> str:
    """Turn the chosen scores into the weights by which a token's experts are added up."""
    weight = value
    if config.normalize_weights:
        weight = _normalized(builder, "experts.weights", value, "k")
    if config.weight_scale == 1:
        return weight
    return builder.apply(
        "scale",
        "experts.weights.scaled",
        (weight,),
        "b t k -> b t k",
        attributes={"factor": config.weight_scale},
    )


def _balance(builder: GraphBuilder, config: DecoderConfig, scores: str, expert: str) -> str | None:
    """Add the balance loss: per sample, tokens times the loads' mean agreement with the scores."""
    if not config.balance_loss:
        return None
    shape = (builder.batch, config.experts)
    load = builder.apply(
        "expert_load", "experts.load", (expert,), "b t! k! -> b n!", shapes=(shape,)
    )
    if config.router != "softmax":
        scores = _normalized(builder, "experts.shares", scores, "n")
    uneven = builder.apply("mul", "experts.uneven", (scores, load), "b t n, b n -> b t")
    total = builder.apply("sum", "experts.balance.sum", (uneven,), "b t -> ")
    factor = {"factor": config.balance_loss * config.experts}
    return builder.apply("scale", "experts.balance", (total,), "() -> ", attributes=factor)


def _normalized(builder: GraphBuilder, name: str, x: str, label: str) -> str:
    """Add the division by the sum over the last dim."""
    total = builder.apply("sum", f"{name}.sum", (x,), f"b t {label} -> b t")
    over = builder.apply("reciprocal", f"{name}.over", (total,), "b t -> b t")
    return builder.apply("mul", name, (x, over), f"b t {label}, b t -> b t {label}")
