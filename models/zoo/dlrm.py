"""DLRM: whether an advertisement is clicked, from products of embeddings with each other.

Numbers pass a small network, ids of categories are embedded, all these vectors are multiplied with
each other pair by pair, and a larger network reads the products. All fields share one table, each
with its own range of rows, filled up with rows that no id has to a number that devices divide: it
is split by row, S(0), or by column, S(1). Gradients of the table are dense, as large as the table,
where trainers of DLRM update the rows of a batch alone.

Shape legend: b batch, f fields of ids, v rows of the table, d features of an embedding, x numbers,
o one, g i embeddings with the numbers' vector, p q pairs of them, k features read, n features made.

Notes
-----
Naumov et al., "Deep learning recommendation model", arXiv 1906.00091 (2019). Sizes of `dlrm` are
those of MLPerf training 0.7 to 2.1 (mlcommons/training, recommendation/dlrm, read 2026-11):
Criteo's terabyte of click logs, whose tables end at 40 million rows.
"""

from math import sqrt

import msgspec

from millrace.models.builder import GraphBuilder, dense
from millrace.models.errors import ModelError
from millrace.models.graph import Graph
from millrace.models.spec import Config, ModelSpec
from millrace.models.zoo.family import SAMPLE, Family, check_no_sequence, check_sizes, one_item


class DlrmConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of a DLRM.

    `tables` are rows of the fields' tables, filled up together to a multiple of `rows_multiple`;
    `bottom` and `top` the widths of the layers behind the numbers and behind the products. The last
    of `bottom` is the features of an embedding; one more layer makes the logit.
    """

    tables: tuple[int, ...]
    bottom: tuple[int, ...]
    top: tuple[int, ...]
    numbers: int = 13
    rows_multiple: int = 4096

    @property
    def rows(self) -> int:
        """Rows of the table that all fields share."""
        return -(-sum(self.tables) // self.rows_multiple) * self.rows_multiple

    @property
    def embedding(self) -> int:
        """Features of an embedding."""
        return self.bottom[-1]


def check(spec: ModelSpec, config: DlrmConfig) -> None:
    """Raise ModelError when sizes are out of range or a sequence length is asked for."""
    check_sizes(spec, config, *config.__struct_fields__)
    for field in ("tables", "bottom", "top"):
        if not getattr(config, field):
            raise ModelError(f"model `{spec.name}`: `{field}` is empty; list one size or more")
    check_no_sequence(spec)


def build(spec: ModelSpec, config: DlrmConfig, batch: int) -> Graph:
    """Return the forward graph: blocks `bottom`, `tables`, `interaction`, `top.0` …, `head`.

    Raises
    ------
    ModelError
        Sizes are out of range, or a sequence length is asked for.
    """
    check(spec, config)
    builder = GraphBuilder(
        name=spec.name, batch=batch, tokens_per_sample=1, precision=spec.precision
    )
    builder.begin_block("bottom")
    numbers = builder.input("numbers", "b x", (batch, config.numbers), source="features")
    for layer, width in enumerate(config.bottom):
        numbers = _layer(builder, f"fc{layer}", numbers, width)
    x = _interaction(builder, config, numbers, _rows(builder, config))
    for layer, width in enumerate(config.top):
        builder.begin_block(f"top.{layer}")
        x = _layer(builder, "fc", x, width)
    _head(builder, x)
    return builder.build()


def _layer(builder: GraphBuilder, name: str, x: str, width: int) -> str:
    """Add a product and its activation; weights start as the published code has them."""
    std = sqrt(2 / (builder.tensors[x].shape[-1] + width))
    wide = dense(builder, name, x, "b k, k n -> b n", {"n": width}, std=std)
    return builder.apply("relu", f"{name}.relu", (wide,), "b n -> b n")


def _rows(builder: GraphBuilder, config: DlrmConfig) -> str:
    builder.begin_block("tables")
    shape = (builder.batch, len(config.tables))
    ids = builder.input("ids", "b f", shape, source="categories", values=config.rows)
    table = builder.parameter("table.weight", "v d", (config.rows, config.embedding), std=0.05)
    return builder.apply("embedding", "table", (ids, table), "b f, v d -> b f d")


def _interaction(builder: GraphBuilder, config: DlrmConfig, numbers: str, rows: str) -> str:
    """Return the numbers' vector and, behind it, the product of each pair of different vectors."""
    builder.begin_block("interaction")
    batch, features = builder.batch, config.embedding
    alone = builder.apply(
        "broadcast", "numbers", (numbers,), "b d -> b o d", shapes=((batch, 1, features),)
    )
    vectors = len(config.tables) + 1
    stacked = builder.apply(
        "concat",
        "vectors",
        (alone, rows),
        "b o! d, b f! d -> b g! d",
        shapes=((batch, vectors, features),),
    )
    square = builder.apply("matmul", "products", (stacked, stacked), "b g d, b i d -> b g i")
    flat = builder.apply("rearrange", "flat", (square,), "b g i -> b (g i)")
    parts = [numbers]
    for vector in range(1, vectors):  # with those before it: below the diagonal
        parts.append(
            builder.apply(
                "narrow",
                f"pairs{vector}",
                (flat,),
                "b p! -> b q!",
                shapes=((batch, vector),),
                attributes={"start": vector * vectors},
            )
        )
    labels = ", ".join(f"b k{part}!" for part in range(len(parts)))
    width = features + vectors * (vectors - 1) // 2
    return builder.apply("concat", "all", parts, f"{labels} -> b k!", shapes=((batch, width),))


def _head(builder: GraphBuilder, x: str) -> None:
    builder.begin_block("head")
    std = sqrt(2 / (builder.tensors[x].shape[-1] + 1))
    logits = dense(builder, "fc", x, "b k, k o -> b o", {"o": 1}, std=std)
    logits = builder.apply("sum", "logits", (logits,), "b o -> b")
    clicks = builder.input("clicks", "b", (builder.batch,), source="clicks", values=2)
    losses = builder.apply("logistic_loss", "loss", (logits, clicks), "b, b -> b")
    builder.apply("sum", "loss_sum", (losses,), "b -> ")
    builder.apply("count_valid", "token_count", (clicks,), "b -> ")


_CRITEO = (
    *(40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, 40_000_000, 3_067_956),
    *(405_282, 10, 2_209, 11_938, 155, 4, 976, 14, 40_000_000, 40_000_000, 40_000_000, 590_152),
    *(12_973, 108, 36),
)
MODELS: dict[str, Config] = {
    "dlrm-demo": {"tables": (1000,) * 8, "bottom": (64, 16), "top": (128, 64)},
    "dlrm": {"tables": _CRITEO, "bottom": (512, 256, 128), "top": (1024, 1024, 512, 256)},
}

ALIASES = {"dlrm-criteo-1tb": "dlrm", "dlrm-mlperf": "dlrm"}

FAMILY = Family(DlrmConfig, check, one_item, build, MODELS, ALIASES, SAMPLE)
