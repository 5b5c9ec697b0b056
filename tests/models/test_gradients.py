"""Every gradient rule against finite differences of the forward pass, in float64."""

from collections.abc import Callable

import numpy as np
import pytest

from models.builder import GraphBuilder, dense
from models.errors import ModelError
from models.gradients import RULES
from models.graph import Graph, Phase
from models.inference import check_graph
from models.spec import ModelSpec, TrainingSpec
from models.training import training_graph
from models.zoo import gpt, mlp
from models.zoo.catalogue import build
from tests.models.oracle import Array, random_values, run

B, T, K, H, D, V = 2, 3, 4, 2, 3, 5
STEP = 1e-5
Body = Callable[[GraphBuilder, str], str]


def classifier(body: Body, precision: str = "fp64") -> Graph:
    """Features b t k, through one trained layer and `body`, to a loss over the last dim."""
    builder = GraphBuilder(name="case", batch=B, tokens_per_sample=T, precision=precision)
    builder.begin_block("body")
    x = builder.input("x", "b t k", (B, T, K), source="features")
    trained = dense(builder, "into", x, "b t k, k n -> b t n", {"n": K}, std=1.0)
    logits = dense(builder, "out_of", body(builder, trained), "b t k, k v -> b t v", {"v": V})
    targets = builder.input("targets", "b t", (B, T), source="targets", values=V)
    losses = builder.apply("cross_entropy", "loss", (logits, targets), "b t v!, b t -> b t, b t")
    builder.apply("sum", "loss_sum", (losses,), "b t -> ")
    builder.apply("count_valid", "token_count", (targets,), "b t -> ")
    return builder.build()


def _product_of_activations(builder: GraphBuilder, x: str) -> str:
    scores = builder.apply("matmul", "scores", (x, x), "b t k, b s k -> b s t")
    return builder.apply("matmul", "mixed", (x, scores), "b t k, b t s -> b s k")


def _products_with_heads(builder: GraphBuilder, x: str) -> str:
    wide = dense(builder, "wide", x, "b t k, k h d -> b t h d", {"h": H, "d": D}, std=1.0)
    return dense(builder, "narrow", wide, "b t h d, n h d -> b t n", {"n": K}, std=1.0)


def _sums(builder: GraphBuilder, x: str) -> str:
    rows = builder.parameter("rows", "t k", (T, K))
    swapped = builder.apply("rearrange", "swapped", (x,), "b t k -> t b k")
    return builder.apply("add", "sums", (x, rows, swapped, x), "b t k, t k, t b k, b t k -> b t k")


def _rearranged(builder: GraphBuilder, x: str) -> str:
    flat = builder.apply("rearrange", "flat", (x,), "b t k -> (k b) t")
    shapes = ((B, T, K),)
    return builder.apply("rearrange", "back", (flat,), "(k b) t -> b t k", shapes=shapes)


def _first_rows(builder: GraphBuilder, x: str) -> str:
    table = builder.variable("table", "p k", (T + 2, K))
    rows = builder.apply(
        "narrow", "rows", (table,), "p! k -> t! k", shapes=((T, K),), attributes={"start": 0}
    )
    used = builder.repeat(rows, "rows", "t k")
    return builder.apply("add", "sums", (x, used), "b t k, t k -> b t k")


def _padded_rows(builder: GraphBuilder, x: str) -> str:
    table = builder.variable("table", "s k", (T - 1, K))
    rows = builder.apply(
        "widen", "rows", (table,), "s! k -> t! k", shapes=((T, K),), attributes={"start": 0}
    )
    used = builder.repeat(rows, "rows", "t k")
    return builder.apply("add", "sums", (x, used), "b t k, t k -> b t k")


def _cast_and_back(builder: GraphBuilder, x: str) -> str:
    labels = "b t k -> b t k"
    (narrow,) = builder.emit("cast", "body.narrow", (x,), labels, dtype="float32")
    (wide,) = builder.emit("cast", "body.wide", (narrow,), labels, dtype="float64")
    return wide


def _embedded(builder: GraphBuilder, x: str) -> str:
    ids = builder.input("ids", "b t", (B, T), source="tokens", values=V)
    table = builder.parameter("table", "v k", (V, K))
    rows = builder.apply("embedding", "rows", (ids, table), "b t, v k -> b t k")
    return builder.apply("add", "sums", (x, rows), "b t k, b t k -> b t k")


def _attended(causal: bool) -> Body:
    def body(builder: GraphBuilder, x: str) -> str:
        heads = {"h": H, "d": D}
        query, key, value = (
            dense(builder, part, x, "b t k, k h d -> b t h d", heads, std=1.0) for part in "qkv"
        )
        labels = "b t h d!, b s! h d!, b s! h d! -> b t h d!, b t h"
        attributes = {"causal": causal, "scale": 0.7}
        mixed = builder.apply(
            "attention", "core", (query, key, value), labels, attributes=attributes
        )
        return dense(builder, "narrow", mixed, "b t h d, h d k -> b t k", {"k": K}, std=1.0)

    return body


def _normed(builder: GraphBuilder, x: str) -> str:
    return gpt.layer_norm(builder, "ln", x, K)


def _pointwise(kind: str) -> Body:
    return lambda builder, x: builder.apply(kind, "act", (x,), "b t k -> b t k")


CASES: dict[str, Body] = {
    "matmul, repeat, sum, cross_entropy": _products_with_heads,
    "matmul of activations": _product_of_activations,
    "add": _sums,
    "rearrange": _rearranged,
    "narrow": _first_rows,
    "widen": _padded_rows,
    "cast": _cast_and_back,
    "embedding": _embedded,
    "attention, causal": _attended(True),
    "attention, full": _attended(False),
    "layer_norm": _normed,
    "relu": _pointwise("relu"),
    "gelu": _pointwise("gelu"),
}


def gradient_of(training: Graph, variable: str) -> str:
    (update,) = (op for op in training.ops if op.outputs == (f"{variable}.next",))
    return update.inputs[1]


def assert_gradients_are_slopes(forward: Graph, *, seed: int, entries: int | None = None) -> None:
    """Compare with central differences: every entry, or random directions where that is many."""
    training = check_graph(training_graph(forward, TrainingSpec()))
    values = random_values(forward, seed)
    found = run(training, values)
    loss = next(op.inputs[0] for op in training.ops if op.kind == "step_totals")
    generator = np.random.default_rng(seed)

    def loss_at(variable: str, shift: Array) -> float:
        moved = values | {variable: values[variable] + shift}
        return float(run(forward, moved)[loss.removesuffix(".accumulate")])

    for op in forward.ops:
        if op.kind != "variable":
            continue
        name = op.outputs[0]
        shape = values[name].shape
        directions = (
            np.eye(values[name].size).reshape(-1, *shape)
            if entries is None
            else generator.normal(0, 1, (entries, *shape))
        )
        for direction in directions:
            shift = STEP * direction
            slope = (loss_at(name, shift) - loss_at(name, -shift)) / (2 * STEP)
            along = float((found[gradient_of(training, name)] * direction).sum())
            assert along == pytest.approx(slope, rel=1e-6, abs=1e-7), name


@pytest.mark.parametrize("case", CASES)
def test_the_rule_gives_the_slope_of_the_loss(case: str) -> None:
    assert_gradients_are_slopes(classifier(CASES[case]), seed=3)


def test_the_cases_cover_every_rule() -> None:
    kinds = {op.kind for body in CASES.values() for op in classifier(body).ops}
    assert set(RULES) <= kinds


def test_gradients_of_a_whole_gpt_are_slopes() -> None:
    config = {"layers": 2, "hidden": 8, "heads": 2, "ffn_hidden": 12, "vocab": 7, "positions": 5}
    spec = ModelSpec(name="tiny", family="gpt", config=config, seq_len=4, precision="fp64")
    assert_gradients_are_slopes(build(spec, 2), seed=5, entries=1)


def test_gradients_of_a_whole_mlp_are_slopes() -> None:
    config = mlp.MlpConfig(inputs=6, columns=3, hidden=4, layers=3, classes=3)
    spec = ModelSpec(name="tiny", family="mlp", config={}, precision="fp64")
    assert_gradients_are_slopes(mlp.build(spec, config, 3), seed=7, entries=2)


def test_targets_below_zero_do_not_count() -> None:
    forward = classifier(_normed)
    values = random_values(forward, 0) | {"body.targets": np.full((B, T), -1)}
    found = run(training_graph(forward, TrainingSpec()), values)
    np.testing.assert_array_equal(found["global.step_totals"], [0, 0, 0])


def test_the_gradient_of_an_activation_and_of_a_weight_are_two_ops() -> None:
    training = training_graph(classifier(_normed), TrainingSpec())
    phases = {op.name: op.phase for op in training.ops}
    for name in ("body.ln", "body.out_of.matmul"):
        assert phases[f"{name}.grad_input"] is Phase.BACKWARD_INPUT
        assert phases[f"{name}.grad_weight"] is Phase.BACKWARD_WEIGHT


def test_data_gets_no_gradient() -> None:
    training = training_graph(classifier(_normed), TrainingSpec())
    names = {op.name for op in training.ops}
    assert "body.into.matmul.grad_weight" in names
    assert "body.into.matmul.grad_input" not in names


def _second_loss(builder: GraphBuilder, x: str) -> str:
    builder.apply("sum", "other_sum", (x,), "b t k -> ")
    return x


def _unread(builder: GraphBuilder, x: str) -> str:
    builder.parameter("idle", "k", (K,))
    return x


def _mean_read(builder: GraphBuilder, x: str) -> str:
    _normed(builder, x)
    labels = "b t k, b t -> b t k"
    return builder.apply("add", "sums", (x, "body.ln.mean"), labels)


def _summed(builder: GraphBuilder, x: str) -> str:
    row = builder.apply("sum", "row", (x,), "b t k -> b k")
    return builder.apply("add", "sums", (x, row), "b t k, b k -> b t k")


def _lone_label(builder: GraphBuilder, x: str) -> str:
    row = builder.apply("matmul", "lone", (x, x), "b t k, b s k -> b t")
    return builder.apply("add", "sums", (x, row), "b t k, b t -> b t k")


def _no_rule(builder: GraphBuilder, x: str) -> str:
    return builder.apply("gelu_grad", "act", (x, x), "b t k, b t k -> b t k")


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (_second_loss, "graph `case` has 2 ops that are the scalar `sum` of losses"),
        (_unread, "variable `body.idle` does not reach the loss `body.loss_sum`; remove it"),
        (_mean_read, "op `body.ln`: only its first output can reach the loss"),
        (_summed, "op `body.row`: a `sum` that is not the loss has no gradient rule"),
        (_lone_label, "op `body.lone`, tensor `body.into`: label `s` is summed over alone"),
        (_no_rule, "op `body.act`: kind `gelu_grad` cannot be differentiated"),
    ],
)
def test_what_cannot_be_differentiated_is_refused_with_its_op(body: Body, complaint: str) -> None:
    with pytest.raises(ModelError) as refused:
        training_graph(classifier(body), TrainingSpec())
    assert complaint in str(refused.value)
