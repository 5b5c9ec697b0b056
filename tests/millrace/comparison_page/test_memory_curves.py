"""Memory over a step is the simulator's rule, whichever trace the times are from."""

import msgspec
import pytest

from millrace.comparison_page.memory_curves import POINTS, MemoryCurve, curve_columns, memory_curves
from millrace.planner.actors.trace import Span, Trace
from millrace.planner.compile import compile_plan
from millrace.simulator.account import account_of
from millrace.simulator.account.memory import window_of
from millrace.simulator.prediction import predict
from tests.millrace.plans import data_parallel_pipeline


@pytest.fixture(scope="module")
def simulated():
    plan = data_parallel_pipeline()
    return plan, compile_plan(plan), predict(plan, detailed=True)


def as_measured(trace: Trace, slower: int = 1) -> Trace:
    """The trace as a run would write it, its times stretched."""
    return msgspec.structs.replace(
        trace,
        source="measured",
        step_end_ns=tuple(tuple(slower * end for end in row) for row in trace.step_end_ns),
        spans=tuple(
            Span(span.rank, span.actor, span.firing, slower * span.start_ns, slower * span.end_ns)
            for span in trace.spans
        ),
    )


def test_a_simulations_trace_has_the_curves_of_its_account(simulated):
    plan, graph, result = simulated
    curves = {curve.rank: curve for curve in memory_curves(graph, plan.cluster, result.trace)}
    assert sorted(curves) == [0, 1, 2, 3]
    account = account_of(plan, result)
    begin_ns, end_ns = result.window_ns
    for course in account.memory:
        window = window_of(course, begin_ns, end_ns)
        rows = [
            row for kind, row in window.bytes_by_kind.items() if kind not in ("context", "slack")
        ]
        assert curves[course.rank].times_ns == window.times_ns
        assert curves[course.rank].register_bytes == tuple(map(sum, zip(*rows, strict=True)))


def test_a_run_at_half_the_speed_has_the_same_curve_at_twice_the_times(simulated):
    plan, graph, result = simulated
    three = memory_curves(graph, plan.cluster, result.trace)
    slow = msgspec.structs.replace(as_measured(result.trace, 2), source="simulated")
    for before, after in zip(three, memory_curves(graph, plan.cluster, slow), strict=True):
        assert after.register_bytes == before.register_bytes
        assert after.times_ns == tuple(2 * time for time in before.times_ns)


def test_a_run_that_kept_only_its_last_step_has_curves_of_it(simulated):
    plan, graph, result = simulated
    trace = as_measured(result.trace)
    firings = {lane.rank: lane.firings for lane in trace.lanes}
    last = [span for span in trace.spans if span.firing >= 2 * firings[span.rank][span.actor]]
    curves = memory_curves(graph, plan.cluster, msgspec.structs.replace(trace, spans=tuple(last)))
    assert len(curves) == 4
    assert all(curve.peak_bytes > min(curve.register_bytes) for curve in curves)


def test_a_rank_that_lacks_a_firing_or_ran_parts_of_chunks_has_no_curve(simulated):
    plan, graph, result = simulated
    trace = as_measured(result.trace)
    holes = msgspec.structs.replace(trace, spans=tuple(s for s in trace.spans if s.rank or s.actor))
    assert [curve.rank for curve in memory_curves(graph, plan.cluster, holes)] == [1, 2, 3]
    coarse = predict(plan, fidelity="stage").trace
    assert memory_curves(graph, plan.cluster, coarse) == ()


def test_curves_become_columns_of_gaps_and_kibibytes():
    curve = MemoryCurve(3, 1, (0, 40, 100), (2048, 4096, 1024))
    assert curve_columns(curve, 10) == {"rank": 3, "stage": 1, "gap": [0, 4, 6], "kib": [2, 4, 1]}
    assert POINTS > 0
