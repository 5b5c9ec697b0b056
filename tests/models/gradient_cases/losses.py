"""Losses whose gradient is not one: multiplied before the sum, added up, of other forms."""

from millrace.models.builder import GraphBuilder
from tests.models.gradient_cases.classifier import B, Ending, K, T, token_losses
from tests.models.gradient_cases.layers import EXPERTS


def weighted(builder: GraphBuilder, x: str) -> None:
    """Sum of the losses in which every position has a trained weight."""
    weight = builder.parameter("position", "t", (T,))
    losses = builder.apply("mul", "weighted", (token_losses(builder, x), weight), "b t, t -> b t")
    builder.apply("sum", "loss_sum", (losses,), "b t -> ")


def halved(builder: GraphBuilder, x: str) -> None:
    """Half of the sum of the losses."""
    total = builder.apply("sum", "loss_sum", (token_losses(builder, x),), "b t -> ")
    builder.apply("scale", "half", (total,), "() -> ", attributes={"factor": 0.5})


def two(builder: GraphBuilder, x: str) -> None:
    """The tokens' losses and a penalty on the features."""
    main = builder.apply("sum", "loss_sum", (token_losses(builder, x),), "b t -> ")
    labels = "b t k -> b t k"
    squares = builder.apply("power", "squares", (x,), labels, attributes={"exponent": 2.0})
    penalty = builder.apply("sum", "penalty_sum", (squares,), "b t k -> ")
    scaled = builder.apply("scale", "penalty", (penalty,), "() -> ", attributes={"factor": 0.3})
    builder.apply("add", "total", (main, scaled), ", -> ")


def of_means(builder: GraphBuilder, x: str) -> None:
    """Sum over the samples of each one's loss squared."""
    losses = token_losses(builder, x)
    sample = builder.apply("sum", "sample", (losses,), "b t -> b")
    squared = builder.apply("mul", "squared", (sample, sample), "b, b -> b")
    builder.apply("sum", "loss_sum", (squared,), "b -> ")


def _clicks(builder: GraphBuilder, x: str) -> str:
    weight = builder.parameter("click.weight", "t k", (T, K))
    logits = builder.apply("matmul", "click", (x, weight), "b t k, t k -> b")
    clicks = builder.input("clicks", "b", (B,), source="clicks", values=2)
    builder.apply("count_valid", "click_count", (clicks,), "b -> ")
    return builder.apply("logistic_loss", "loss", (logits, clicks), "b, b -> b")


def logistic(builder: GraphBuilder, x: str) -> None:
    """Logistic loss on whether a sample is clicked."""
    builder.apply("sum", "loss_sum", (_clicks(builder, x),), "b -> ")


def weighted_logistic(builder: GraphBuilder, x: str) -> None:
    """Logistic loss in which every sample has a trained weight."""
    weight = builder.parameter("sample", "b", (B,))
    losses = builder.apply("mul", "weighted", (_clicks(builder, x), weight), "b, b -> b")
    builder.apply("sum", "loss_sum", (losses,), "b -> ")


def angular(builder: GraphBuilder, x: str) -> None:
    """Cosines of features and classes, with a margin at a sample's own class."""
    classes = 5
    epsilon = {"epsilon": 1e-9}
    flat = builder.apply("rearrange", "flat", (x,), "b t k -> b (t k)")
    face = builder.apply("l2_normalize", "face", (flat,), "b d! -> b d!, b", attributes=epsilon)
    weight = builder.parameter("classes", "s d", (classes, T * K), std=1.0)
    unit = builder.apply("l2_normalize", "unit", (weight,), "s d! -> s d!, s", attributes=epsilon)
    cosine = builder.apply("matmul", "cosine", (face, unit), "b d, s d -> b s")
    identities = builder.input("own", "b", (B,), source="identities", values=classes)
    margin = {"scale": 4.0, "margin": 0.5}
    logits = builder.apply(
        "arc_margin", "logits", (cosine, identities), "b s, b -> b s", attributes=margin
    )
    losses = builder.apply("cross_entropy", "loss", (logits, identities), "b s!, b -> b, b")
    builder.apply("sum", "loss_sum", (losses,), "b -> ")
    builder.apply("count_valid", "count", (identities,), "b -> ")


def balanced(builder: GraphBuilder, x: str) -> None:
    """Share of the choices times chance of every expert: only the chance has a slope."""
    main = builder.apply("sum", "loss_sum", (token_losses(builder, x),), "b t -> ")
    weight = builder.parameter("router", "k e", (K, EXPERTS), std=1.0)
    scores = builder.apply("matmul", "scores", (x, weight), "b t k, k e -> b t e")
    chances = builder.apply("softmax", "chances", (scores,), "b t e! -> b t e!")
    value = builder.apply(
        "top_k",
        "chosen",
        (chances,),
        "b t! e! -> b t! k!, b t! k!, b t! k!",
        shapes=((B, T, 2),) * 3,
        attributes={"capacity": T, "groups": 1, "kept_groups": 1},
    )
    shape = ((B, EXPERTS),)
    (load,) = builder.emit(
        "expert_load",
        "body.load",
        (f"{value}.expert",),
        "b t! k! -> b e!",
        shapes=shape,
        dtype="float64",
    )
    mean = builder.apply("sum", "chance", (chances,), "b t e -> b e")
    products = builder.apply("mul", "uneven", (load, mean), "b e, b e -> b")
    aside = builder.apply("sum", "uneven_sum", (products,), "b -> ")
    scaled = builder.apply("scale", "balance", (aside,), "() -> ", attributes={"factor": 0.2})
    builder.apply("add", "total", (main, scaled), ", -> ")


ENDINGS: dict[str, Ending] = {
    "weighted cross_entropy": weighted,
    "scaled loss": halved,
    "two losses": two,
    "squared losses": of_means,
    "logistic_loss": logistic,
    "weighted logistic_loss": weighted_logistic,
    "arc_margin": angular,
    "load balance": balanced,
}
