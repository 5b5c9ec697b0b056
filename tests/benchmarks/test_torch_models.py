"""PyTorch's models of the benchmark against ours: loss, every gradient, counts of parameters."""

from typing import Any

import msgspec
import numpy as np
import pytest

from benchmarks.gpu.trained_models import benchmark_model
from millrace.models.spec import ModelSpec
from millrace.models.zoo.catalogue import build
from tests.extras import optional
from tests.models.torch_parity.machinery import assert_same
from tests.small_models import small

torch = optional("torch")

BATCH = 3
MODELS = ("gpt2-small", "gpt2-medium", "gpt2-xl", "llama-1b", "moe-1b", "resnet-50")


def with_config(spec: ModelSpec, **changes: Any) -> ModelSpec:
    return msgspec.structs.replace(spec, config=dict(spec.config) | changes)


SPECS = {
    "gpt": small("gpt"),
    "llama": with_config(small("llama"), vocab=250, rope_base=500000.0),
    "tied llama": with_config(small("llama"), tied=True),
    "mixtral": with_config(small("mixtral"), capacity_factor=0.75),
    "dropless": with_config(small("mixtral"), capacity_factor=0.0, normalize_weights=False),
    "resnet": with_config(small("resnet"), channels=3, image_size=40),
    "basic resnet": with_config(small("resnet"), block="basic", channels=3, image_size=40),
    "bert": with_config(small("bert"), dropout=0.0, next_sentence=False),
}


def drawn(spec: ModelSpec) -> dict[str, Any]:
    """Values of every variable, larger than at the start, so that all matter."""
    draw = np.random.default_rng(5)
    graph = build(spec, BATCH)
    variables = {}
    for op in graph.ops:
        if op.kind == "variable":
            shape = graph.tensor(op.outputs[0]).shape
            values = draw.normal(0, 0.2, shape)
            variables[op.outputs[0]] = (values + (op.attributes["init"] == "ones")).astype(
                np.float32
            )
    return variables


def samples(spec: ModelSpec) -> dict[str, Any]:
    """A batch by source."""
    draw = np.random.default_rng(6)
    if spec.family == "resnet":
        batch, rows, columns, channels = build(spec, BATCH).tensor("stem.images").shape
        shape = (batch, channels, rows, columns)  # as PyTorch has them
        classes = draw.integers(0, spec.config["classes"], BATCH)
        return {"images": draw.normal(size=shape).astype(np.float32), "classes": classes}
    windows = draw.integers(0, spec.config["vocab"], (BATCH, spec.seq_len + 1))
    if spec.family == "bert":
        halves = np.broadcast_to(np.arange(spec.seq_len) % 2, (BATCH, spec.seq_len))
        targets = np.where(draw.random((BATCH, spec.seq_len)) < 0.3, windows[:, 1:], -1)
        return {"masked_tokens": windows[:, :-1], "segments": halves, "masked_targets": targets}
    return {"tokens": windows[:, :-1], "targets": windows[:, 1:]}


@pytest.mark.parametrize(("vocab_multiple", "grouped_experts"), [(1, False), (64, True)])
@pytest.mark.parametrize("name", SPECS)
def test_loss_and_gradients_are_ours(name: str, vocab_multiple: int, grouped_experts: bool) -> None:
    from benchmarks.gpu.torch_models.loading import load, module_of, zoo_variables

    spec = SPECS[name]
    if spec.family in ("resnet", "bert") and vocab_multiple > 1:
        pytest.skip("its vocabulary, if any, is not rounded up")
    values, inputs = drawn(spec), samples(spec)
    module = module_of(spec, vocab_multiple, grouped_experts)
    load(module, values)
    for path, value in zoo_variables(module, values).items():
        np.testing.assert_array_equal(value, values[path])
    *read, second = (torch.from_numpy(np.array(array)) for array in inputs.values())
    first = torch.stack(read) if len(read) > 1 else read[0]
    loss = module(first, second)
    loss.backward()
    count = int((second >= 0).sum())
    gradients = {
        path: gradient * count
        for path, gradient in zoo_variables(module, values, gradients=True).items()
    }
    assert set(gradients) == set(values)
    assert_same(build(spec, BATCH), values, inputs, loss.item() * count, gradients)


@pytest.mark.parametrize("name", MODELS)
def test_there_are_as_many_parameters_as_in_the_zoo(name: str) -> None:
    from benchmarks.gpu.torch_models.loading import module_of

    spec = benchmark_model(name)
    with torch.device("meta"):
        module = module_of(spec)
    count = sum(parameter.numel() for parameter in module.parameters())
    assert count == build(spec, 1).parameter_count


def test_llama_1b_has_the_published_count() -> None:
    # Of meta-llama/Llama-3.2-1B: 1.24B parameters, the head being the embedding (model card, 2024).
    assert build(benchmark_model("llama-1b"), 1).parameter_count == 1_235_814_400
