"""Products, sums, layout and elementwise functions."""

from functools import partial

from millrace.models.builder import GraphBuilder, dense
from millrace.models.ops import FUNCTIONS
from millrace.models.ops.pointwise_ops import FLAT
from tests.models.gradient_cases.classifier import B, Body, D, H, K, T, V

ROWS = "b t k -> b t k"
NUMBERS = {
    "leaky_relu": {"slope": 0.1},
    "power": {"exponent": 2.5},
    "clip": {"low": 0.3, "high": 0.9},
}


def product_of_activations(builder: GraphBuilder, x: str) -> str:
    scores = builder.apply("matmul", "scores", (x, x), "b t k, b s k -> b s t")
    return builder.apply("matmul", "mixed", (x, scores), "b t k, b t s -> b s k")


def products_with_heads(builder: GraphBuilder, x: str) -> str:
    wide = dense(builder, "wide", x, "b t k, k h d -> b t h d", {"h": H, "d": D}, std=1.0)
    return dense(builder, "narrow", wide, "b t h d, n h d -> b t n", {"n": K}, std=1.0)


def multiplied(builder: GraphBuilder, x: str) -> str:
    gain = builder.parameter("gain", "k", (K,))
    y = builder.apply("mul", "gained", (x, gain), "b t k, k -> b t k")
    lengths = builder.apply("mul", "lengths", (x, y), "b t k, b t k -> b t")
    z = builder.apply("mul", "long", (lengths, x), "b t, b t k -> b t k")
    factor = builder.parameter("factor", "()", ())
    return builder.apply("mul", "whole", (factor, z), ", b t k -> b t k")


def added(builder: GraphBuilder, x: str) -> str:
    rows = builder.parameter("rows", "t k", (T, K))
    swapped = builder.apply("rearrange", "swapped", (x,), "b t k -> t b k")
    return builder.apply("add", "sums", (x, rows, swapped, x), "b t k, t k, t b k, b t k -> b t k")


def summed(builder: GraphBuilder, x: str) -> str:
    row = builder.apply("sum", "row", (x,), "b t k -> b k")
    wide = builder.apply("broadcast", "wide", (row,), "b k -> b t k", shapes=((B, T, K),))
    return builder.apply("mul", "product", (x, wide), "b t k, b t k -> b t k")


def scaled(builder: GraphBuilder, x: str) -> str:
    y = builder.apply("scale", "scaled", (x,), ROWS, attributes={"factor": -1.5})
    return builder.apply("shift", "shifted", (y,), ROWS, attributes={"value": 0.5})


def rearranged(builder: GraphBuilder, x: str) -> str:
    flat = builder.apply("rearrange", "flat", (x,), "b t k -> (k b) t")
    shapes = ((B, T, K),)
    return builder.apply("rearrange", "back", (flat,), "(k b) t -> b t k", shapes=shapes)


def narrowed_variable(builder: GraphBuilder, x: str) -> str:
    table = builder.variable("table", "p k", (T + 2, K))
    rows = builder.apply(
        "narrow", "rows", (table,), "p! k -> t! k", shapes=((T, K),), attributes={"start": 1}
    )
    used = builder.repeat(rows, "rows", "t k")
    return builder.apply("add", "sums", (x, used), "b t k, t k -> b t k")


def widened_variable(builder: GraphBuilder, x: str) -> str:
    table = builder.variable("table", "s k", (T - 1, K))
    rows = builder.apply(
        "widen", "rows", (table,), "s! k -> t! k", shapes=((T, K),), attributes={"start": 1}
    )
    used = builder.repeat(rows, "rows", "t k")
    return builder.apply("add", "sums", (x, used), "b t k, t k -> b t k")


def _features(builder: GraphBuilder, name: str, x: str, start: int, size: int) -> str:
    return builder.apply(
        "narrow",
        name,
        (x,),
        "b t k! -> b t p!",
        shapes=((B, T, size),),
        attributes={"start": start},
    )


def concatenated_pieces(builder: GraphBuilder, x: str) -> str:
    first, rest = _features(builder, "first", x, 0, 1), _features(builder, "rest", x, 1, K - 1)
    token = builder.parameter("token", "b t s", (B, T, 2))
    labels = "b t p!, b t s!, b t q! -> b t k!"
    joined = builder.apply(
        "concat", "joined", (rest, token, first), labels, shapes=((B, T, K + 2),)
    )
    return _features(builder, "taken", joined, 1, K)


def widened_activation(builder: GraphBuilder, x: str) -> str:
    part = _features(builder, "part", x, 1, 2)
    return builder.apply(
        "widen",
        "wide",
        (part,),
        "b t p! -> b t k!",
        shapes=((B, T, K),),
        attributes={"start": 2},
    )


def cast_and_back(builder: GraphBuilder, x: str) -> str:
    (narrow,) = builder.emit("cast", "body.narrow", (x,), ROWS, dtype="float32")
    (wide,) = builder.emit("cast", "body.wide", (narrow,), ROWS, dtype="float64")
    return wide


def quantised(builder: GraphBuilder, x: str) -> str:
    return builder.apply("quantise", "narrow", (x,), ROWS)


def embedded(builder: GraphBuilder, x: str) -> str:
    ids = builder.input("ids", "b t", (B, T), source="tokens", values=V)
    table = builder.parameter("table", "v k", (V, K))
    rows = builder.apply("embedding", "rows", (ids, table), "b t, v k -> b t k")
    return builder.apply("add", "sums", (x, rows), "b t k, b t k -> b t k")


def dropped(builder: GraphBuilder, x: str) -> str:
    attributes = {"rate": 0.4, "op": "body.drop"}
    return builder.apply("dropout", "drop", (x,), ROWS, attributes=attributes)


def softened(builder: GraphBuilder, x: str) -> str:
    return builder.apply("softmax", "soft", (x,), "b t k! -> b t k!")


def gated(kind: str, attributes: dict[str, float], builder: GraphBuilder, x: str) -> str:
    up = dense(builder, "up", x, "b t k, k n -> b t n", {"n": K}, std=1.0)
    labels = "b t k, b t k -> b t k"
    return builder.apply(kind, "gate", (x, up), labels, attributes=attributes)


def with_slopes(builder: GraphBuilder, x: str) -> str:
    slopes = builder.parameter("slopes", "k", (K,))
    return builder.apply("prelu", "act", (x, slopes), "b t k, k -> b t k")


def function(kind: str, builder: GraphBuilder, x: str) -> str:
    """A function, of positive values where it wants such."""
    if kind in ("log", "sqrt", "rsqrt", "reciprocal", "power"):
        x = builder.apply("sigmoid", "share", (x,), ROWS)
        x = builder.apply("shift", "positive", (x,), ROWS, attributes={"value": 0.5})
    values = builder.apply(kind, "act", (x,), ROWS, attributes=NUMBERS.get(kind, {}))
    if kind in FLAT:  # nothing is trained through it: it says what of x counts
        return builder.apply("mul", "part", (x, values), "b t k, b t k -> b t k")
    return values


CASES: dict[str, Body] = {
    "matmul, repeat, sum, cross_entropy": products_with_heads,
    "matmul of activations": product_of_activations,
    "mul": multiplied,
    "add": added,
    "sum, broadcast": summed,
    "scale, shift": scaled,
    "rearrange": rearranged,
    "narrow a variable": narrowed_variable,
    "widen a variable": widened_variable,
    "narrow, concat": concatenated_pieces,
    "widen": widened_activation,
    "cast": cast_and_back,
    "quantise": quantised,
    "embedding": embedded,
    "dropout": dropped,
    "softmax": softened,
    "swiglu": partial(gated, "swiglu", {}),
    "clamped_swiglu": partial(gated, "clamped_swiglu", {"cap": 0.8, "slope": 1.7, "shift": 1.0}),
    "prelu": with_slopes,
    **{name: partial(function, name) for name in FUNCTIONS},
}
