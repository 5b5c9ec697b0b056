"""Rehearsals: the ops of a plan timed before it is run, and the search that asks for them."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from millrace.executor.errors import ExecutorError
from millrace.executor.launch import rehearse
from millrace.executor.measure import keep_profile, profile_in_keep
from millrace.figures import block_times, prediction_of
from millrace.planner.actors.trace import Trace
from millrace.planner.cluster import Cluster
from millrace.planner.clusters import device, local_cluster
from millrace.planner.compile import compile_plan
from millrace.planner.plan import Plan
from millrace.planner.search import Pure, SearchRequest, search
from millrace.planner.search.search_log import SearchLog
from millrace.profiling import rehearsals
from millrace.profiling.rehearsals import search_with_rehearsals
from millrace.simulator import predict
from tests.plan_requests import NEAR, plan_of, request_of
from tests.small_models import small

SLOWER = 3
PROFILE = msgspec.structs.replace(
    device("cpu-core"), kernels={"matmul": ((1000, 10_000), (10**9, 10**8))}, launch_ns=0
)


def find(request: SearchRequest, record: SearchLog) -> Plan:
    return search(request, Pure(prediction_of, block_times), record=record)


@pytest.fixture
def on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Cluster of two cores whose profile is kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    keep_profile(2, PROFILE)
    return local_cluster(2, cores=2, memory_bytes=2**33, device=PROFILE)


@pytest.fixture
def rehearsed(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """Plans that are rehearsed, on a machine whose ops take three times as long as predicted."""
    plans: list[Plan] = []

    def trace_of(plan: Plan, *, steps: int) -> Trace:
        plans.append(plan)
        run = predict(plan, steps=steps, fidelity="op").trace
        assert run is not None
        return slowed(run)

    monkeypatch.setattr(rehearsals, "rehearse", trace_of)
    return plans


def slowed(trace: Trace) -> Trace:
    spans = tuple(
        msgspec.structs.replace(span, cpu_ns=SLOWER * (span.end_ns - span.start_ns))
        for span in trace.spans
    )
    return msgspec.structs.replace(trace, spans=spans)


@pytest.mark.parametrize(
    ("name", "pins"),
    [
        ("gpt", {"dp": 2, "recompute": "full"}),
        ("gpt", {"tp": 2}),
        ("gpt", {"pp": 2, "micro_batch": 2}),
        ("mixtral", {"dp": 2, "ep": 2}),
    ],
)
def test_ranks_of_a_rehearsal_do_all_but_meet(name: str, pins: dict[str, Any]) -> None:
    plan = plan_of(small(name), 2, 8, **pins)
    graph = compile_plan(plan)
    trace = rehearse(plan, steps=2)
    firings = sum(
        2 * actor.firings * len(program.ranks)
        for program in graph.programs
        for actor in program.actors
    )
    assert len(trace.spans) == firings


def test_a_plan_is_found_again_with_what_its_ops_took(on: Cluster, rehearsed: list[Plan]) -> None:
    request = request_of(small("gpt"), on, 8, dp=2, max_gap=NEAR)
    first, record = find(request, SearchLog()), SearchLog()
    plan = search_with_rehearsals(request, find, None, record)
    assert len(rehearsed) == 1
    assert plan.prediction is not None
    assert first.prediction is not None
    assert 2.0 < plan.prediction.step_time_s / first.prediction.step_time_s < 3.5
    assert record.answer is not None
    assert profile_in_keep(2) == plan.cluster.device != PROFILE
    # Another question of the model on the same profile times nothing anew.
    request = request_of(small("gpt"), plan.cluster, 8, dp=2, max_gap=NEAR)
    assert search_with_rehearsals(request, find).prediction == plan.prediction
    assert len(rehearsed) == 1


def test_another_split_brings_ops_that_were_not_timed(on: Cluster, rehearsed: list[Plan]) -> None:
    plan = search_with_rehearsals(request_of(small("gpt"), on, 8, dp=2, max_gap=NEAR), find)
    search_with_rehearsals(request_of(small("gpt"), plan.cluster, 8, tp=2, max_gap=NEAR), find)
    assert len(rehearsed) > 1


def test_other_profiles_than_the_kept_one_stay_as_they_are(
    on: Cluster, rehearsed: list[Plan]
) -> None:
    other = msgspec.structs.replace(PROFILE, launch_ns=7)
    for cluster in (
        local_cluster(2, cores=2, memory_bytes=2**33, device=other),
        local_cluster(4, cores=2, memory_bytes=2**33, device=PROFILE),
    ):
        request = request_of(small("gpt"), cluster, 8, max_gap=NEAR)
        assert search_with_rehearsals(request, find).cluster == cluster
    assert rehearsed == []


def test_a_plan_whose_steps_take_long_is_not_rehearsed(
    on: Cluster, rehearsed: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rehearsals, "LONGEST_S", 0.0)
    assert search_with_rehearsals(request_of(small("gpt"), on, 8, max_gap=NEAR), find).cluster == on
    assert rehearsed == []


def test_a_rehearsal_that_fails_leaves_the_plan(
    on: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(plan: Plan, *, steps: int) -> Trace:
        raise ExecutorError("killed")

    monkeypatch.setattr(rehearsals, "rehearse", fails)
    assert search_with_rehearsals(request_of(small("gpt"), on, 8, max_gap=NEAR), find).cluster == on


def test_what_is_waited_for_is_said(on: Cluster, rehearsed: list[Plan]) -> None:
    lines: list[str] = []
    search_with_rehearsals(request_of(small("gpt"), on, 8, max_gap=NEAR), find, lines.append)
    assert any("timing the plan's ops on this machine, once" in line for line in lines)
