"""Small models: two to four blocks of one product each, with dims that make choices matter."""

from millrace.models.builder import GraphBuilder, dense
from millrace.models.graph import Graph


def small_graph(
    mids: int,
    *,
    batch: int,
    tokens: int,
    inputs: int,
    hidden: int,
    classes: int,
    stem: str = "dense",
    mid: str = "relu",
) -> Graph:
    """A stem, so many equal blocks and a head with the loss.

    Parameters
    ----------
    mids : int
        Blocks between stem and head, of one template.
    batch, tokens : int
        Samples, and vectors of each: tokens are never split.
    inputs, hidden, classes : int
        Features (values of an embedding) that come in, those between blocks, and values of targets.
    stem : str
        "dense", or "embedding" of ids.
    mid : str
        The activation of the blocks between; "residual": gelu beside a residual connection.
    """
    builder = GraphBuilder(name="small", batch=batch, tokens_per_sample=tokens)
    builder.begin_block("stem")
    if stem == "embedding":
        ids = builder.input("ids", "b t", (batch, tokens), source="tokens", values=inputs)
        table = builder.parameter("table", "v n", (inputs, hidden))
        x = builder.apply("embedding", "embed", (ids, table), "b t!, v n -> b t! n")
    else:
        features = builder.input("x", "b t k", (batch, tokens, inputs), source="features")
        x = dense(builder, "fc", features, "b t! k, k n -> b t! n", {"n": hidden}, bias=False)
    for number in range(mids):
        builder.begin_block(f"mid.{number}", "mid")
        y = dense(builder, "fc", x, "b t! n, n m -> b t! m", {"m": hidden}, bias=False)
        kind = "gelu" if mid == "residual" else mid
        y = builder.apply(kind, kind, (y,), "b t! n -> b t! n")
        if mid == "residual":
            y = builder.apply("add", "sum", (x, y), "b t! n, b t! n -> b t! n")
        x = y
    builder.begin_block("head")
    logits = dense(builder, "fc", x, "b t! n, n c -> b t! c", {"c": classes}, bias=False)
    targets = builder.input("targets", "b t", (batch, tokens), source="targets", values=classes)
    losses = builder.apply(
        "cross_entropy", "loss", (logits, targets), "b t! c!, b t! -> b t!, b t!"
    )
    builder.apply("sum", "loss_sum", (losses,), "b t! -> ")
    builder.apply("count_valid", "token_count", (targets,), "b t! -> ")
    return builder.build()
