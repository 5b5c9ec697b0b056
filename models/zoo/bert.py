"""BERT: an encoder that fills in masked tokens and says whether one text follows another.

Learned positions and segments, a layer norm after each part, GELU in its exact form, biases, a
head of its own transform whose output product shares the token embedding.

The loss is the sum of the masked-token losses plus `masked` times the sum of the next-sentence
losses, and `masked` tokens of every sample count: the mean over a step is the mean of the one plus
the mean of the other, as the paper has it.

Shape legend: b batch, t places, d hidden (k where contracted, n where made), v vocabulary, p
positions, m segments, c the two classes of the next sentence.

Notes
-----
Devlin et al., "BERT", arXiv 1810.04805 (2018). `dropout` applies to the embeddings and to what each
part adds; the paper's dropout on attention probabilities has no place in a fused attention and is
left out. `masked` 0 stands for the paper's 15 % of the sequence.
"""

import msgspec

from millrace.models.builder import GraphBuilder, dense, dropout
from millrace.models.errors import ModelError
from millrace.models.graph import Graph
from millrace.models.ops import Attributes
from millrace.models.spec import Config, ModelSpec
from millrace.models.zoo import transformer
from millrace.models.zoo.family import Family, check_sizes
from millrace.models.zoo.norms import add_norm
from millrace.models.zoo.transformer import INIT_STD

MASKED_SHARE = 0.15


class BertConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of a BERT; `positions` is the longest sequence.

    `next_sentence` says whether the pooler and its classifier are there, `masked` how many places
    of a sample are predicted, `mask_id` which token hides another. With `first_places` those places
    are among the first so many of a sample, and the head reads no others: what it costs where the
    masked places are gathered before the head. With `pre_norms` norms stand before the parts, and
    one before the heads (Megatron's and the pre-norm RoBERTa); embeddings have one with
    `embedding_norm`. Without `tied` the head has a
    table and a bias of its own; the tied head's bias stays, as it does in transformers, and moves
    nothing.
    """

    layers: int
    hidden: int
    heads: int
    ffn_hidden: int
    vocab: int
    positions: int
    segments: int = 2
    next_sentence: bool = True
    masked: int = 0
    mask_id: int = 0
    activation: str = "gelu_erf"
    epsilon: float = 1e-12
    dropout: float = 0.0
    tied: bool = True
    first_places: int = 0
    pre_norms: bool = False
    embedding_norm: bool = True


def check(spec: ModelSpec, config: BertConfig) -> None:
    """Raise ModelError when sizes do not divide or the sequence does not fit."""
    sizes = ("layers", "hidden", "heads", "ffn_hidden", "vocab", "positions", "segments")
    check_sizes(spec, config, *sizes)
    transformer.check_heads(spec.name, config.hidden, config.heads)
    transformer.check_part(spec.name, config.activation, config.epsilon, config.dropout)
    if not 1 <= spec.seq_len <= config.positions:
        raise ModelError(
            f"model `{spec.name}` has {config.positions} positions: sequences of "
            f"{spec.seq_len} tokens do not fit; use 1 to {config.positions}"
        )
    if not 0 <= config.masked <= spec.seq_len:
        raise ModelError(
            f"model `{spec.name}`: `masked` is {config.masked}; a sequence of {spec.seq_len} "
            f"tokens has 1 to {spec.seq_len} places to mask (0: 15 % of them)"
        )
    masked = masked_places(config, spec.seq_len)
    if config.first_places and not masked <= config.first_places <= spec.seq_len:
        raise ModelError(
            f"model `{spec.name}`: `first_places` is {config.first_places}; {masked} places are "
            f"masked of {spec.seq_len} tokens, so it is 0 (all of them) or between these"
        )
    if not 0 <= config.mask_id < config.vocab:
        raise ModelError(
            f"model `{spec.name}`: `mask_id` is {config.mask_id}; expected an id, "
            f"0 to {config.vocab - 1}"
        )


def default_seq_len(config: BertConfig) -> int:
    """The longest sequence that the positions allow."""
    return config.positions


def masked_places(config: BertConfig, seq_len: int) -> int:
    """Number of places of a sample that are predicted."""
    return config.masked or max(1, round(MASKED_SHARE * seq_len))


def build(spec: ModelSpec, config: BertConfig, batch: int) -> Graph:
    """Return the forward graph: blocks `embedding`, `layer.0` …, `head`.

    Raises
    ------
    ModelError
        The sequence is longer than the positions, or sizes do not divide.
    """
    check(spec, config)
    builder = GraphBuilder(
        name=spec.name, batch=batch, tokens_per_sample=spec.seq_len, precision=spec.precision
    )
    x, table = _embedding(builder, config, spec.seq_len)
    for layer in range(config.layers):
        builder.begin_block(f"layer.{layer}", template="layer")
        read = _normed(builder, config, "ln1", x, before=True)
        head_dim = config.hidden // config.heads
        mixed = transformer.attention_part(builder, read, config.heads, head_dim)
        x = transformer.residual(builder, "attn.residual", x, mixed, config.dropout)
        x = _normed(builder, config, "ln1", x)
        read = _normed(builder, config, "ln2", x, before=True)
        mlp_output = transformer.feed_forward_part(
            builder, read, config.ffn_hidden, config.activation
        )
        x = transformer.residual(builder, "mlp.residual", x, mlp_output, config.dropout)
        x = _normed(builder, config, "ln2", x)
    builder.begin_block("head")
    x = _normed(builder, config, "encoder.ln", x, before=True)
    loss = _masked_loss(builder, config, x, table, spec.seq_len)
    if config.next_sentence:
        weight = masked_places(config, spec.seq_len)
        other = _next_sentence_loss(builder, x, weight)
        builder.apply("add", "loss_sum", (loss, other), ", -> ")
    return builder.build()


def _normed(
    builder: GraphBuilder, config: BertConfig, name: str, x: str, *, before: bool = False
) -> str:
    """Add a norm where the model has its norms before the parts, or behind them; else `x`."""
    return add_norm(builder, name, x, epsilon=config.epsilon) if before == config.pre_norms else x


def _embedding(builder: GraphBuilder, config: BertConfig, seq_len: int) -> tuple[str, str]:
    """Return the first hidden state and the token table (once a step), which the head shares."""
    builder.begin_block("embedding")
    shape = (builder.batch, seq_len)
    source: dict[str, int | float | str | bool] = {
        "source": "masked_tokens",
        "values": config.vocab,
        "masked": masked_places(config, seq_len),
        "mask_id": config.mask_id,
    }
    if config.first_places:
        source["among"] = config.first_places
    (ids,) = builder.emit(
        "input",
        builder.full_name("ids"),
        (),
        "-> b t",
        shapes=(shape,),
        dtype="int32",
        attributes=source,
    )
    table = builder.variable("tokens.weight", "v d", (config.vocab, config.hidden), std=INIT_STD)
    used = builder.repeat(table, "tokens.weight", "v d")
    tokens = builder.apply("embedding", "tokens", (ids, used), "b t, v d -> b t d")
    halves = builder.input("halves", "b t", shape, source="segments", values=config.segments)
    kinds = builder.parameter("segments.weight", "m d", (config.segments, config.hidden))
    segments = builder.apply("embedding", "segments", (halves, kinds), "b t, m d -> b t d")
    positions = builder.variable("positions.weight", "p d", (config.positions, config.hidden))
    if seq_len < config.positions:
        positions = builder.apply(
            "narrow",
            "positions.weight.rows",
            (positions,),
            "p! d -> t! d",
            shapes=((seq_len, config.hidden),),
            attributes={"start": 0},
        )
    rows = builder.repeat(positions, "positions.weight", "t d")
    labels = "b t d, b t d, t d -> b t d"
    x = builder.apply("add", "sum", (tokens, segments, rows), labels)
    if config.embedding_norm:
        x = add_norm(builder, "ln", x, epsilon=config.epsilon)
    return dropout(builder, "dropout", x, "b t d", config.dropout), table


def _masked_loss(
    builder: GraphBuilder, config: BertConfig, x: str, table: str, seq_len: int
) -> str:
    """Add the prediction of masked tokens and return the sum of its losses."""
    if config.first_places:
        x = _first_places(builder, "read", x, config.first_places, " k")
    x = dense(builder, "transform", x, "b t k, k n -> b t n", {"n": config.hidden})
    x = builder.apply(config.activation, f"transform.{config.activation}", (x,), "b t n -> b t n")
    x = add_norm(builder, "ln", x, epsilon=config.epsilon)
    bias = builder.parameter("logits.bias", "v", (config.vocab,), init="zeros", decay=False)
    if config.tied:
        decoder = builder.repeat(table, "tokens.weight", "v k")
    else:
        decoder = builder.parameter("decoder.weight", "v k", (config.vocab, config.hidden))
        decoder_bias = builder.parameter(
            "decoder.bias", "v", (config.vocab,), init="zeros", decay=False
        )
        idle = builder.apply("scale", "logits.idle", (bias,), "v -> v", attributes={"factor": 0.0})
        bias = builder.apply("add", "logits.biases", (decoder_bias, idle), "v, v -> v")
    product = builder.apply("matmul", "logits.matmul", (x, decoder), "b t k, v k -> b t v")
    logits = builder.apply("add", "logits", (product, bias), "b t v, v -> b t v")
    shape = (builder.batch, seq_len)
    targets = builder.input("targets", "b t", shape, source="masked_targets", values=config.vocab)
    if config.first_places:
        targets = _first_places(builder, "targets.read", targets, config.first_places)
    losses = builder.apply("cross_entropy", "loss", (logits, targets), "b t v!, b t -> b t, b t")
    builder.apply("count_valid", "token_count", (targets,), "b t -> ")
    name = "masked_loss_sum" if config.next_sentence else "loss_sum"
    return builder.apply("sum", name, (losses,), "b t -> ")


def _first_places(builder: GraphBuilder, name: str, x: str, places: int, beyond: str = "") -> str:
    """First `places` places of `b t`, and what each has beside."""
    batch, _, *features = builder.tensors[x].shape
    return builder.apply(
        "narrow",
        name,
        (x,),
        f"b t!{beyond} -> b m!{beyond}",
        shapes=((batch, places, *features),),
        attributes={"start": 0},
    )


def _next_sentence_loss(builder: GraphBuilder, x: str, weight: int) -> str:
    """Add pooler and classifier; return the sum of the losses times `weight`."""
    first = transformer.first_place(builder, "first", x)
    hidden = builder.tensors[first].shape[-1]
    pooled = dense(builder, "pooler", first, "b k, k n -> b n", {"n": hidden})
    pooled = builder.apply("tanh", "pooler.tanh", (pooled,), "b n -> b n")
    classes = dense(builder, "follows", pooled, "b k, k c -> b c", {"c": 2})
    truth = builder.input("next_sentence", "b", (builder.batch,), source="next_sentence", values=2)
    losses = builder.apply("cross_entropy", "follows.loss", (classes, truth), "b c!, b -> b, b")
    total = builder.apply("sum", "follows.loss_sum", (losses,), "b -> ")
    factor: Attributes = {"factor": float(weight)}
    return builder.apply("scale", "follows.weighted", (total,), "() -> ", attributes=factor)


# Devlin et al., arXiv 1810.04805 (2018), section 3, over the released uncased vocabulary (30,522
# pieces, of which number 103 is [MASK]; google-research/bert, 2018).
def _sizes(layers: int, hidden: int, heads: int, *, next_sentence: bool = True) -> Config:
    return {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "ffn_hidden": 4 * hidden,
        "vocab": 30522,
        "positions": 512,
        "mask_id": 103,
        "next_sentence": next_sentence,
    }


MODELS: dict[str, Config] = {
    "bert-demo": {
        "layers": 4,
        "hidden": 128,
        "heads": 4,
        "ffn_hidden": 512,
        "vocab": 256,
        "positions": 128,
    },
    "bert-base": _sizes(12, 768, 12),
    "bert-large": _sizes(24, 1024, 16),
    "bert-base-mlm": _sizes(12, 768, 12, next_sentence=False),
    "bert-large-mlm": _sizes(24, 1024, 16, next_sentence=False),
}

ALIASES = {
    "bert": "bert-base",
    "bert-base-uncased": "bert-base",
    "bert-large-uncased": "bert-large",
}

FAMILY = Family(BertConfig, check, default_seq_len, build, MODELS, ALIASES)
