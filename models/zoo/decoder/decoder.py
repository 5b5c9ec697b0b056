"""Decoders: blocks `embedding`, `h.0` …, `head`.

Shape legend: b batch, t sequence, d k n hidden, v vocabulary.
"""

from millrace.models.builder import GraphBuilder, dense
from millrace.models.graph import Graph
from millrace.models.spec import ModelSpec
from millrace.models.zoo.decoder.approximations import approximations
from millrace.models.zoo.decoder.attention import attention
from millrace.models.zoo.decoder.config import DecoderConfig, check
from millrace.models.zoo.decoder.experts import experts
from millrace.models.zoo.decoder.feed_forward import feed_forward
from millrace.models.zoo.decoder.latent_attention import latent_attention
from millrace.models.zoo.decoder.names import ALIASES, MODELS
from millrace.models.zoo.family import Family
from millrace.models.zoo.norms import add_norm


def default_seq_len(config: DecoderConfig) -> int:
    """The longest sequence that the model was made for."""
    return config.positions


def build(spec: ModelSpec, config: DecoderConfig, batch: int) -> Graph:
    """Return the forward graph; layers of one kind share a template.

    Raises
    ------
    ModelError
        The sizes do not make a model (see `config.check`).
    """
    check(spec, config)
    builder = GraphBuilder(
        name=spec.name, batch=batch, tokens_per_sample=spec.seq_len, precision=spec.precision
    )
    x, table = _embedding(builder, config, spec.seq_len)
    balance: list[str] = []
    for layer in range(config.layers):
        builder.begin_block(f"h.{layer}", template=_template(config, layer))
        x, unevenness = _layer(builder, config, x, layer)
        if unevenness is not None:
            balance.append(unevenness)
    _head(builder, config, x, table, balance)
    return builder.build()


def _template(config: DecoderConfig, layer: int) -> str:
    """Name the kind of a layer, where a model has several."""
    parts = ["h"]
    if config.experts:
        parts.append("experts" if config.has_experts(layer) else "dense")
    if config.full_layers:
        parts.append("full" if layer in config.full_layers else "window")
    if config.unturned_layers:
        parts.append("unturned" if layer in config.unturned_layers else "turned")
    return ".".join(parts)


def _embedding(builder: GraphBuilder, config: DecoderConfig, seq_len: int) -> tuple[str, str]:
    """Return the first hidden state and the token table (once a step), which a head may share."""
    builder.begin_block("embedding")
    shape = (builder.batch, seq_len)
    ids = builder.input("ids", "b t", shape, source="tokens", values=config.vocab)
    size = (config.vocab, config.hidden)
    table = builder.variable("tokens.weight", "v d", size, std=config.init_std)
    used = builder.repeat(table, "tokens.weight", "v d")
    x = builder.apply("embedding", "tokens", (ids, used), "b t, v d -> b t d")
    return _scaled(builder, "tokens.scaled", x, "b t d", config.embedding_scale), table


def _scaled(builder: GraphBuilder, name: str, x: str, dims: str, factor: float) -> str:
    """Add a multiplication by a number; nothing where it is one."""
    if factor == 1:
        return x
    return builder.apply("scale", name, (x,), f"{dims} -> {dims}", attributes={"factor": factor})


def _layer(
    builder: GraphBuilder, config: DecoderConfig, x: str, layer: int
) -> tuple[str, str | None]:
    """Add one layer; return the stream behind it and the balance loss of its experts, if any."""
    attend = latent_attention if config.kv_lora else attention
    first = _stream_norm(builder, config, "ln1", x)
    mixed = attend(builder, config, first, layer)
    if config.parallel:
        second = first if config.shared_norm else _stream_norm(builder, config, "ln2", x)
    else:
        mixed = _post_norm(builder, config, "attn.post", mixed)
        x = builder.apply("add", "attn.residual", (x, mixed), "b t n, b t n -> b t n")
        second = _stream_norm(builder, config, "ln2", x)
    balance = None
    if config.has_experts(layer):
        mlp_output, balance = experts(builder, config, second)
    else:
        mlp_output = feed_forward(builder, config, "mlp", second, config.ffn_hidden)
    if config.parallel:
        labels = "b t n, b t n, b t n -> b t n"
        return builder.apply("add", "residual", (x, mixed, mlp_output), labels), balance
    mlp_output = _post_norm(builder, config, "mlp.post", mlp_output)
    return builder.apply("add", "mlp.residual", (x, mlp_output), "b t n, b t n -> b t n"), balance


def _stream_norm(builder: GraphBuilder, config: DecoderConfig, name: str, x: str) -> str:
    return add_norm(builder, name, x, "b t d", kind=config.norm, epsilon=config.epsilon)


def _post_norm(builder: GraphBuilder, config: DecoderConfig, name: str, part: str) -> str:
    """Add the norm of what a part adds to the stream, where the model has one."""
    return _stream_norm(builder, config, name, part) if config.post_norms else part


def _head(
    builder: GraphBuilder, config: DecoderConfig, x: str, table: str, balance: list[str]
) -> None:
    builder.begin_block("head")
    normed = _stream_norm(builder, config, "ln", x)
    targets = builder.input(
        "targets", "b t", builder.tensors[x].shape[:2], source="targets", values=config.vocab
    )
    losses = builder.apply(
        "cross_entropy",
        "loss",
        (_capped(builder, config, _logits(builder, config, normed, table)), targets),
        "b t v!, b t -> b t, b t",
    )
    total = builder.apply("sum", "loss_sum", (losses,), "b t -> ")
    if balance:
        labels = f"{', ' * len(balance)} -> "
        builder.apply("add", "loss_with_balance", (total, *balance), labels)
    builder.apply("count_valid", "token_count", (targets,), "b t -> ")


def _capped(builder: GraphBuilder, config: DecoderConfig, logits: str) -> str:
    """Add the soft cap of the logits, where the model has one."""
    if not config.logit_cap:
        return logits
    dims = "b t v"
    small = _scaled(builder, "logits.small", logits, dims, 1 / config.logit_cap)
    bent = builder.apply("tanh", "logits.bent", (small,), f"{dims} -> {dims}")
    return _scaled(builder, "logits.capped", bent, dims, config.logit_cap)


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


FAMILY = Family(
    DecoderConfig,
    check,
    default_seq_len,
    build,
    MODELS,
    ALIASES,
    approximations=approximations,
)
