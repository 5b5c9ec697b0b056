"""Latent attention: keys and values made from one narrow vector per token.

A key is two parts: features turned by position, which all heads share and which come straight from
the stream, and features made per head from the latent vector. A query is laid out the same way,
turned features first.

Shape legend: b batch, t positions, h heads, d features of a query or key (p turned, q not), u of a
value, c latent features, k n hidden.

Notes
-----
DeepSeek-AI, "DeepSeek-V2", arXiv 2405.04434 (2024), section 2.1; the absorbed form, in which all
heads share a key, is that of `sparse_attention.py` alone.
"""

from millrace.models.builder import GraphBuilder, dense
from millrace.models.zoo.decoder.attention import gated, mix, project_out, rotary_attributes
from millrace.models.zoo.decoder.config import DecoderConfig
from millrace.models.zoo.decoder.sparse_attention import sparse_attention
from millrace.models.zoo.norms import add_norm

LATENT_EPSILON = 1e-6  # norms of latent vectors have it, whatever the stream's norms have


def latent_attention(builder: GraphBuilder, config: DecoderConfig, x: str, layer: int) -> str:
    """Add the attention of one layer to the block and return what it adds to the stream `x`."""
    source = _latent(builder, config, "q", x, config.q_lora) if config.q_lora else x
    query = dense(
        builder,
        "attn.q",
        source,
        "b t c, c h d -> b t h d",
        {"h": config.heads, "d": config.head_dim},
        std=config.init_std,
        bias=False,
    )
    query = _turned(builder, config, layer, "q", query, "b t h d")
    turned = dense(
        builder,
        "attn.k.shared",
        x,
        "b t k, k p -> b t p",
        {"p": config.rotary_dims},
        std=config.init_std,
        bias=config.qkv_bias,
    )
    turned = _turned(builder, config, layer, "k", turned, "b t p")
    if config.index_topk:
        latent = _latent(builder, config, "kv", x, config.kv_lora)
        return sparse_attention(
            builder, config, x, layer,
            query=query, query_latent=source, turned=turned, latent=latent,
        )  # fmt: skip
    key, value = _keys_and_values(builder, config, x, turned)
    mixed = mix(builder, config, (query, key, value), layer, grouped=False)
    if config.attention_gate:
        sizes = {"h": config.heads, "u": config.value_dim or config.head_dim}
        mixed = gated(builder, config, x, mixed, "h u", sizes)
    return project_out(builder, config, mixed, grouped=False)


def _keys_and_values(
    builder: GraphBuilder, config: DecoderConfig, x: str, turned: str
) -> tuple[str, str]:
    unturned_dims = config.head_dim - config.rotary_dims
    shape = (*builder.tensors[turned].shape[:2], config.heads, config.rotary_dims)
    spread = builder.apply(
        "broadcast", "attn.k.spread", (turned,), "b t p -> b t h p", shapes=(shape,)
    )
    latent = _latent(builder, config, "kv", x, config.kv_lora)
    projections = []
    for part, size in (("k", unturned_dims), ("v", config.value_dim or config.head_dim)):
        projections.append(
            dense(
                builder,
                f"attn.{part}",
                latent,
                "b t c, c h d -> b t h d",
                {"h": config.heads, "d": size},
                std=config.init_std,
                bias=False,
            )
        )
    unturned, value = projections
    shape = (*shape[:3], config.head_dim)
    labels = "b t h p!, b t h q! -> b t h d!"
    return builder.apply(
        "concat", "attn.k.whole", (spread, unturned), labels, shapes=(shape,)
    ), value


def _latent(builder: GraphBuilder, config: DecoderConfig, part: str, x: str, size: int) -> str:
    """Add a projection to a narrow vector and its norm."""
    name = f"attn.{part}.latent"
    narrow = dense(
        builder,
        name,
        x,
        "b t k, k c -> b t c",
        {"c": size},
        std=config.init_std,
        bias=config.qkv_bias,
    )
    return add_norm(builder, f"{name}.norm", narrow, "b t c", kind="rms", epsilon=LATENT_EPSILON)


def _turned(
    builder: GraphBuilder, config: DecoderConfig, layer: int, part: str, x: str, dims: str
) -> str:
    if layer in config.unturned_layers:
        return x
    labels = f"{dims}! -> {dims}!"
    name = f"attn.{part}.rotary"
    return builder.apply("rotary", name, (x,), labels, attributes=rotary_attributes(config, layer))
