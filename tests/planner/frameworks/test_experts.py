"""Experts: what a dispatcher and its overlap make of a framework's software."""

import pytest
from msgspec.structs import replace

from millrace.drawing import question_text
from millrace.figures import dispatcher, plan_summary
from millrace.models.model_counts import parallelism_limits
from millrace.models.spec import TrainingSpec
from millrace.models.zoo.catalogue import build_training, model_spec
from millrace.planner.clusters import framework, parse_cluster
from millrace.planner.costs.expert_routing import busiest
from millrace.planner.errors import InfeasibleError, PlanError
from millrace.planner.frameworks.capabilities import EVERYTHING
from millrace.planner.frameworks.experts import (
    BIAS_EXCESS,
    COUNTED_EXPERTS,
    IN_TURNS,
    LOSS_EXCESS,
    dispatcher_of,
    overlaps,
    routing_of,
    with_experts,
    with_routing,
)
from millrace.planner.frameworks.framework_tables import capabilities
from millrace.planner.search import Pins, search
from millrace.planner.search.choosing.dispatching import dispatching
from millrace.simulator import predict_fast
from tests.plan_requests import request_of
from tests.small_models import gpt_of, small

HOPPER, AMPERE = (parse_cluster(f"{name}:8x1").device for name in ("h100", "a100"))
MEGATRON = framework("megatron-core")
RUNS = capabilities("megatron-core")


def test_a_framework_takes_its_first_dispatcher_that_the_device_has() -> None:
    on_hopper = with_experts(MEGATRON, HOPPER, RUNS)
    assert (dispatcher_of(on_hopper), overlaps(on_hopper)) == ("deepep", True)
    assert on_hopper.host_ns == IN_TURNS * MEGATRON.host_ns
    on_ampere = with_experts(MEGATRON, AMPERE, RUNS)
    assert (dispatcher_of(on_ampere), overlaps(on_ampere)) == ("alltoall", True)


def test_choices_are_obeyed_and_undone() -> None:
    plain = with_experts(MEGATRON, HOPPER, RUNS, "alltoall", overlap=False)
    assert plain == MEGATRON
    overlapped = with_experts(MEGATRON, HOPPER, RUNS, "alltoall", overlap=True)
    assert with_experts(overlapped, HOPPER, RUNS, "alltoall", overlap=False) == MEGATRON


def test_captured_launches_take_no_longer_in_turns() -> None:
    captured = with_experts(MEGATRON, HOPPER, RUNS, "alltoall", overlap=True, captured=True)
    assert overlaps(captured)
    assert captured.host_ns == MEGATRON.host_ns


def test_software_that_nothing_is_known_of_stays() -> None:
    assert with_experts(MEGATRON, HOPPER, EVERYTHING) == MEGATRON


def test_a_dispatcher_that_the_device_lacks_is_refused() -> None:
    with pytest.raises(InfeasibleError, match="older than Hopper"):
        with_experts(MEGATRON, AMPERE, RUNS, "deepep")


def test_the_plan_holds_what_was_chosen() -> None:
    cluster = replace(parse_cluster("h100:4x1"), software=MEGATRON)
    plan = search(request_of(model_spec("mixtral-demo"), cluster, runs=RUNS, expert_overlap=False))
    assert plan.cluster.software.merges
    assert not overlaps(plan.cluster.software)
    assert plan.pins == {"expert_overlap": False}


def test_a_model_without_experts_has_no_dispatcher() -> None:
    gpt = gpt_of(2, 32, 4, vocab=64, positions=16)
    with pytest.raises(InfeasibleError, match="--dispatcher: this model has no experts"):
        search(request_of(gpt, 2, dispatcher="alltoall"))


@pytest.mark.parametrize(("model", "excess"), [("mixtral", LOSS_EXCESS), ("deepseek", BIAS_EXCESS)])
def test_experts_that_tokens_choose_vary_as_those_of_the_source_did(
    model: str, excess: float
) -> None:
    graph = build_training(small(model), TrainingSpec(), 2)
    request = request_of(small(model), 2, routing="natural")
    unequal = dispatching(request, graph)[0].cluster.software
    assert unequal.load.experts == parallelism_limits(graph)["experts"]
    fullest = replace(unequal.load, experts=COUNTED_EXPERTS)
    assert busiest(fullest, 1) == pytest.approx(1 + excess)
    assert with_routing(unequal, None, 8, biased=False) == unequal
    balanced = with_routing(unequal, "balanced", 8, biased=False)
    assert [routing_of(each) for each in (balanced, unequal)] == ["balanced", "natural"]


def test_a_plan_for_tokens_that_choose_takes_longer_and_says_so() -> None:
    cluster = replace(parse_cluster("h100:4x1"), software=MEGATRON)
    pins = {"dp": 4, "ep": 4, "tp": 1, "pp": 1, "micro_batch": 1, "expert_overlap": False}
    model = model_spec("mixtral-demo", precision="bf16")
    usual, balanced, natural = (
        search(request_of(model, cluster, runs=RUNS, **pins, **routing))
        for routing in ({}, {"routing": "balanced"}, {"routing": "natural"})
    )
    assert usual.evidence.objective_s == balanced.evidence.objective_s
    assert natural.evidence.objective_s > usual.evidence.objective_s
    summary = plan_summary(natural)
    assert (summary["routing"], plan_summary(usual)["routing"]) == ("natural", "balanced")
    assert "unequally" in question_text(natural)


def test_a_routing_that_there_is_not_and_one_without_experts_are_refused() -> None:
    gpt = gpt_of(2, 32, 4, vocab=64, positions=16)
    with pytest.raises(InfeasibleError, match="--routing: this model has no experts"):
        search(request_of(gpt, 2, routing="natural"))
    with pytest.raises(PlanError, match="--routing fair: choose balanced or natural"):
        Pins(routing="fair").check()


def test_gathering_all_tokens_is_a_choice_of_its_own_that_hides_nothing() -> None:
    gathering = with_experts(MEGATRON, HOPPER, RUNS, "allgather")
    assert (dispatcher_of(gathering), overlaps(gathering)) == ("allgather", False)
    assert dispatcher_of(with_experts(gathering, AMPERE, RUNS)) == "alltoall"
    cluster = replace(parse_cluster("h100:4x1"), software=MEGATRON)
    pins = {"dispatcher": "allgather", "dp": 4, "ep": 4, "tp": 1, "pp": 1}
    model = model_spec("mixtral-demo", precision="bf16")
    assert dispatcher(search(request_of(model, cluster, runs=RUNS, **pins))) == "allgather"
    with pytest.raises(InfeasibleError, match="dispatcher allgather moves beside nothing"):
        request_of(model, cluster, runs=RUNS, expert_overlap=True, **pins)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    ("model", "where", "pins"),
    [
        ("mixtral-8x7b", "gb200-nvl72:4x4", {"dp": 8, "ep": 8, "pp": 2, "interleave": 4}),
        ("qwen3-30b-a3b", "gb200-nvl72:4x16", {"dp": 64, "ep": 64, "pp": 1}),  # waits for exchanges
        ("deepseek-v2-lite", "h100:8x4", {"dp": 32, "ep": 32, "pp": 1}),
    ],
)
def test_the_searchs_tables_hide_of_an_exchange_what_simulation_does(
    model: str, where: str, pins: dict[str, int], overlap: bool
) -> None:
    cluster = replace(parse_cluster(where), software=MEGATRON)
    sent = {"dispatcher": "deepep", "recompute": "selective", "expert_overlap": overlap}
    spec = model_spec(model, seq_len=4096, precision="bf16")
    plan = search(
        request_of(spec, cluster, 512, runs=RUNS, tp=1, zero=1, micro_batch=1, **sent, **pins)
    )
    simulated_s = predict_fast(plan, (), "stage").step_time_ns / 1e9
    assert plan.evidence.objective_s == pytest.approx(simulated_s, rel=0.05)
