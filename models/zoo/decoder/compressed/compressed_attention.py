"""Compressed attention: a window of tokens, and keys that stand for several tokens each.

All heads share a key, which is its value as well; so what heads gather is turned back by position.
A query sees the tokens of its window and, of the compressed keys that stand for tokens up to its
own, all, or those that an indexer chooses. The indexer, which compresses keys of its own, is not
trained.

Shape legend: b batch, t tokens, w compressed keys, s both, h heads, d features of a key, c latent
features of queries, i heads and f features of the indexer, j keys that a query attends to, g groups
of heads, r features of a group, k n hidden.

Notes
-----
DeepSeek-AI, "DeepSeek-V4", arXiv 2606.19348 (2026), section 2.3, as transformers'
`DeepseekV4Attention` (5.24) has it.
"""

from millrace.models.builder import GraphBuilder, dense
from millrace.models.zoo.decoder.attention import rotary_attributes, with_sinks
from millrace.models.zoo.decoder.compressed.compressor import Summaries, compressed_keys
from millrace.models.zoo.decoder.config import DecoderConfig
from millrace.models.zoo.decoder.part_sizes import Compression
from millrace.models.zoo.norms import add_norm


def compressed_attention(
    builder: GraphBuilder, config: DecoderConfig, sizes: Compression, x: str, layer: int
) -> str:
    """Add the attention of one layer to the block and return what it adds to the stream `x`.

    Parameters
    ----------
    builder, config, x, layer
        As for any attention.
    sizes : Compression
        Those of the model.
    """
    std, epsilon = config.init_std, config.epsilon
    latent = dense(
        builder, "attn.q.latent", x, "b t k, k c -> b t c", {"c": config.q_lora}, std=std,
        bias=False,
    )  # fmt: skip
    latent = add_norm(builder, "attn.q.latent.norm", latent, "b t c", kind="rms", epsilon=epsilon)
    heads = {"h": config.heads, "d": config.head_dim}
    query = dense(builder, "attn.q", latent, "b t c, c h d -> b t h d", heads, std=std, bias=False)
    query = add_norm(builder, "attn.q.norm", query, "b t h d", kind="unscaled", epsilon=epsilon)
    key = dense(
        builder, "attn.k", x, "b t k, k d -> b t d", {"d": config.head_dim}, std=std, bias=False
    )
    key = add_norm(builder, "attn.k.norm", key, "b t d", kind="rms", epsilon=epsilon)
    query = _turned(builder, config, layer, "q", query, "b t h d")
    key = _turned(builder, config, layer, "k", key, "b t d")
    seen = _seen(builder, config, sizes, x, latent, layer)
    if ratio := sizes.ratios[layer]:
        how = Summaries("attn.summary", config.head_dim, ratio, ratio == sizes.sparse_ratio)
        summaries = compressed_keys(builder, config, x, layer, how)
        batch, tokens, width = builder.tensors[key].shape
        shapes = ((batch, tokens + builder.tensors[summaries].shape[1], width),)
        labels = "b t! d, b w! d -> b s! d"
        key = builder.apply("concat", "attn.k.all", (key, summaries), labels, shapes=shapes)
    mixed = builder.apply(
        "sparse_attention",
        "attn.core",
        (query, key, key, seen),
        "b t h d!, b s! d!, b s! u!, b t j! -> b t h u!, b t h",
        attributes={"scale": config.score_scale},
    )
    mixed = with_sinks(builder, config, mixed, "h")
    back = {**rotary_attributes(config, layer), "inverse": True}
    labels = "b t h d! -> b t h d!"
    mixed = builder.apply("rotary", "attn.turned_back", (mixed,), labels, attributes=back)
    return _projected_out(builder, config, sizes, mixed)


def _turned(
    builder: GraphBuilder, config: DecoderConfig, layer: int, part: str, x: str, dims: str
) -> str:
    labels, attributes = f"{dims}! -> {dims}!", rotary_attributes(config, layer)
    return builder.apply("rotary", f"attn.{part}.rotary", (x,), labels, attributes=attributes)


def _seen(
    builder: GraphBuilder, config: DecoderConfig, sizes: Compression, x: str, latent: str,
    layer: int,
) -> str:  # fmt: skip
    """Add the places of the keys that every query attends to."""
    batch, tokens = builder.tensors[x].shape[:2]
    ratio, window = sizes.ratios[layer], min(config.window, tokens)
    if ratio == sizes.sparse_ratio:
        return _chosen(builder, config, x, latent, layer, ratio)
    count = window + (tokens // ratio if ratio else 0)
    return builder.emit(
        "seen_keys",
        builder.full_name("attn.seen"),
        (),
        "-> b t j!",
        shapes=((batch, tokens, count),),
        dtype="int32",
        attributes={"window": window, "stride": ratio or tokens + 1, "tokens": tokens},
    )[0]


def _chosen(
    builder: GraphBuilder, config: DecoderConfig, x: str, latent: str, layer: int, ratio: int
) -> str:
    """Add the indexer, which reads the latent vector of queries and the stream, and its choice."""
    heads, width = {"i": config.index_heads, "f": config.index_dim}, config.index_dim
    std = config.init_std
    query = dense(
        builder, "attn.index.q", latent, "b t c, c i f -> b t i f", heads, std=std, frozen=True
    )
    query = _turned(builder, config, layer, "index.q", query, "b t i f")
    weights = dense(
        builder, "attn.index.weights", x, "b t k, k i -> b t i", {"i": heads["i"]}, std=std,
        frozen=True,
    )  # fmt: skip
    how = Summaries("attn.index.summary", width, ratio, overlapping=True, frozen=True)
    keys = compressed_keys(builder, config, x, layer, how)
    batch, tokens = builder.tensors[x].shape[:2]
    window = min(config.window, tokens)
    count = window + min(config.index_topk, builder.tensors[keys].shape[1])
    return builder.apply(
        "choose_keys",
        "attn.index.chosen",
        (query, weights, keys),
        "b t i! f!, b t i!, b w! f! -> b t j!",
        shapes=((batch, tokens, count),),
        attributes={"window": window, "stride": ratio},
    )


def _projected_out(
    builder: GraphBuilder, config: DecoderConfig, sizes: Compression, mixed: str
) -> str:
    """Add the projections of groups of heads, and of these together to the stream."""
    batch, tokens, heads, width = builder.tensors[mixed].shape
    shape = (batch, tokens, sizes.out_groups, heads // sizes.out_groups, width)
    labels = "b t (g h) d -> b t g h d"
    apart = builder.apply("rearrange", "attn.out.groups", (mixed,), labels, shapes=(shape,))
    labels, rank = "b t g h d, g h d r -> b t g r", {"r": sizes.out_rank}
    narrow = dense(builder, "attn.out.narrow", apart, labels, rank, std=config.init_std, bias=False)
    labels, hidden = "b t g r, g r n -> b t n", {"n": config.hidden}
    return dense(builder, "attn.out", narrow, labels, hidden, std=config.residual_std, bias=False)
