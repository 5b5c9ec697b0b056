"""Settings of a model that frameworks and pins decide: places of its experts, narrow parts."""

import pytest
from msgspec.structs import replace

from millrace.drawing import question_text
from millrace.figures import plan_summary
from millrace.models.zoo.catalogue import build, model_spec
from millrace.planner.clusters import framework, parse_cluster
from millrace.planner.errors import InfeasibleError, PlanError
from millrace.planner.frameworks.capabilities import EVERYTHING
from millrace.planner.frameworks.framework_tables import capabilities
from millrace.planner.frameworks.model_settings import (
    DROPLESS,
    capacity_of,
    with_capacity,
    with_narrow_parts,
)
from millrace.planner.search import Pins
from tests.plan_requests import plan_of
from tests.small_models import gpt_of

MIXTRAL = model_spec("mixtral-demo", precision="bf16")
RUNS = capabilities("megatron-core")


def places(capacity: str | None, runs: object) -> int:
    model = with_capacity(MIXTRAL, capacity, runs)  # type: ignore[arg-type]
    return build(model, 1).tensor("h.0.experts.dispatch").shape[2]


def test_a_dropless_framework_computes_even_shares() -> None:
    share = MIXTRAL.seq_len * 2 // 4
    assert places(None, RUNS) == places(DROPLESS, RUNS) == share
    assert places("1.25", RUNS) == places(None, EVERYTHING) == share * 5 // 4
    assert places(DROPLESS, EVERYTHING) == MIXTRAL.seq_len  # none is dropped in no other way


def test_a_capacity_is_read_back_as_it_is_pinned() -> None:
    for runs in (RUNS, EVERYTHING):
        for capacity in (DROPLESS, "1.25", "2"):
            assert capacity_of(with_capacity(MIXTRAL, capacity, runs), runs) == capacity
    assert capacity_of(model_spec("llama-demo"), RUNS) is None
    assert capacity_of(model_spec("gpt2-small"), RUNS) is None


def test_the_answer_says_what_is_not_the_models_own() -> None:
    cluster = replace(parse_cluster("h100:2x1"), software=framework("megatron-core"))
    plan = plan_of(MIXTRAL, cluster, runs=RUNS, pp=1)
    assert question_text(plan).endswith("none dropped")
    assert plan_summary(plan)["capacity_factor"] == DROPLESS
    pinned = plan_of(MIXTRAL, cluster, runs=RUNS, pp=1, capacity_factor="1.5")
    assert question_text(pinned).endswith("with places for 1.5 times an even share")
    alone = plan_of(MIXTRAL, parse_cluster("h100:2x1"), pp=1)
    assert question_text(alone).endswith("by itself")


def test_a_capacity_without_sense_or_without_experts_is_refused() -> None:
    for text in ("0", "-1", "nan", "many"):
        with pytest.raises(PlanError, match="expected a number above 0, at most 1000, or dropless"):
            Pins(capacity_factor=text).check()
    gpt = gpt_of(2, 32, 4, vocab=64, positions=16)
    assert with_capacity(gpt, None, RUNS) is gpt
    with pytest.raises(InfeasibleError, match="--capacity-factor 2: `tiny` is no decoder with"):
        with_capacity(gpt, "2", RUNS)


def test_parts_in_8_bits_are_those_that_a_decoder_has() -> None:
    narrow = model_spec("llama-demo", precision="mxfp8")
    assert with_narrow_parts(narrow, ()) is narrow
    parts = with_narrow_parts(narrow, ("head", "attention")).config["narrow_parts"]
    assert parts == "attention head"
    with pytest.raises(InfeasibleError, match="narrow_parts: `tail` is none of attention and head"):
        with_narrow_parts(narrow, ("head", "tail"))
    with pytest.raises(InfeasibleError, match="`mixtral-demo` in bf16"):
        with_narrow_parts(MIXTRAL, ("head",))
