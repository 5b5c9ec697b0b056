"""Norms, rotary positions, attention, experts.

Shape legend: as in `classifier.py`; s keys, g groups of r heads, u features of a value, m buckets,
e experts, c places, f features inside an expert.
"""

from functools import partial
from typing import Any

from millrace.models.builder import GraphBuilder, dense
from millrace.models.zoo.norms import add_norm
from tests.models.gradient_cases.classifier import B, Body, K, T

GROUPS, HEADS, QUERY, VALUE = 2, 2, 4, 3
GROUPED = "b t g r d!, b s! g d!, b s! g u! -> b t g r u!, b t g r"
SCALE = {"scale": 0.7}
TURN = {"base": 10.0, "dims": 4, "interleaved": False, "inverse": False}
EXPERTS, CHOICES = 4, 2


def layer_normed(builder: GraphBuilder, x: str) -> str:
    return add_norm(builder, "ln", x, epsilon=1e-5)


def rms_normed(builder: GraphBuilder, x: str) -> str:
    gamma = builder.parameter("gamma", "k", (K,))
    labels = "b t k!, k! -> b t k!, b t"
    return builder.apply("rms_norm", "rms", (x, gamma), labels, attributes={"epsilon": 0.1})


def of_length_one(builder: GraphBuilder, x: str) -> str:
    labels = "b t k! -> b t k!, b t"
    return builder.apply("l2_normalize", "unit", (x,), labels, attributes={"epsilon": 1e-6})


def _queries(builder: GraphBuilder, x: str) -> str:
    sizes = {"g": GROUPS, "r": HEADS, "d": QUERY}
    return dense(builder, "q", x, "b t k, k g r d -> b t g r d", sizes, std=1.0)


def _keys_and_values(builder: GraphBuilder, x: str) -> tuple[str, str]:
    key, value = (
        dense(builder, name, x, "b s k, k g d -> b s g d", {"g": GROUPS, "d": size}, std=1.0)
        for name, size in (("k", QUERY), ("v", VALUE))
    )
    return key, value


def _back(builder: GraphBuilder, mixed: str) -> str:
    return dense(builder, "back", mixed, "b t g r u, g r u k -> b t k", {"k": K}, std=1.0)


def attended(form: dict[str, Any], builder: GraphBuilder, x: str) -> str:
    inputs = (_queries(builder, x), *_keys_and_values(builder, x))
    attributes = SCALE | form
    return _back(
        builder, builder.apply("attention", "core", inputs, GROUPED, attributes=attributes)
    )


def _sinks(builder: GraphBuilder) -> str:
    return builder.parameter("sinks", "g r", (GROUPS, HEADS), std=1.0)


def sunk(builder: GraphBuilder, x: str) -> str:
    """Attention with sinks."""
    inputs = (_queries(builder, x), *_keys_and_values(builder, x))
    attributes = SCALE | {"causal": True}
    mixed = builder.apply("attention", "core", inputs, GROUPED, attributes=attributes)
    read = (mixed, f"{mixed}.logsumexp", _sinks(builder))
    labels = "b t g r u, b t g r, g r -> b t g r u, b t g r"
    return _back(builder, builder.apply("attention_sink", "sunk", read, labels))


def chosen_for(builder: GraphBuilder, x: str) -> str:
    """Attention to two keys, which an indexer that is not trained chooses."""
    dims = {"q": "b t i e", "weights": "b t i", "key": "b t e"}
    shapes = {"q": (K, HEADS, QUERY), "weights": (K, HEADS), "key": (K, QUERY)}
    index = []
    for name, out in dims.items():
        weight = out.replace("b t", "k")
        frozen = builder.parameter(f"index.{name}", weight, shapes[name], std=1.0, frozen=True)
        index.append(builder.apply("matmul", name, (x, frozen), f"b t k, {weight} -> {out}"))
    labels = "b t i! e!, b t i!, b s! e! -> b t c!"
    chosen = builder.apply("choose_keys", "chosen", index, labels, shapes=((B, T, 2),))
    query = dense(builder, "of", x, "b t k, k h d -> b t h d", {"h": HEADS, "d": QUERY}, std=1.0)
    keys = [
        dense(builder, name, x, "b s k, k d -> b s d", {"d": size}, std=1.0)
        for name, size in (("k", QUERY), ("v", VALUE))
    ]
    labels = "b t h d!, b s! d!, b s! u!, b t c! -> b t h u!, b t h"
    read = (query, *keys, chosen)
    mixed = builder.apply("sparse_attention", "core", read, labels, attributes=SCALE)
    return dense(builder, "back", mixed, "b t h u, h u k -> b t k", {"k": K}, std=1.0)


def summarised(builder: GraphBuilder, x: str) -> str:
    """Attention to a window and to keys that stand for two tokens, with sinks."""
    query = dense(builder, "of", x, "b t k, k h d -> b t h d", {"h": HEADS, "d": QUERY}, std=1.0)
    key = dense(builder, "key", x, "b t k, k d -> b t d", {"d": QUERY}, std=1.0)
    pairs = T // 2
    even = builder.apply(
        "narrow", "even", (key,), "b t! d -> b u! d", shapes=((B, 2 * pairs, QUERY),),
        attributes={"start": 0},
    )  # fmt: skip
    labels, shapes = "b (w r) d -> b w r d", ((B, pairs, 2, QUERY),)
    apart = builder.apply("rearrange", "pairs", (even,), labels, shapes=shapes)
    sums = builder.apply("sum", "sums", (apart,), "b w r d -> b w d")
    labels, shapes = "b t! d, b w! d -> b s! d", ((B, T + pairs, QUERY),)
    keys = builder.apply("concat", "keys", (key, sums), labels, shapes=shapes)
    attributes = {"window": 2, "stride": 2, "tokens": T}
    (seen,) = builder.emit(
        "seen_keys", builder.full_name("seen"), (), "-> b t c!", shapes=((B, T, 2 + pairs),),
        dtype="int32", attributes=attributes,
    )  # fmt: skip
    labels = "b t h d!, b s! d!, b s! u!, b t c! -> b t h u!, b t h"
    read = (query, keys, keys, seen)
    mixed = builder.apply("sparse_attention", "core", read, labels, attributes=SCALE)
    sinks = builder.parameter("sinks", "h", (HEADS,), std=1.0)
    labels = "b t h u, b t h, h -> b t h u, b t h"
    mixed = builder.apply("attention_sink", "sunk", (mixed, f"{mixed}.logsumexp", sinks), labels)
    return dense(builder, "back", mixed, "b t h u, h u k -> b t k", {"k": K}, std=1.0)


def balanced(builder: GraphBuilder, x: str) -> str:
    """Streams mixed by doubly stochastic matrices."""
    sizes = {"m": 2, "n": 2}
    logits = dense(builder, "of", x, "b t k, k m n -> b t m n", sizes, std=1.0)
    dims = "b t m! n!"
    positive = builder.apply("softmax", "positive", (logits,), "b t m n! -> b t m n!")
    attributes = {"rounds": 3, "epsilon": 1e-3}
    mixing = builder.apply(
        "sinkhorn", "mixing", (positive,), f"{dims} -> {dims}", attributes=attributes
    )
    return dense(builder, "back", mixing, "b t m n, m n k -> b t k", {"k": K}, std=1.0)


def attended_elsewhere(builder: GraphBuilder, x: str) -> str:
    """Attention to fewer keys than queries, from other features."""
    memory = builder.apply(
        "narrow",
        "memory",
        (x,),
        "b t! k -> b s! k",
        shapes=((B, T - 1, K),),
        attributes={"start": 1},
    )
    inputs = (_queries(builder, x), *_keys_and_values(builder, memory))
    attributes = SCALE | {"causal": False}
    return _back(
        builder, builder.apply("attention", "core", inputs, GROUPED, attributes=attributes)
    )


def biased(buckets: dict[str, Any], builder: GraphBuilder, x: str) -> str:
    """Attention with a bias: a trained tensor, or T5's where there are buckets."""
    heads = {"h": HEADS, "d": QUERY}
    query, key, value = (
        dense(builder, name, x, "b t k, k h d -> b t h d", heads, std=1.0) for name in "qkv"
    )
    if buckets:
        table = builder.parameter("buckets", "m h", (6, HEADS), std=1.0)
        shape = (HEADS, T, T)
        bias = builder.apply(
            "relative_bias", "bias", (table,), "m! h -> h t s!", shapes=(shape,), attributes=buckets
        )
    else:
        bias = builder.parameter("bias", "h t s", (HEADS, T, T), std=1.0)
    labels = "b t h d!, b s! h d!, b s! h u!, h t s! -> b t h u!, b t h"
    attributes = SCALE | {"causal": not buckets}
    mixed = builder.apply(
        "biased_attention", "core", (query, key, value, bias), labels, attributes=attributes
    )
    return dense(builder, "back", mixed, "b t h d, h d k -> b t k", {"k": K}, std=1.0)


def scored(form: dict[str, Any], builder: GraphBuilder, x: str) -> str:
    """Attention as separate ops."""
    key, value = _keys_and_values(builder, x)
    labels = "b t g r d!, b s! g d! -> b g r t s!"
    scores = builder.apply("matmul", "scores", (_queries(builder, x), key), labels)
    labels, attributes = "b g r t s! -> b g r t s!", SCALE | form
    if sinks := () if "window" in form else (_sinks(builder),):
        labels = "b g r t s!, g r -> b g r t s!"
    read = (scores, *sinks)
    weights = builder.apply("masked_softmax", "weights", read, labels, attributes=attributes)
    labels = "b g r t s!, b s! g u! -> b t g r u!"
    return _back(builder, builder.apply("matmul", "core", (weights, value), labels))


def turned(form: dict[str, Any], builder: GraphBuilder, x: str) -> str:
    labels = "b t g r d! -> b t g r d!"
    attributes = TURN | form
    query = builder.apply("rotary", "turn", (_queries(builder, x),), labels, attributes=attributes)
    return dense(builder, "back", query, "b t g r d, g r d k -> b t k", {"k": K}, std=1.0)


def convolved(builder: GraphBuilder, x: str) -> str:
    """Every feature along the tokens, by a filter with more taps than there are tokens."""
    weight = builder.parameter("filter", "k j", (K, T + 1), std=1.0)
    return builder.apply("causal_conv1d", "conv", (x, weight), "b t! k, k j! -> b t! k")


def recurrent(kind: str, rows: str, builder: GraphBuilder, x: str) -> str:
    """A recurrence whose decays are a number of every head, or of every row (label d)."""
    sizes = {"g": GROUPS, "r": HEADS, "d": QUERY, "u": VALUE}

    def projected(name: str, labels: str) -> str:
        given = {label: sizes[label] for label in labels.split()}
        return dense(builder, name, x, f"b t k, k {labels} -> b t {labels}", given, std=1.0)

    query, key, value = projected("q", "g d"), projected("k", "g d"), projected("v", "g r u")
    labels, attributes = "b t g d! -> b t g d!, b t g", {"epsilon": 1e-6}
    key = builder.apply("l2_normalize", "unit", (key,), labels, attributes=attributes)
    head = f"g r{rows}"
    form = " ".join(["b t", *head.split()])
    rate = builder.apply("softplus", "rate", (projected("a", head),), f"{form} -> {form}")
    decay = builder.apply("scale", "decay", (rate,), f"{form} -> {form}", attributes={"factor": -1})
    inputs = [query, key, value, decay]
    labels = f"b t! g d!, b t! g d!, b t! g r u, b t! {head}{'!' if rows else ''}"
    if kind == "delta_rule":
        beta = builder.apply(
            "sigmoid", "beta", (projected("beta_of", "g r"),), "b t g r -> b t g r"
        )
        inputs, labels = [*inputs, beta], f"{labels}, b t! g r"
    return _back(builder, builder.apply(kind, "core", tuple(inputs), f"{labels} -> b t! g r u"))


def mixture(route: dict[str, Any], builder: GraphBuilder, x: str) -> str:
    """Softmax over experts, the best of them, each a product and an activation."""
    scores = dense(builder, "router", x, "b t k, k e -> b t e", {"e": EXPERTS}, std=1.0)
    chances = builder.apply("softmax", "chances", (scores,), "b t e! -> b t e!")
    chosen = "b t! k!"
    capacity = int(route["capacity"])
    weight = builder.apply(
        "top_k",
        "chosen",
        (chances,),
        f"b t! e! -> {chosen}, {chosen}, {chosen}",
        shapes=((B, T, CHOICES),) * 3,
        attributes=route,
    )
    choice = (f"{weight}.expert", f"{weight}.place")
    given = builder.apply(
        "dispatch",
        "given",
        (x, *choice),
        f"b t! d, {chosen}, {chosen} -> e b c! d",
        shapes=((EXPERTS, B, capacity, K),),
    )
    hidden = dense(builder, "expert", given, "e b c d, e d f -> e b c f", {"f": K}, std=1.0)
    active = builder.apply("tanh", "active", (hidden,), "e b c f -> e b c f")
    labels = f"e b c! d, {chosen}, {chosen}, {chosen} -> b t! d"
    return builder.apply("combine", "mixed", (active, *choice, weight), labels)


PLAIN_ROUTE = {"capacity": T, "groups": 1, "kept_groups": 1}

CASES: dict[str, Body] = {
    "layer_norm": layer_normed,
    "rms_norm": rms_normed,
    "l2_normalize": of_length_one,
    "attention, full": partial(attended, {"causal": False}),
    "attention, causal": partial(attended, {"causal": True}),
    "attention, window": partial(attended, {"causal": True, "window": 2}),
    "attention, alibi": partial(attended, {"causal": True, "alibi": 8.0}),
    "attention, cap": partial(attended, {"causal": True, "cap": 0.6}),
    "attention, elsewhere": attended_elsewhere,
    "attention, sinks": sunk,
    "sparse_attention": chosen_for,
    "sparse_attention, summaries": summarised,
    "sinkhorn": balanced,
    "biased_attention": partial(biased, {}),
    "biased_attention, relative_bias": partial(biased, {"bidirectional": True, "max_distance": 5}),
    "relative_bias, backward only": partial(biased, {"bidirectional": False, "max_distance": 5}),
    "masked_softmax, sinks": partial(scored, {"causal": False}),
    "masked_softmax, alibi": partial(scored, {"causal": True, "window": 2, "alibi": 8.0}),
    "rotary, halves": partial(turned, {}),
    "rotary, neighbours": partial(turned, {"interleaved": True}),
    "rotary, some features": partial(turned, {"dims": 2, "inverse": True}),
    "rotary, stretched": partial(turned, {"scaling": "linear", "factor": 2.0, "amplitude": 1.3}),
    "causal_conv1d": convolved,
    "state_space_scan": partial(recurrent, "state_space_scan", ""),
    "delta_rule": partial(recurrent, "delta_rule", ""),
    "delta_rule, rows apart": partial(recurrent, "delta_rule", " d"),
    "top_k, dispatch, combine": partial(mixture, PLAIN_ROUTE),
    "top_k, too little room": partial(mixture, PLAIN_ROUTE | {"capacity": 1}),
    "top_k, groups": partial(mixture, PLAIN_ROUTE | {"groups": 2, "kept_groups": 1}),
}
