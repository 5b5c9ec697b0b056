"""GPT: the decoder of GPT-2, GPT-3 and Megatron's series, at any size.

Learned positions, layer norm before each part, GELU in its tanh form (unless told otherwise),
biases, and a head that shares the token embedding. Heads stay a dim of their own, so that splitting
them is S on that dim.

Shape legend: b batch, t queries, s keys, d hidden (k where contracted, n where made), h heads,
v vocabulary, p positions.

Notes
-----
Radford et al., "Language models are unsupervised multitask learners", 2019; initialisation by its
section 2.3 and the released code (deviation 0.02, residual projections divided by sqrt(2 layers)).
GPT-3 (Brown et al., arXiv 2005.14165) alternates dense and locally banded attention; here all
layers are dense.
"""

from math import sqrt

import msgspec

from millrace.models.builder import GraphBuilder, dense
from millrace.models.errors import ModelError
from millrace.models.graph import Graph
from millrace.models.ops.pointwise_ops import ACTIVATIONS
from millrace.models.spec import Config, ModelSpec
from millrace.models.zoo import transformer
from millrace.models.zoo.family import Family, check_sizes
from millrace.models.zoo.norms import add_norm

INIT_STD = 0.02
EPSILON = 1e-5


class GptConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of a GPT; `positions` is the longest sequence.

    `token_std` is the initial deviation of the token table. The tied head multiplies by the same
    table, so at GPT-2's 0.02 a narrow model over few tokens begins by predicting the token it
    reads; a smaller deviation lets it begin by predicting nothing. `epsilon` is that of the layer
    norms; an `attention_scale` of 0 is one over the root of a head's features.
    """

    layers: int
    hidden: int
    heads: int
    ffn_hidden: int
    vocab: int
    positions: int
    token_std: float = INIT_STD
    init_std: float = INIT_STD
    epsilon: float = EPSILON
    activation: str = "gelu"
    attention_scale: float = 0.0
    tied: bool = True

    @property
    def residual_std(self) -> float:
        """Initial deviation of the projections that add to the residual stream."""
        return self.init_std / sqrt(2 * self.layers)


def check(spec: ModelSpec, config: GptConfig) -> None:
    """Raise ModelError when sizes do not divide or the sequence is longer than the positions."""
    check_sizes(spec, config, "layers", "hidden", "heads", "ffn_hidden", "vocab", "positions")
    for field in ("token_std", "init_std", "epsilon"):
        if (value := getattr(config, field)) <= 0:
            raise ModelError(f"model `{spec.name}`: `{field}` is {value}, not above 0")
    if config.attention_scale < 0:
        raise ModelError(
            f"model `{spec.name}`: `attention_scale` is {config.attention_scale}, below 0"
        )
    if config.activation not in ACTIVATIONS:
        raise ModelError(
            f"model `{spec.name}`: `activation` is `{config.activation}`; choose one of "
            f"{', '.join(ACTIVATIONS)}"
        )
    if config.hidden % config.heads:
        raise ModelError(
            f"model `{spec.name}`: hidden ({config.hidden}) is not divisible by heads "
            f"({config.heads})"
        )
    if not 1 <= spec.seq_len <= config.positions:
        raise ModelError(
            f"model `{spec.name}` has {config.positions} positions: sequences of "
            f"{spec.seq_len} tokens do not fit; use 1 to {config.positions}"
        )


def default_seq_len(config: GptConfig) -> int:
    """The longest sequence that the positions allow."""
    return config.positions


def build(spec: ModelSpec, config: GptConfig, batch: int) -> Graph:
    """Return the forward graph: blocks `embedding`, `h.0` …, `head`.

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
        builder.begin_block(f"h.{layer}", template="h")
        x = _block(builder, config, x)
    _head(builder, config, x, table, spec.seq_len)
    return builder.build()


def _embedding(builder: GraphBuilder, config: GptConfig, seq_len: int) -> tuple[str, str]:
    """Return the first hidden state and the token table (once a step), which the head shares."""
    builder.begin_block("embedding")
    shape = (builder.batch, seq_len)
    ids = builder.input("ids", "b t", shape, source="tokens", values=config.vocab)
    table = builder.variable(
        "tokens.weight", "v d", (config.vocab, config.hidden), std=config.token_std
    )
    used = builder.repeat(table, "tokens.weight", "v d")
    tokens = builder.apply("embedding", "tokens", (ids, used), "b t, v d -> b t d")
    positions = builder.variable(
        "positions.weight", "p d", (config.positions, config.hidden), std=config.init_std
    )
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
    return builder.apply("add", "sum", (tokens, rows), "b t d, t d -> b t d"), table


def _block(builder: GraphBuilder, config: GptConfig, x: str) -> str:
    normed = add_norm(builder, "ln1", x, epsilon=config.epsilon)
    mixed = transformer.attention_part(
        builder,
        normed,
        config.heads,
        config.hidden // config.heads,
        causal=True,
        scale=config.attention_scale,
        std=config.init_std,
        out_std=config.residual_std,
    )
    x = builder.apply("add", "attn.residual", (x, mixed), "b t n, b t n -> b t n")
    normed = add_norm(builder, "ln2", x, epsilon=config.epsilon)
    mlp_output = transformer.feed_forward_part(
        builder,
        normed,
        config.ffn_hidden,
        config.activation,
        std=config.init_std,
        out_std=config.residual_std,
    )
    return builder.apply("add", "mlp.residual", (x, mlp_output), "b t n, b t n -> b t n")


def _head(builder: GraphBuilder, config: GptConfig, x: str, table: str, seq_len: int) -> None:
    builder.begin_block("head")
    normed = add_norm(builder, "ln", x, epsilon=config.epsilon)
    if config.tied:
        tied = builder.repeat(table, "tokens.weight", "v k")
        logits = builder.apply("matmul", "logits", (normed, tied), "b t k, v k -> b t v")
    else:
        labels, sizes = "b t k, k v -> b t v", {"v": config.vocab}
        logits = dense(builder, "logits", normed, labels, sizes, std=config.init_std, bias=False)
    shape = (builder.batch, seq_len)
    targets = builder.input("targets", "b t", shape, source="targets", values=config.vocab)
    losses = builder.apply("cross_entropy", "loss", (logits, targets), "b t v!, b t -> b t, b t")
    builder.apply("sum", "loss_sum", (losses,), "b t -> ")
    builder.apply("count_valid", "token_count", (targets,), "b t -> ")


def _sizes(
    layers: int, hidden: int, heads: int, vocab: int, positions: int, **initial: float
) -> Config:
    return {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "ffn_hidden": 4 * hidden,
        "vocab": vocab,
        "positions": positions,
        **initial,
    }


# GPT-2: the released checkpoints' hparams.json (openai/gpt-2, 2019).
# GPT-3: Brown et al., arXiv 2005.14165 (2020), table 2.1, with GPT-2's vocabulary. Two rows of the
# table contradict themselves: 1.3B lists 24 heads of 128, which is not its hidden size of 2048
# (here 16 heads of 128); 13B lists hidden 5140, which its 40 heads of 128 do not make (here 5120,
# as used in practice).
# Megatron: Narayanan et al., "Efficient large-scale language model training on GPU clusters", SC
# 2021, arXiv 2104.04473, table 1, named by its rounded sizes; 51,200 tokens, 2,048 positions.
MODELS: dict[str, Config] = {
    "gpt-demo": _sizes(4, 192, 8, 256, 128, token_std=0.005),
    "gpt2-small": _sizes(12, 768, 12, 50257, 1024),
    "gpt2-medium": _sizes(24, 1024, 16, 50257, 1024),
    "gpt2-large": _sizes(36, 1280, 20, 50257, 1024),
    "gpt2-xl": _sizes(48, 1600, 25, 50257, 1024),
    "gpt3-125m": _sizes(12, 768, 12, 50257, 2048),
    "gpt3-350m": _sizes(24, 1024, 16, 50257, 2048),
    "gpt3-760m": _sizes(24, 1536, 16, 50257, 2048),
    "gpt3-1.3b": _sizes(24, 2048, 16, 50257, 2048),
    "gpt3-2.7b": _sizes(32, 2560, 32, 50257, 2048),
    "gpt3-6.7b": _sizes(32, 4096, 32, 50257, 2048),
    "gpt3-13b": _sizes(40, 5120, 40, 50257, 2048),
    "gpt3-175b": _sizes(96, 12288, 96, 50257, 2048),
    "megatron-1.7b": _sizes(24, 2304, 24, 51200, 2048),
    "megatron-3.6b": _sizes(30, 3072, 32, 51200, 2048),
    "megatron-7.5b": _sizes(36, 4096, 32, 51200, 2048),
    "megatron-18b": _sizes(40, 6144, 48, 51200, 2048),
    "megatron-39b": _sizes(48, 8192, 64, 51200, 2048),
    "megatron-76b": _sizes(60, 10240, 80, 51200, 2048),
    "megatron-145b": _sizes(80, 12288, 96, 51200, 2048),
    "megatron-310b": _sizes(96, 16384, 128, 51200, 2048),
    "megatron-530b": _sizes(105, 20480, 128, 51200, 2048),
    "megatron-1t": _sizes(128, 25600, 160, 51200, 2048),
}

ALIASES = {
    "gpt2": "gpt2-small",
    "gpt2-124m": "gpt2-small",
    "gpt2-355m": "gpt2-medium",
    "gpt2-774m": "gpt2-large",
    "gpt2-1.5b": "gpt2-xl",
    "gpt3": "gpt3-175b",
    "gpt3-small": "gpt3-125m",
    "gpt3-medium": "gpt3-350m",
    "gpt3-large": "gpt3-760m",
    "gpt3-xl": "gpt3-1.3b",
}

FAMILY = Family(GptConfig, check, default_seq_len, build, MODELS, ALIASES)
