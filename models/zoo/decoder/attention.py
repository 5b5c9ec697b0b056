"""Attention of a decoder: heads of queries, which may share keys and values.

Shape legend: b batch, t query positions, s key positions, g groups (key/value heads), r query heads
of a group, h heads where every one has its own keys, d features of a query or key, u of a value,
k n hidden.

Notes
-----
Grouped queries: Ainslie et al., arXiv 2305.13245 (2023). Windows: Jiang et al., "Mistral 7B",
arXiv 2310.06825 (2023), section 2. ALiBi: Press et al., arXiv 2108.12409 (2021).
"""

import numpy as np

from millrace.models.builder import GraphBuilder, dense
from millrace.models.ops import Attributes
from millrace.models.zoo.decoder.config import DecoderConfig
from millrace.models.zoo.norms import add_norm

KEY, VALUE = "k.rotary", "v.norm"
"""Names of the keys and values that other layers may take over."""


def attention(builder: GraphBuilder, config: DecoderConfig, x: str, layer: int) -> str:
    """Add the attention of one layer to the block and return what it adds to the stream `x`."""
    kv_heads, head_dim = config.kv_heads_of(layer), config.head_dim_of(layer)
    grouped = kv_heads < config.heads
    heads = {"g": kv_heads, "r": config.heads // kv_heads, "d": head_dim}
    queries, keys = ("g r d", "g d") if grouped else ("h d", "h d")
    if not grouped:
        heads = {"h": config.heads, "d": head_dim}
    query = _projected(builder, config, "q", x, queries, heads)
    reuses = config.reuses(layer)
    if reuses:
        lent = f"h.{config.lender(layer)}.attn"
        key, value = f"{lent}.{KEY}", f"{lent}.{VALUE}"
    else:
        key, value = _keys_and_values(builder, config, x, layer, keys, heads)
    query = _positioned(builder, config, layer, "q", query, f"b t {queries}")
    if not reuses:
        key, value = _finished(builder, config, layer, (key, value), f"b t {keys}")
    query = _tempered(builder, config, layer, query, f"b t {queries}")
    mixed = mix(builder, config, (query, key, value), layer, grouped=grouped)
    if config.attention_gate:
        mixed = gated(builder, config, x, mixed, queries, heads)
    if config.inner_norms:
        mixed = whole_norm(builder, config, "attn.norm", mixed, queries, config.norm)
    return project_out(builder, config, mixed, layer, grouped=grouped)


def _keys_and_values(
    builder: GraphBuilder,
    config: DecoderConfig,
    x: str,
    layer: int,
    dims: str,
    sizes: dict[str, int],
) -> tuple[str, str]:
    """Add the projections that make keys and values."""
    key = _projected(builder, config, "k", x, dims, sizes)
    value = key
    if not (config.keys_as_values and config.is_full(layer)):
        value = _projected(builder, config, "v", x, dims, sizes)
    return key, value


def _finished(
    builder: GraphBuilder, config: DecoderConfig, layer: int, parts: tuple[str, str], dims: str
) -> tuple[str, str]:
    """Add norm and turn of keys, and the norm of values; reusing layers know both by name."""
    key, value = parts
    key = _positioned(builder, config, layer, "k", key, dims)
    if config.value_norm:
        epsilon = config.epsilon
        value = add_norm(builder, f"attn.{VALUE}", value, dims, kind="unscaled", epsilon=epsilon)
    return key, value


def rotary_attributes(config: DecoderConfig, layer: int) -> Attributes:
    """Attributes of the `rotary` ops of a layer.

    Parameters
    ----------
    config, layer
        As for any part.
    """
    short = config.window_rope_base > 0 and not config.is_full(layer)
    plain: dict[str, int | float | str | bool] = {
        "base": config.window_rope_base if short else config.rope_base,
        "dims": (config.window_rotary_dims if short else 0) or config.rotary_dims,
        "interleaved": config.rope_interleaved,
        "inverse": False,
    }
    ways: dict[str, dict[str, int | float | str | bool]] = {
        "linear": {},
        "llama3": {
            "low_freq_factor": config.rope_low,
            "high_freq_factor": config.rope_high,
            "original_positions": config.rope_original,
        },
        "yarn": {
            "beta_fast": config.rope_fast,
            "beta_slow": config.rope_slow,
            "original_positions": config.rope_original,
            "truncate": config.rope_truncate,
        },
    }
    if short or not config.rope_scaling:
        return plain
    plain |= {
        "scaling": config.rope_scaling,
        "factor": config.rope_factor,
        "amplitude": config.rope_amplitude,
    }
    return plain | ways[config.rope_scaling]


def mix(
    builder: GraphBuilder,
    config: DecoderConfig,
    operands: tuple[str, str, str],
    layer: int,
    *,
    grouped: bool,
) -> str:
    """Add the attention op itself over queries, keys and values of one layer."""
    attributes: dict[str, int | float | str | bool] = {"causal": True, "scale": config.score_scale}
    if window := config.window_of(layer, builder.tokens_per_sample):
        attributes["window"] = window
    if config.alibi:
        attributes["alibi"] = config.alibi
    if config.score_cap:
        attributes["cap"] = config.score_cap
    query_heads, key_heads = ("g r", "g") if grouped else ("h", "h")
    labels = (
        f"b t {query_heads} d!, b s! {key_heads} d!, b s! {key_heads} u! "
        f"-> b t {query_heads} u!, b t {query_heads}"
    )
    mixed = builder.apply("attention", "attn.core", operands, labels, attributes=attributes)
    return with_sinks(builder, config, mixed, query_heads)


def with_sinks(builder: GraphBuilder, config: DecoderConfig, mixed: str, query_heads: str) -> str:
    """Add a score for every head that no key has, where the model has them.

    Parameters
    ----------
    builder, config
        As for any part.
    mixed, query_heads : str
        Output of an attention, and the labels of its heads.
    """
    if not config.sinks:
        return mixed
    shape = builder.tensors[mixed].shape[2:-1]
    std = config.init_std
    sinks = builder.parameter("attn.sinks.weight", query_heads, shape, std=std, decay=False)
    outputs = f"b t {query_heads} u, b t {query_heads}"
    labels = f"{outputs}, {query_heads} -> {outputs}"
    return builder.apply(
        "attention_sink", "attn.sunk", (mixed, f"{mixed}.logsumexp", sinks), labels
    )


def project_out(
    builder: GraphBuilder, config: DecoderConfig, mixed: str, layer: int, *, grouped: bool
) -> str:
    """Add the projection of what the heads made back to the residual stream."""
    heads = "g r u" if grouped else "h u"
    return dense(
        builder,
        "attn.out",
        mixed,
        f"b t {heads}, {heads} n -> b t n",
        {"n": config.hidden},
        std=config.residual_std,
        bias=config.has_out_bias(layer),
    )


def _projected(
    builder: GraphBuilder,
    config: DecoderConfig,
    part: str,
    x: str,
    dims: str,
    sizes: dict[str, int],
) -> str:
    """Add the projection that makes queries, keys or values."""
    labels = f"b t k, k {dims} -> b t {dims}"
    projected = dense(
        builder, f"attn.{part}", x, labels, sizes, std=config.init_std, bias=config.qkv_bias
    )
    if not config.clip_qkv:
        return projected
    return builder.apply(
        "clip",
        f"attn.{part}.clip",
        (projected,),
        f"b t {dims} -> b t {dims}",
        attributes={"low": -config.clip_qkv, "high": config.clip_qkv},
    )


def gated(
    builder: GraphBuilder,
    config: DecoderConfig,
    x: str,
    mixed: str,
    heads: str,
    sizes: dict[str, int],
) -> str:
    """Add the gate of what the heads made, of as many features or a number for each head.

    Parameters
    ----------
    builder, config
        As for any part.
    x : str
        What the gate is made of [b t k].
    mixed, heads, sizes
        What the heads made, labels of heads and their features `d`, and sizes of these.
    """
    dims = f"b t {heads}"
    open_dims = heads.rpartition(" ")[0] if config.gate_per_head else heads
    labels, std = f"b t k, k {open_dims} -> b t {open_dims}", config.init_std
    logit = dense(builder, "attn.gate", x, labels, sizes, std=std, bias=False)
    labels = f"b t {open_dims} -> b t {open_dims}"
    gate = builder.apply(config.attention_gate, "attn.gate.open", (logit,), labels)
    return builder.apply("mul", "attn.gated", (mixed, gate), f"{dims}, b t {open_dims} -> {dims}")


def whole_norm(
    builder: GraphBuilder, config: DecoderConfig, name: str, x: str, heads: str, kind: str
) -> str:
    """Add a norm over the features of all heads together, which stay dims of their own."""
    shape = builder.tensors[x].shape
    flat = builder.apply("rearrange", f"{name}.flat", (x,), f"b t {heads} -> b t ({heads})")
    normed = add_norm(builder, name, flat, "b t n", kind=kind, epsilon=config.epsilon)
    labels = f"b t ({heads}) -> b t {heads}"
    return builder.apply("rearrange", f"{name}.heads", (normed,), labels, shapes=(shape,))


def _positioned(
    builder: GraphBuilder, config: DecoderConfig, layer: int, part: str, x: str, dims: str
) -> str:
    """Add the norm and the turn by position of queries or keys, where the layer has them.

    A norm without weights gives the same before and behind the turn (Llama 4 has it behind).
    """
    turned = config.rotary_dims > 0 and layer not in config.unturned_layers
    normed = config.qk_norm and (turned or config.qk_norm != "unscaled")
    if normed and not config.qk_norm_last:
        x = _query_norm(builder, config, part, x, dims)
    if turned:
        labels, attributes = f"{dims}! -> {dims}!", rotary_attributes(config, layer)
        x = builder.apply("rotary", f"attn.{part}.rotary", (x,), labels, attributes=attributes)
    if normed and config.qk_norm_last:
        x = _query_norm(builder, config, part, x, dims)
    return x


def _query_norm(builder: GraphBuilder, config: DecoderConfig, part: str, x: str, dims: str) -> str:
    """Add the norm of queries or keys, over the features of a head or of all together."""
    name = f"attn.{part}.norm"
    if config.qk_norm_whole:
        return whole_norm(builder, config, name, x, dims.removeprefix("b t "), config.qk_norm)
    return add_norm(builder, name, x, dims, kind=config.qk_norm, epsilon=config.epsilon)


def _tempered(
    builder: GraphBuilder, config: DecoderConfig, layer: int, query: str, dims: str
) -> str:
    """Add the factors by which queries grow with their positions, where there are any but one.

    Meta's Llama 4 (April 2025) has them where nothing is turned: 1 + a log(1 + (t + 1) // n).
    Ministral 3 has them in all layers, with t in place of t + 1.
    """
    tokens, step = builder.tokens_per_sample, config.tempered_from
    always = config.tempered_always
    if not 0 < step <= tokens - always or not (always or layer in config.unturned_layers):
        return query
    places = np.arange(tokens) + (not always)
    factors = 1 + config.tempered_scale * np.log1p(places // step)
    grown = builder.constant("attn.q.factors", "t", factors)
    return builder.apply("mul", "attn.q.tempered", (query, grown), f"{dims}, t -> {dims}")
