"""Multi-token prediction: modules that predict the tokens after the next, from graph to run."""

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from millrace.executor.data import open_dataset
from millrace.executor.kernels.context import SampleSource
from millrace.executor.reference import run_reference
from millrace.models.errors import ModelError
from millrace.models.spec import ModelSpec, TrainingSpec
from millrace.models.zoo.catalogue import build, build_training, model_spec
from millrace.planner.clusters import framework, parse_cluster
from millrace.planner.compile import compile_plan
from millrace.planner.errors import InfeasibleError, PlanError
from millrace.planner.frameworks.capabilities import layer_counts
from millrace.planner.frameworks.framework_tables import capabilities
from millrace.planner.frameworks.model_settings import with_mtp_layers
from tests.parallel_runs import assert_trains_as_one_device
from tests.plan_requests import plan_of
from tests.small_models import gpt_of, small

TRAINING = TrainingSpec(learning_rate=1e-2, clip_norm=0.5)


def modules(name: str, count: int, precision: str = "fp32") -> ModelSpec:
    return with_mtp_layers(small(name, precision), count)


# Parameters that the released weights of GLM-4.5 have in this module (tests of the zoo's decoders),
# without the bias that steers its router, the table and the head, which are the model's.
@pytest.mark.parametrize(
    ("name", "count"), [("glm-4.5", 5_539_962_272 - 160), ("glm-4.5-air", 3_616_573_568 - 128)]
)
def test_a_module_has_the_parameters_of_the_released_weights(name: str, count: int) -> None:
    spec = model_spec(name, seq_len=16)
    added = build(with_mtp_layers(spec, 1), 1).parameter_count - build(spec, 1).parameter_count
    config = spec.config
    assert added == count - 2 * int(config["vocab"]) * int(config["hidden"])


# Parameters of the released weights with their module (huggingface.co, the safetensors' headers,
# read 2026-11), and the biases that steer routers, which are not trained by the loss.
@pytest.mark.parametrize(
    ("name", "count", "biases"),
    [("qwen3-next-80b-a3b", 81_324_862_720, 0), ("glm-5", 753_864_139_008, 76 * 256)],
)
def test_a_model_with_a_module_has_the_parameters_of_the_released_weights(
    name: str, count: int, biases: int
) -> None:
    spec = with_mtp_layers(model_spec(name, seq_len=16), 1)
    assert build(spec, 1).parameter_count + biases == count


def test_modules_are_blocks_before_the_head_and_share_table_and_head() -> None:
    graph = build(modules("deepseek", 2), 2)
    assert graph.blocks[-3:] == ("mtp.0", "mtp.1", "head")
    variables = [op.name for op in graph.ops if op.kind == "variable"]
    assert [name for name in variables if "tokens" in name or "logits" in name] == [
        "embedding.tokens.weight",
        "head.logits.weight",
    ]
    (total,) = (op for op in graph.ops if op.name == "head.loss_of_all")
    assert total.inputs[:3] == (
        "head.loss_sum",
        "head.mtp.0.loss.scaled",
        "head.mtp.1.loss.scaled",
    )
    weights = [op.attributes["factor"] for op in graph.ops if op.name in total.inputs[1:3]]
    assert weights == [0.15, 0.15]  # the mean of both, weighed with 0.3


def test_a_tied_head_with_a_cap_is_shared_too() -> None:
    spec = modules("llama", 1)
    tied = replace(spec, config={**spec.config, "tied": True, "head_bias": True, "logit_cap": 5.0})
    build_training(tied, TRAINING, 2)


def test_ids_of_modules_lie_further_on_in_the_same_text(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(bytes(range(200)))
    data = open_dataset(str(tmp_path / "text"), modules("llama", 2), seed=3)

    def read(name: str) -> np.ndarray:
        source = SampleSource(name=name, values=256, shape=(16,), region=(slice(0, 16),))
        return data.read(source, np.arange(3))

    for places in (1, 2):
        np.testing.assert_array_equal(read(f"tokens+{places}"), read("tokens") + places)
        np.testing.assert_array_equal(read(f"targets+{places}"), read("tokens") + places + 1)


@pytest.mark.parametrize(
    ("name", "pins"),
    [
        ("mixtral", {"pp": 2, "dp": 1}),
        ("mixtral", {"dp": 2, "ep": 2}),
        ("mixtral", {"tp": 2, "dp": 1}),
        ("nemotron-h", {"pp": 2, "dp": 1}),
        ("qwen3-next", {"tp": 2, "dp": 1}),
        ("deepseek-sparse", {"dp": 2}),
    ],
    ids=str,
)
def test_modules_train_as_on_a_single_device(name: str, pins: dict[str, int]) -> None:
    spec = modules(name, 1, "fp64")
    plan = plan_of(spec, 2, 4, training=TRAINING, micro_batch=2 // pins["dp"], **pins)
    graph = build_training(plan.model, plan.training, plan.batch)
    data = open_dataset(None, spec, 0)
    reference = run_reference(
        graph, microbatches=plan.microbatches, steps=2, dataset=data, keep_parameters=(2,)
    )
    assert_trains_as_one_device(plan, graph, compile_plan(plan), reference, 2)


def test_modules_lie_beside_the_loss_whatever_its_layers() -> None:
    cluster = replace(parse_cluster("h100:4x1"), software=framework("megatron-core"))
    runs = capabilities("megatron-core")
    spec = model_spec("mixtral-demo", precision="bf16")
    plan = plan_of(spec, cluster, 8, runs=runs, pp=4, mtp_layers=1)
    assert [choice.block for choice in plan.chunks[-1].blocks][-2:] == ["mtp.0", "head"]
    assert plan.model.config["mtp_layers"] == plan.pins["mtp_layers"] == 1
    assert (4, *(4,) * 14, 1) in layer_counts(61, 16, "ends", further=1)
    assert layer_counts(32, 4, "even", further=1) == [(8, 8, 8, 8)]


def test_numbers_of_modules_out_of_range_are_refused() -> None:
    with pytest.raises(PlanError, match="--mtp-layers is -1: expected 0 to 16"):
        modules("llama", -1)
    gpt = gpt_of(2, 32, 4, vocab=64, positions=16)
    with pytest.raises(InfeasibleError, match="--mtp-layers 1: `tiny` is no decoder"):
        with_mtp_layers(gpt, 1)
    assert with_mtp_layers(gpt, 0) is gpt
    with pytest.raises(ModelError, match="`mtp_layers` is -1, below 0"):
        build(replace(small("llama"), config={**small("llama").config, "mtp_layers": -1}), 1)
