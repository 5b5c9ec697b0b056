"""Every gradient rule against finite differences of the forward pass, in float64."""

import numpy as np
import pytest

from millrace.models.builder import GraphBuilder
from millrace.models.errors import ModelError
from millrace.models.gradients import RULES
from millrace.models.graph import Graph, Phase
from millrace.models.spec import ModelSpec, TrainingSpec
from millrace.models.training import training_graph
from millrace.models.type_inference import check_graph
from millrace.models.zoo import mlp
from millrace.models.zoo.catalogue import build
from tests.models.gradient_cases import images, layers, losses, products
from tests.models.gradient_cases.classifier import B, Body, K, T, classifier, unchanged
from tests.models.oracle import Array, random_values, run

STEP = 1e-4
CASES: dict[str, Body] = {**products.CASES, **layers.CASES, **images.CASES}


def gradient_of(training: Graph, variable: str) -> str:
    (update,) = (op for op in training.ops if op.outputs == (f"{variable}.next",))
    return update.inputs[1]


def assert_gradients_are_slopes(forward: Graph, *, seed: int, entries: int | None = None) -> None:
    """Compare with central differences: every entry, or random directions where that is many."""
    training = check_graph(training_graph(forward, TrainingSpec()))
    values = random_values(forward, seed)
    tensors = run(training, values)
    loss = next(op.inputs[0] for op in training.ops if op.kind == "step_totals")
    generator = np.random.default_rng(seed)

    def loss_at(variable: str, shift: Array) -> float:
        moved = values | {variable: values[variable] + shift}
        return float(run(forward, moved)[loss.removesuffix(".accumulate")])

    for op in forward.ops:
        if not op.trains:
            continue
        name = op.outputs[0]
        shape = values[name].shape
        directions = (
            np.eye(values[name].size).reshape(-1, *shape)
            if entries is None
            else generator.normal(0, 1, (entries, *shape))
        )
        for direction in directions:
            wide, narrow = (
                (loss_at(name, step * direction) - loss_at(name, -step * direction)) / (2 * step)
                for step in (STEP, STEP / 2)
            )
            slope = (4 * narrow - wide) / 3  # Richardson's extrapolation
            along = float((tensors[gradient_of(training, name)] * direction).sum())
            assert along == pytest.approx(slope, rel=1e-6, abs=1e-7), name


@pytest.mark.parametrize("case", CASES)
def test_the_rule_gives_the_slope_of_the_loss(case: str) -> None:
    assert_gradients_are_slopes(classifier(CASES[case]), seed=3, entries=3)


@pytest.mark.parametrize("ending", losses.ENDINGS)
def test_any_form_of_loss_can_be_differentiated(ending: str) -> None:
    forward = classifier(unchanged, losses.ENDINGS[ending])
    assert_gradients_are_slopes(forward, seed=3, entries=3)


def test_the_cases_cover_every_rule() -> None:
    graphs = [classifier(body) for body in CASES.values()]
    graphs += [classifier(unchanged, ending) for ending in losses.ENDINGS.values()]
    assert set(RULES) <= {op.kind for graph in graphs for op in graph.ops}


def test_gradients_of_a_whole_gpt_are_slopes() -> None:
    config = {"layers": 2, "hidden": 8, "heads": 2, "ffn_hidden": 12, "vocab": 7, "positions": 5}
    spec = ModelSpec(name="tiny", family="gpt", config=config, seq_len=4, precision="fp64")
    assert_gradients_are_slopes(build(spec, 2), seed=5, entries=1)


def test_gradients_of_a_whole_mlp_are_slopes() -> None:
    config = mlp.MlpConfig(inputs=6, columns=3, hidden=4, layers=3, classes=3)
    spec = ModelSpec(name="tiny", family="mlp", config={}, precision="fp64")
    assert_gradients_are_slopes(mlp.build(spec, config, 3), seed=7, entries=2)


def test_targets_below_zero_do_not_count() -> None:
    forward = classifier(layers.layer_normed)
    values = random_values(forward, 0) | {"body.targets": np.full((B, T), -1)}
    tensors = run(training_graph(forward, TrainingSpec()), values)
    np.testing.assert_array_equal(tensors["global.step_totals"], [0, 0, 0])


def test_the_gradient_of_an_activation_and_of_a_weight_are_two_ops() -> None:
    training = training_graph(classifier(layers.layer_normed), TrainingSpec())
    phases = {op.name: op.phase for op in training.ops}
    for name in ("body.ln", "body.out_of.matmul"):
        assert phases[f"{name}.grad_input"] is Phase.BACKWARD_INPUT
        assert phases[f"{name}.grad_weight"] is Phase.BACKWARD_WEIGHT


def test_data_gets_no_gradient() -> None:
    training = training_graph(classifier(layers.layer_normed), TrainingSpec())
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
    layers.layer_normed(builder, x)
    labels = "b t k, b t -> b t k"
    return builder.apply("add", "sums", (x, "body.ln.mean"), labels)


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
        (_lone_label, "op `body.lone`, tensor `body.into`: label `s` is summed over alone"),
        (_no_rule, "op `body.act`: kind `gelu_grad` cannot be differentiated"),
    ],
)
def test_what_cannot_be_differentiated_is_refused_with_its_op(body: Body, complaint: str) -> None:
    with pytest.raises(ModelError) as refused:
        training_graph(classifier(body), TrainingSpec())
    assert complaint in str(refused.value)
