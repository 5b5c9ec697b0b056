"""Cost and energy per token: fewer devices where that is cheaper, and what is not known."""

import msgspec
import pytest

from millrace.planner.cluster import Cluster
from millrace.planner.clusters import parse_cluster
from millrace.planner.errors import ClusterError, InfeasibleError, PlanError
from millrace.planner.plan import Plan
from millrace.planner.search import Pins, SearchRequest
from millrace.planner.search.search_log import SearchLog
from millrace.planner.search.subclusters import search_for, subclusters
from millrace.planner.token_cost import (
    IDLE_SHARE,
    check_known,
    cost_usd_per_mtoken,
    energy_j_per_token,
    power_watts,
    price_usd_per_s,
)
from tests.plan_requests import request_of
from tests.small_models import gpt_of

MODEL = gpt_of(2, 64, 4, vocab=64, positions=32)
A100 = parse_cluster("a100-sxm-80gb:4x1")


def a100_request(cluster: Cluster = A100, **fields: object) -> SearchRequest:
    return request_of(MODEL, cluster, 4, **fields)


def spent(plan: Plan) -> float:
    assert plan.evidence is not None
    cost_usd = cost_usd_per_mtoken(plan, plan.evidence.objective_s)
    assert cost_usd is not None
    return cost_usd


@pytest.mark.parametrize("optimize_for", ["cost", "energy"])
def test_a_tiny_model_is_cheapest_on_fewer_devices_than_there_are(optimize_for: str) -> None:
    record = SearchLog()
    plan = search_for(a100_request(), optimize_for, record=record)
    assert plan.ranks == plan.cluster.devices < A100.devices
    assert plan.evidence is not None
    assert record.answer is not None
    assert record.counts["candidates"] == plan.evidence.candidates


def test_the_cheapest_subcluster_is_no_dearer_than_any_other() -> None:
    best = search_for(a100_request(), "cost")
    for cluster in subclusters(A100):
        assert spent(best) <= spent(search_for(a100_request(cluster), "throughput")) * (1 + 1e-9)


def test_throughput_uses_every_device() -> None:
    assert search_for(a100_request(), "throughput").ranks == A100.devices


def test_pins_hold_on_every_subcluster_and_what_fits_none_is_refused() -> None:
    assert search_for(a100_request(pins=Pins(dp=2, tp=1, pp=1, cp=1)), "cost").ranks == 2
    with pytest.raises(InfeasibleError, match="There are plans"):
        search_for(a100_request(pins=Pins(dp=3)), "cost")


def test_subclusters_are_divisors_of_a_node_and_then_of_the_nodes() -> None:
    cluster = parse_cluster("a100-sxm-80gb:4x6")
    assert [part.devices for part in subclusters(cluster)] == [1, 2, 4, 8, 12, 24]
    assert list(subclusters(cluster))[-1] == cluster


def test_dollars_and_joules_follow_price_power_and_how_busy_devices_are() -> None:
    device = msgspec.structs.replace(A100.device, price_usd_per_hour=3.6, power_watts=400.0)
    cluster = msgspec.structs.replace(A100, device=device)
    assert price_usd_per_s(cluster) == pytest.approx(4 * 0.001)
    assert power_watts(cluster, 1.0) == pytest.approx(1600)
    assert power_watts(cluster, 0.0) == pytest.approx(1600 * IDLE_SHARE)
    plan = search_for(a100_request(cluster), "throughput")
    assert cost_usd_per_mtoken(plan, 2.0) == pytest.approx(0.008 / 128 * 1e6)
    assert energy_j_per_token(plan, 2.0, 1.0) == pytest.approx(3200 / 128)


@pytest.mark.parametrize(
    ("optimize_for", "field"), [("cost", "price_usd_per_hour"), ("energy", "power_watts")]
)
def test_a_device_without_a_price_or_power_says_where_to_write_it(
    optimize_for: str, field: str
) -> None:
    device = msgspec.structs.replace(A100.device, price_usd_per_hour=None, power_watts=None)
    cluster = msgspec.structs.replace(A100, device=device)
    with pytest.raises(ClusterError, match=f"has no {field}; write it in the \\[device\\] table"):
        check_known(cluster, optimize_for)
    assert price_usd_per_s(cluster) is None
    assert power_watts(cluster, 1.0) is None


def test_an_unknown_objective_lists_the_known_ones() -> None:
    with pytest.raises(PlanError, match="throughput, cost, energy"):
        search_for(a100_request(), "speed")
