"""Experts: what a dispatcher and its overlap make of a framework's software."""

import pytest
from msgspec.structs import replace

from millrace.figures import dispatcher
from millrace.models.zoo.catalogue import model_spec
from millrace.planner.clusters import framework, parse_cluster
from millrace.planner.errors import InfeasibleError
from millrace.planner.frameworks.capabilities import EVERYTHING
from millrace.planner.frameworks.experts import (
    IN_TURNS,
    dispatcher_of,
    overlaps,
    with_experts,
)
from millrace.planner.frameworks.framework_tables import capabilities
from millrace.planner.search import search
from tests.plan_requests import request_of
from tests.small_models import gpt_of

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
