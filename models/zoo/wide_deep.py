"""Wide & Deep: whether an advertisement is clicked, from ids of categories and a few numbers.

The wide part adds up one learned number per id, the deep part reads an embedding per id and the
numbers through hidden layers; their sum is the logit. All fields share one table (each has its own
range of rows) so that splitting it by row is S(0), by column S(1). The first hidden layer has a
weight for the embeddings and one for the numbers, which together are the weight of their
concatenation: split columns of the table meet split rows of the weight. Gradients of the tables
are dense, as large as the tables.

Shape legend: b batch, f fields of ids, v rows of the table, d features of an embedding, x numbers,
k features read, n features made, z one.

Notes
-----
Cheng et al., "Wide & deep learning for recommender systems", arXiv 1606.07792 (2016). Sizes: 26
fields of ids and 13 numbers are those of the Criteo display advertising data set (2014);
embeddings of 16 and seven layers of 1024 those of OneFlow's benchmark
(Oneflow-Inc/OneFlow-Benchmark, ClickThroughRate/WideDeepLearning, 2020), whose wide part reads
crossed fields of its own and whose hidden layers have dropout; here the wide part reads the same
ids and nothing is dropped.
"""

from math import sqrt

import msgspec

from millrace.models.builder import GraphBuilder, dense
from millrace.models.errors import ModelError
from millrace.models.graph import Graph
from millrace.models.spec import Config, ModelSpec
from millrace.models.zoo.family import SAMPLE, Family, check_no_sequence, check_sizes, one_item


class WideDeepConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of a Wide & Deep: a table of `vocab` rows, `layers` hidden layers."""

    vocab: int = 1_000_000
    fields: int = 26
    numbers: int = 13
    embedding: int = 16
    hidden: int = 1024
    layers: int = 7


def check(spec: ModelSpec, config: WideDeepConfig) -> None:
    """Raise ModelError when sizes are out of range or a sequence length is asked for."""
    where = f"model `{spec.name}`"
    check_sizes(spec, config, "fields", "numbers", "embedding", "hidden", "layers")
    if config.vocab < config.fields:
        raise ModelError(
            f"{where}: `vocab` is {config.vocab}, too few rows for {config.fields} fields; every "
            f"field has rows of its own"
        )
    check_no_sequence(spec)


def build(spec: ModelSpec, config: WideDeepConfig, batch: int) -> Graph:
    """Return the forward graph: blocks `wide`, `deep`, `hidden.0` …, `head`.

    The deep block makes the first of the `layers` hidden layers.

    Raises
    ------
    ModelError
        Sizes are out of range, or a sequence length is asked for.
    """
    check(spec, config)
    builder = GraphBuilder(
        name=spec.name, batch=batch, tokens_per_sample=1, precision=spec.precision
    )
    ids, wide = _wide(builder, config)
    x = _deep(builder, config, ids)
    for layer in range(config.layers - 1):
        builder.begin_block(f"hidden.{layer}", template="hidden")
        sizes = {"n": config.hidden}
        std = sqrt(2 / config.hidden)
        x = dense(builder, "fc", x, "b k, k n -> b n", sizes, std=std)
        x = builder.apply("relu", "relu", (x,), "b n -> b n")
    _head(builder, config, x, wide)
    return builder.build()


def _wide(builder: GraphBuilder, config: WideDeepConfig) -> tuple[str, str]:
    """Return the ids, which the deep part reads too, and the wide part of the logit."""
    builder.begin_block("wide")
    shape = (builder.batch, config.fields)
    ids = builder.input("ids", "b f", shape, source="categories", values=config.vocab)
    table = builder.parameter("table.weight", "v z", (config.vocab, 1), init="zeros")
    rows = builder.apply("embedding", "table", (ids, table), "b f, v z -> b f z")
    return ids, builder.apply("sum", "sum", (rows,), "b f z -> b")


def _deep(builder: GraphBuilder, config: WideDeepConfig, ids: str) -> str:
    builder.begin_block("deep")
    table = builder.parameter("table.weight", "v d", (config.vocab, config.embedding), std=0.05)
    rows = builder.apply("embedding", "table", (ids, table), "b f, v d -> b f d")
    numbers = builder.input("numbers", "b x", (builder.batch, config.numbers), source="features")
    sizes = {"n": config.hidden}
    std = sqrt(2 / (config.fields * config.embedding + config.numbers))
    of_rows = dense(builder, "rows", rows, "b f d, f d n -> b n", sizes, std=std)
    of_numbers = dense(
        builder, "numbers_fc", numbers, "b x, x n -> b n", sizes, std=std, bias=False
    )
    both = builder.apply("add", "fc", (of_rows, of_numbers), "b n, b n -> b n")
    return builder.apply("relu", "relu", (both,), "b n -> b n")


def _head(builder: GraphBuilder, config: WideDeepConfig, x: str, wide: str) -> None:
    builder.begin_block("head")
    std = 1 / sqrt(config.hidden)
    deep = dense(builder, "fc", x, "b k, k z -> b z", {"z": 1}, std=std)
    deep = builder.apply("sum", "deep", (deep,), "b z -> b")
    logits = builder.apply("add", "logits", (deep, wide), "b, b -> b")
    clicks = builder.input("clicks", "b", (builder.batch,), source="clicks", values=2)
    losses = builder.apply("logistic_loss", "loss", (logits, clicks), "b, b -> b")
    builder.apply("sum", "loss_sum", (losses,), "b -> ")
    builder.apply("count_valid", "token_count", (clicks,), "b -> ")


MODELS: dict[str, Config] = {
    "wide-deep-demo": {"vocab": 26_000, "hidden": 256, "layers": 3},
    "wide-deep": {"vocab": 10**6},
    "wide-deep-1e7": {"vocab": 10**7},
    "wide-deep-1e8": {"vocab": 10**8},
}

ALIASES = {"wdl": "wide-deep", "wide-and-deep": "wide-deep", "wide-deep-1e6": "wide-deep"}

FAMILY = Family(WideDeepConfig, check, one_item, build, MODELS, ALIASES, SAMPLE)
