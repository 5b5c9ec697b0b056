"""Times and bytes that a search counts with, beside those simulated and laid out."""

import pytest

import millrace
from millrace.planner.search.search_log import PlanComparison, SearchLog
from tests.plan_requests import searched

# Blocks that are timed apart may differ from the plan's own ops by this fraction of a step.
TIME = 0.03
# This is a fraction of a stage's bytes: chunks of unlike sizes keep most at different moments.
MEMORY = 0.12


def compared(**asked: object) -> list[PlanComparison]:
    record = SearchLog()
    cluster = millrace.cluster("a100-sxm-80gb:8x1", framework="any")
    limit = {"memory_limit_bytes": asked.pop("limit", None)}
    question = {"seq_len": 2048, "precision": "bf16"}
    searched("gpt3-1.3b", cluster, 64, record=record, **question, **limit, **asked)
    return record.compared


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved-1f1b", "zb-h1", "zb-v"])
def test_what_is_thought_of_a_pipeline_is_what_is_simulated(schedule: str):
    plans = compared(pp=4, schedule=schedule)
    assert plans
    for plan in plans:
        assert not plan.refused
        assert plan.simulated_s is not None
        assert plan.cost_s == pytest.approx(plan.simulated_s, rel=TIME)
        assert plan.cost_bytes == pytest.approx(plan.laid_out_bytes, rel=MEMORY)


@pytest.mark.parametrize("pins", [{"pp": 1, "cp": 1}, {"pp": 4}], ids=str)
def test_plans_that_memory_is_short_for_fit_once_compiled(pins: dict[str, object]):
    plans = compared(**pins, limit=12 * 2**30)
    assert plans
    for plan in plans:
        assert not plan.refused
        assert plan.simulated_s is not None
        assert plan.cost_s == pytest.approx(plan.simulated_s, rel=TIME)
