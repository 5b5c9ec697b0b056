"""The account of a step: its rows add up to the figures, however coarse what fires is."""

from functools import cache
from typing import Any

import pytest
from msgspec.structs import replace

from millrace.planner.cluster import Software
from millrace.planner.compile import compile_plan
from millrace.planner.plan import Plan
from millrace.simulator import predict
from millrace.simulator.account import Account, account_of
from millrace.simulator.account.memory import course_of_firings, peak_bytes, window_of
from millrace.simulator.simulate import Simulated
from millrace.simulator.stage_fidelity import StageGraph, stage_graph
from tests.millrace.plans import data_parallel_pipeline
from tests.simulator.graphs import GPU, SimulatedWriter
from tests.simulator.test_stages import planned

NAMES = ("ZeRO 3 on stages", "experts", "zb-h1", "recompute", "interleaved", "pairs")
FIDELITIES = ("op", "block", "stage")


@cache
def detailed_stages(name: str) -> StageGraph:
    return stage_graph(planned(name), detailed=True)


@cache
def calm(name: str, fidelity: str) -> tuple[Simulated, Account]:
    """Simulated step of a plan with nothing that varies, and its account."""
    stages = None if fidelity == "op" else detailed_stages(name)
    return predicted_account(planned(name), fidelity, stages=stages)


def predicted_account(plan: Plan, fidelity: str, **options: Any) -> tuple[Simulated, Account]:
    simulated = predict(plan, fidelity=fidelity, detailed=True, **options)
    return simulated, account_of(plan, simulated)


def check_sums(simulated: Simulated, account: Account) -> None:
    step_ns, stages = simulated.step_time_ns, account.stages
    assert account.step_time_ns == step_ns
    for row in stages:
        assert row.busy_ns + row.exposed_ns + row.bubble_ns == pytest.approx(step_ns)
        assert sum(entry.busy_ns for entry in row.compute) == pytest.approx(row.busy_ns)
        shown = sum(entry.exposed_ns for entry in row.communication)
        assert shown == pytest.approx(row.exposed_ns)
        assert -1 <= row.host_ns <= row.bubble_ns + 1
        assert all(0 <= entry.exposed_ns <= entry.duration_ns for entry in row.communication)
    exposed = sum(row.exposed_ns for row in account.communication)
    assert exposed == pytest.approx(simulated.exposed_communication_ns, abs=2)
    bubble = sum(row.bubble_ns for row in stages) / len(stages)
    assert bubble == pytest.approx(simulated.bubble_fraction * step_ns, abs=2)
    busy = sum(row.busy_ns for row in account.compute)
    assert busy + exposed + bubble == pytest.approx(step_ns)
    shares = [row.busy_ns / step_ns for row in stages]
    assert simulated.busy_by_stage == pytest.approx(shares, abs=1e-6)
    assert simulated.memory_bytes_max == max(sum(row.memory_by_kind.values()) for row in stages)


@pytest.mark.parametrize("fidelity", FIDELITIES)
@pytest.mark.parametrize("name", NAMES)
def test_rows_add_up_to_the_figures(name: str, fidelity: str) -> None:
    check_sums(*calm(name, fidelity))


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_rows_add_up_with_stragglers_and_jitter(fidelity: str) -> None:
    plan = planned("1f1b on two stages")
    check_sums(*predicted_account(plan, fidelity, jitter=0.1))
    simulated = predict(plan, fidelity=fidelity, detailed=True, stragglers={1: 1.5})
    check_sums(simulated, account_of(plan, simulated))


def test_rows_add_up_where_ranks_share_cores() -> None:
    check_sums(*predicted_account(data_parallel_pipeline(), "op"))


@pytest.mark.parametrize("name", NAMES)
def test_parts_of_chunks_are_made_of_what_fires_op_by_op(name: str) -> None:
    (_, fine), (_, coarse) = (calm(name, fidelity) for fidelity in ("op", "stage"))
    ops = {(row.kind, row.phase): row.busy_ns for row in fine.compute}
    parts = {(row.kind, row.phase): row.busy_ns for row in coarse.compute}
    assert parts.keys() == ops.keys()
    # A stage of several chunks begins each of them.
    assert parts == pytest.approx(ops, rel=0.01, abs=0.0005 * fine.step_time_ns)
    moved = {(row.kind, row.axes): row for row in fine.communication}
    for row in coarse.communication:
        other = moved[row.kind, row.axes]
        assert row.duration_ns == pytest.approx(other.duration_ns, rel=0.02)
        assert row.message_bytes == pytest.approx(other.message_bytes, rel=0.01)
        assert row.exposed_ns == pytest.approx(other.exposed_ns, abs=0.01 * fine.step_time_ns)


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_a_slow_host_is_what_is_waited_for(fidelity: str) -> None:
    plan = planned("one device")
    swift, slow = (
        replace(plan, cluster=replace(plan.cluster, software=Software(host_ns=ns)))
        for ns in (0, 200_000)
    )
    assert predicted_account(swift, fidelity)[1].stages[0].host_ns == 0
    simulated, account = predicted_account(slow, fidelity)
    check_sums(simulated, account)
    (stage,) = account.stages
    assert stage.host_ns > 0.5 * account.step_time_ns
    assert stage.host_ns > 0.95 * stage.bubble_ns


@pytest.mark.parametrize("name", NAMES)
def test_memory_stays_within_the_arena_and_nearly_fills_it(name: str) -> None:
    plan = planned(name)
    simulated, account = calm(name, "op")
    programs = compile_plan(plan).programs
    for program, course, row in zip(programs, account.memory, account.stages, strict=True):
        beside = sum(row.memory_by_kind.values()) - program.memory_bytes
        assert peak_bytes(course) - beside <= program.memory_bytes
        assert peak_bytes(course) - beside > 0.7 * program.memory_bytes
        step = window_of(course, simulated.window_ns[0], simulated.window_ns[1])
        assert step.times_ns[0] == 0
        assert step.times_ns[-1] < simulated.step_time_ns
        assert course.limit_bytes == plan.cluster.device.memory_bytes


@pytest.mark.parametrize("name", NAMES)
def test_memory_of_whole_parts_peaks_at_the_plans(name: str) -> None:
    simulated, account = calm(name, "stage")
    for course, row in zip(account.memory, account.stages, strict=True):
        assert peak_bytes(course) == sum(row.memory_by_kind.values())
        assert row.memory_by_kind == simulated.memory_by_kind[row.stage]


def test_a_version_is_there_from_the_start_of_its_maker_to_the_end_of_its_last_reader() -> None:
    writer = SimulatedWriter()
    writer.actor("make", "compute", [], [("x", 1)], firings=2)
    writer.actor("read", "compute", [("x", 1)], [], firings=2)
    writer.actor("read late", "copies", [("x", 1)], [], firings=2)
    starts, ends = ((10, 40), (20, 50), (22, 62)), ((20, 50), (30, 60), (35, 70))
    course = course_of_firings(writer.program(), 0, GPU, (starts, ends), {"context": 100})
    assert course.times_ns == (0, 10, 35, 40, 70)
    assert course.bytes_by_kind == {"activation": (0, 16, 0, 16, 0), "context": (100,) * 5}
