"""Figures of a plan: what its step time means, and by what it is counted."""

import pytest
from msgspec.structs import replace

from millrace.figures import plan_summary, speed
from millrace.models.zoo.catalogue import FAMILIES, model_spec, unit_of
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
    found = plan_summary(data_parallel_pipeline())
    assert (found["dp"], found["global_batch"], found["microbatches"]) == (2, 16, 4)
    assert found["micro_batch"] == 2
    assert found["unit"] == "token"
