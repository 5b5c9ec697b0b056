"""Sparse attention of a decoder: an indexer chooses the keys, latent vectors are the keys.

Every query attends to the keys of one latent vector per token, which all heads share: what made
keys of it is multiplied onto queries instead, and what made values of it onto what heads gather.
The indexer is not trained: its own loss, the divergence of its scores from those of attention, is
no part of the model's, from which it is cut off.

Shape legend: as in `latent_attention.py`; m features of a shared key (p turned, c latent), s keys,
i heads and f features of the indexer, j keys that a query attends to.

Notes
-----
DeepSeek-AI, "DeepSeek-V3.2", arXiv 2512.02556 (2025), section 2.1: the indexer's scores are Σ_i w
relu(q k); scales of w and of the products, which change no choice, are left out.
"""

from millrace.models.builder import GraphBuilder, dense
from millrace.models.zoo.decoder.attention import rotary_attributes, with_sinks
from millrace.models.zoo.decoder.config import DecoderConfig
from millrace.models.zoo.norms import add_norm


def sparse_attention(
    builder: GraphBuilder,
    config: DecoderConfig,
    x: str,
    layer: int,
    *,
    query: str,
    query_latent: str,
    turned: str,
    latent: str,
) -> str:
    """Add attention to chosen keys and return what its heads make [b t h u].

    Parameters
    ----------
    builder, config, x, layer
        As for any attention.
    query : str
        Queries of heads [b t h d], the turned features first.
    query_latent : str
        What queries are made of [b t c].
    turned, latent : str
        Turned features of keys [b t p], and the normed vector that keys and values are made of.
    """
    chosen = _chosen(builder, config, x, query_latent, layer)
    parts = {"p": config.rotary_dims, "q": config.head_dim - config.rotary_dims}
    shape = builder.tensors[query].shape[:3]
    heads, start = [], 0
    for part, size in parts.items():
        attributes = {"start": start}
        labels = f"b t h d! -> b t h {part}!"
        name = f"attn.q.{'turned' if part == 'p' else 'unturned'}"
        shapes = ((*shape, size),)
        heads.append(
            builder.apply("narrow", name, (query,), labels, shapes=shapes, attributes=attributes)
        )
        start += size
    sizes = (config.kv_lora, config.heads, parts["q"])
    weight = builder.parameter("attn.k.weight", "c h q", sizes, std=config.init_std)
    labels = "b t h q, c h q -> b t h c"
    absorbed = builder.apply("matmul", "attn.q.absorbed", (heads[1], weight), labels)
    width = config.rotary_dims + config.kv_lora
    labels = "b t h p!, b t h c! -> b t h m!"
    whole_query = builder.apply(
        "concat", "attn.q.whole", (heads[0], absorbed), labels, shapes=((*shape, width),)
    )
    labels = "b t p!, b t c! -> b t m!"
    key = builder.apply(
        "concat", "attn.k.whole", (turned, latent), labels, shapes=((*shape[:2], width),)
    )
    mixed = builder.apply(
        "sparse_attention",
        "attn.core",
        (whole_query, key, latent, chosen),
        "b t h m!, b s! m!, b s! c!, b t j! -> b t h c!, b t h",
        attributes={"scale": config.score_scale},
    )
    mixed = with_sinks(builder, config, mixed, "h")
    sizes = (config.kv_lora, config.heads, config.value_dim or config.head_dim)
    weight = builder.parameter("attn.v.weight", "c h u", sizes, std=config.init_std)
    labels = "b t h c, c h u -> b t h u"
    return builder.apply("matmul", "attn.v.absorbed", (mixed, weight), labels)


def _chosen(
    builder: GraphBuilder, config: DecoderConfig, x: str, query_latent: str, layer: int
) -> str:
    """Add the indexer, which reads what queries are made of and the stream, and its choice.

    Of a layer without one it is the choice of the last layer before that has one.
    """
    if layer in config.index_reusing_layers:
        lender = max(set(range(layer)) - set(config.index_reusing_layers))
        return f"h.{lender}.attn.index.chosen"
    heads, size = config.index_heads, config.index_dim
    parts = {
        "q": (query_latent, "i f", {"i": heads, "f": size}),
        "weights": (x, "i", {"i": heads}),
        "k": (x, "f", {"f": size}),
    }
    index = {}
    for part, (source, dims, sizes) in parts.items():
        labels = f"b t k, k {dims} -> b t {dims}"
        std = config.init_std
        name = f"attn.index.{part}"
        index[part] = dense(builder, name, source, labels, sizes, std=std, frozen=True)
    name, epsilon = "attn.index.k.norm", config.index_epsilon
    index["k"] = add_norm(builder, name, index["k"], "b t f", epsilon=epsilon, frozen=True)
    attributes = {**rotary_attributes(config, layer), "interleaved": config.index_interleaved}
    for part in ("q", "k") if layer not in config.unturned_layers else ():
        dims = f"b t {parts[part][1]}!"
        name, labels = f"attn.index.{part}.rotary", f"{dims} -> {dims}"
        index[part] = builder.apply("rotary", name, (index[part],), labels, attributes=attributes)
    batch, tokens = builder.tensors[x].shape[:2]
    return builder.apply(
        "choose_keys",
        "attn.index.chosen",
        (index["q"], index["weights"], index["k"]),
        "b t i! f!, b t i!, b s! f! -> b t j!",
        shapes=((batch, tokens, min(config.index_topk, tokens)),),
    )
