"""The reference trains, and its gradients are those of finite differences."""

import msgspec
import numpy as np
import pytest

from millrace.executor.data import open_dataset
from millrace.executor.errors import ExecutorError
from millrace.executor.reference import Reference, run_reference
from millrace.models.graph import Graph
from millrace.models.spec import ModelSpec, TrainingSpec
from millrace.models.zoo.catalogue import build_training

GPT = ModelSpec(
    name="tiny",
    family="gpt",
    config={
        "layers": 2, "hidden": 12, "heads": 3, "ffn_hidden": 20, "vocab": 256, "positions": 10
    },
    seq_len=7,
    precision="fp64",
)  # fmt: skip
MLP = ModelSpec(
    name="tiny",
    family="mlp",
    config={"inputs": 12, "columns": 4, "hidden": 8, "layers": 2, "classes": 3},
    precision="fp64",
)


def reference(spec: ModelSpec, batch: int, microbatches: int, **training: object) -> Reference:
    graph = build_training(spec, TrainingSpec(**training), batch)  # type: ignore[arg-type]
    return Reference(graph, microbatches, open_dataset(None, spec, 0), 0)


def loss_sum(trainer: Reference) -> float:
    """The step's loss sum with the variables as they are."""
    trainer.accumulate_gradients()
    loss = next(op for op in trainer.graph.ops if op.kind == "step_totals").inputs[0]
    return float(trainer.values[loss])


@pytest.mark.parametrize("spec", [GPT, MLP], ids=lambda spec: spec.family)
def test_gradients_are_those_of_finite_differences(spec: ModelSpec):
    trainer = reference(spec, batch=2, microbatches=2)
    rng = np.random.default_rng(0)
    for name in trainer.variables:
        # Some gradients vanish at the zeros and ones of the first step.
        trainer.values[name] += 0.3 * rng.standard_normal(trainer.values[name].shape)
    trainer.accumulate_gradients()
    before = trainer.parameters()
    gradients = trainer.gradients()
    for name in trainer.variables:
        direction = rng.standard_normal(before[name].shape)
        slopes = []
        for sign in (1, -1):
            trainer.values[name][...] = before[name] + sign * 1e-5 * direction
            slopes.append(loss_sum(trainer))
        trainer.values[name][...] = before[name]
        derivative = float((gradients[name] * direction).sum())
        expected = (slopes[0] - slopes[1]) / 2e-5
        assert derivative == pytest.approx(expected, rel=2e-6, abs=1e-7), name


def test_microbatches_of_a_step_add_up_to_the_whole_batch():
    results = [
        run_reference(
            build_training(GPT, TrainingSpec(), 8 // microbatches),
            microbatches=microbatches,
            steps=3,
            dataset=open_dataset(None, GPT, 0),
            keep_parameters=(3,),
        )
        for microbatches in (1, 2, 4)
    ]
    for other in results[1:]:
        np.testing.assert_allclose(other.losses, results[0].losses, rtol=1e-12)
        for name, gradient in results[0].gradients.items():
            np.testing.assert_allclose(other.gradients[name], gradient, rtol=1e-9, atol=1e-12)
        for name, value in results[0].parameters[3].items():
            np.testing.assert_allclose(other.parameters[3][name], value, rtol=1e-9, atol=1e-12)


def test_the_first_loss_of_a_gpt_is_near_the_logarithm_of_its_vocabulary():
    trainer = reference(GPT, batch=8, microbatches=1)
    trainer.step()
    loss, count, _ = trainer.run.totals[0]
    assert count == 8 * 7
    assert loss / count == pytest.approx(np.log(256), rel=0.02)


def one_batch(graph: Graph, spec: ModelSpec, steps: int) -> tuple[float, ...]:
    """Losses of training on the first batch again and again."""

    class FirstBatch:
        data = open_dataset(None, spec, 0)

        def read(self, source, samples):  # type: ignore[no-untyped-def]
            return self.data.read(source, samples % graph.batch)

    return run_reference(graph, microbatches=1, steps=steps, dataset=FirstBatch()).losses


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("spec", [GPT, MLP], ids=lambda spec: spec.family)
def test_training_learns_a_batch_by_heart(spec: ModelSpec, optimizer: str):
    rate = {"adamw": 2e-2, "sgd": 0.5}[optimizer]
    training = TrainingSpec(optimizer=optimizer, learning_rate=rate, momentum=0.9)
    losses = one_batch(build_training(spec, training, 8), spec, 60)
    assert losses[-1] < 0.5 * losses[0]


def test_sixteen_bit_precision_is_refused_with_the_way_out():
    spec = msgspec.structs.replace(MLP, precision="bf16")
    with pytest.raises(ExecutorError, match="no bfloat16: plan with --precision fp32"):
        reference(spec, batch=2, microbatches=1)


def test_a_run_is_the_same_twice():
    results = [
        run_reference(
            build_training(MLP, TrainingSpec(), 4),
            microbatches=2,
            steps=2,
            dataset=open_dataset(None, MLP, 5),
            seed=5,
            keep_parameters=(0, 2),
        )
        for _ in range(2)
    ]
    assert results[0].losses == results[1].losses
    for step in (0, 2):
        for name, value in results[0].parameters[step].items():
            np.testing.assert_array_equal(value, results[1].parameters[step][name])
