"""Figures of a plan: what its step time means, and by what it is counted."""

import pytest
from msgspec.structs import replace

from millrace.figures import idle_devices, plan_summary, shortage, speed
from millrace.models.zoo.catalogue import FAMILIES, beyond_positions, model_spec, unit_of
from millrace.planner.plan import Prediction
from tests.millrace.plans import data_parallel_pipeline


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        *((name, "token") for name in ("gpt2-small", "llama3-8b", "bert-base", "t5-base")),
        *((name, "image") for name in ("resnet-50", "vit-b", "arcface-r100")),
        *((name, "sample") for name in ("wide-deep", "mlp")),
    ],
)
def test_a_model_is_counted_by_what_it_learns_from(name: str, unit: str) -> None:
    assert unit_of(model_spec(name)) == unit


def test_only_models_of_sequences_count_tokens() -> None:
    for family in FAMILIES.values():
        lengths = {model_spec(name).seq_len > 1 for name in family.models}
        assert lengths == {family.unit == "token"}


def test_an_imported_model_counts_tokens_where_its_samples_are_sequences() -> None:
    spec = replace(model_spec("gpt2-small"), family="graph", config={})
    assert unit_of(spec) == "token"
    assert unit_of(replace(spec, seq_len=1)) == "sample"


def test_a_share_of_the_peak_above_one_is_not_stated() -> None:
    plan = data_parallel_pipeline()
    at_peak_s = speed(plan, 1.0).mfu
    assert at_peak_s is not None
    within = speed(plan, at_peak_s * 1.01)
    assert within.mfu == pytest.approx(1 / 1.01)
    beyond = speed(plan, at_peak_s * 0.99)
    assert beyond.mfu is None
    assert beyond.tflops_per_gpu > within.tflops_per_gpu


def test_the_micro_batch_is_that_of_a_rank() -> None:
    summary = plan_summary(data_parallel_pipeline())
    assert (summary["dp"], summary["global_batch"], summary["microbatches"]) == (2, 16, 4)
    assert summary["micro_batch"] == 2
    assert summary["unit"] == "token"


def test_a_plan_that_needs_more_than_a_device_has_says_where_and_by_how_much() -> None:
    plan = data_parallel_pipeline()
    stage_memory = [{"parameter": 2**30}, {"parameter": 2**30, "activation": 2**30 + 1}]
    assert shortage(plan, stage_memory) == (
        "the plan does not fit: stage 1 (ranks 2 to 3) needs 2.0 GiB of a device of "
        "which it may use 2.0 GiB: 1 bytes too few"
    )
    assert shortage(plan, [stage_memory[0], stage_memory[0]]) == ""
    roomy = replace(plan, memory_limit_bytes=2**31 + 1)
    assert shortage(roomy, stage_memory) == ""


def test_devices_that_a_plan_leaves_out_are_counted() -> None:
    plan = data_parallel_pipeline()
    assert idle_devices(plan) == ""
    wider = replace(plan, cluster=replace(plan.cluster, devices_per_node=6))
    assert idle_devices(wider) == "the plan uses 4 of the 6 devices of its cluster"


def test_sequences_longer_than_a_model_was_made_for_are_told_and_not_refused() -> None:
    assert beyond_positions(model_spec("llama3-8b")) == ""
    assert beyond_positions(model_spec("t5-base", seq_len=4096)) == ""
    warning = beyond_positions(model_spec("llama3-8b", seq_len=1_000_000))
    assert "at most 8,192 tokens, 1,000,000 are planned" in warning


def test_a_plan_holds_what_was_predicted_of_it() -> None:
    prediction = Prediction(step_time_s=2.0, mfu=None, memory_by_kind=[{"parameter": 1}])
    figures = {"step_time_s": 2.0, "mfu": None, "memory_by_kind": [{"parameter": 1}]}
    assert prediction.figures == figures
    plan = data_parallel_pipeline()
    assert plan.prediction is None
    assert replace(plan, figures=figures | {"other": 1}).prediction == prediction
