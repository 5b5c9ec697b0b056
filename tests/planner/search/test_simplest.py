"""A simpler plan that is about as fast is preferred, and by no more than was allowed."""

from functools import cache

import pytest

from millrace.figures import prediction_of
from millrace.models.zoo.catalogue import model_spec
from millrace.planner.clusters import parse_cluster
from millrace.planner.errors import PlanError
from millrace.planner.frameworks.framework_tables import capabilities
from millrace.planner.plan import Plan
from millrace.planner.search import SearchRequest, search
from millrace.planner.search.choosing.simplest import complexity
from tests.plan_requests import request_of
from tests.small_models import gpt_of

GPT = gpt_of(4, 32, 4, vocab=64, positions=16)
GPT2 = model_spec("gpt2-xl")


@cache
def answered(simpler_within: float) -> Plan:
    """Plan that is simulated, and as simple as may be within a share of the step."""
    return search(asked(simpler_within), prediction_of)


def asked(simpler_within: float) -> SearchRequest:
    return request_of(
        GPT2,
        parse_cluster("a100-sxm-80gb:8x2"),
        64,
        memory_limit_bytes=26 * 2**30,
        runs=capabilities("megatron-core"),
        simpler_within=simpler_within,
    )


def complexity_of(plan: Plan) -> int:
    return complexity(plan, plan.graph)


@pytest.mark.parametrize(
    ("pins", "number"),
    [
        ({"dp": 4, "zero": 1}, 0),
        ({"dp": 4, "zero": 3}, 1),
        ({"dp": 2, "tp": 2, "pp": 1}, 1),
        ({"dp": 1, "tp": 2, "pp": 2, "schedule": "1f1b"}, 2),
        ({"dp": 2, "pp": 2, "interleave": 2, "schedule": "interleaved-1f1b"}, 2),
    ],
)
def test_complexity_counts_what_is_set_up_beside_replicas(
    pins: dict[str, int | str], number: int
) -> None:
    plan = search(request_of(GPT, 4, tp=pins.pop("tp", 1), recompute="none", **pins))
    assert complexity_of(plan) == number


def test_a_simpler_plan_is_the_answer_where_it_is_near_enough() -> None:
    fastest, simpler = (answered(within) for within in (0.0, 0.6))
    assert complexity_of(simpler) < complexity_of(fastest)
    assert fastest.evidence is not None
    assert simpler.evidence is not None
    loss = simpler.figures["step_time_s"] / fastest.figures["step_time_s"] - 1
    assert simpler.evidence.simplicity_loss == pytest.approx(loss)
    assert 0 < loss <= 0.6
    assert fastest.evidence.simplicity_loss == 0
    assert simpler.evidence.bound_s <= fastest.evidence.objective_s
    assert simpler.evidence.gap == pytest.approx(
        simpler.evidence.objective_s / simpler.evidence.bound_s - 1
    )


def test_the_faster_plan_is_listed_with_what_it_saves() -> None:
    plan = answered(0.6)
    assert plan.evidence is not None
    first = plan.evidence.alternatives[0]
    assert first["loss"] < 0
    assert "not as simple" in first["cause"]


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
def test_a_share_beyond_one_cannot_be_understood(share: float) -> None:
    with pytest.raises(PlanError, match="--simpler-within"):
        asked(share)
