"""Causes of the error: they add up, and what was changed in a run is what is named."""

from itertools import pairwise

import msgspec
import pytest

from millrace.comparison import join
from millrace.planner.compile import compile_plan
from millrace.planner.costs import durations
from millrace.simulator import simulate
from tests.millrace.plans import cluster, data_parallel_pipeline

CORES = msgspec.structs.replace(cluster(), cores_per_node=None)
SHORT = msgspec.structs.replace(data_parallel_pipeline(), global_batch=8, microbatches=2)
PLAN = msgspec.structs.replace(SHORT, cluster=CORES)
GRAPH = compile_plan(PLAN)
DURATIONS = durations(GRAPH, CORES)
PREDICTED = simulate(GRAPH, CORES, plan_digest=PLAN.digest()).trace


def run(durations_ns=DURATIONS, where=CORES, wait_ns=0, cpu=True, steps=7, **options):
    """Trace that a run would write whose firings take so long, of it `wait_ns` without a core."""
    trace = simulate(
        GRAPH,
        where,
        steps=steps,
        plan_digest=PLAN.digest(),
        durations_ns=durations_ns,
        folded=False,
        **options,
    ).trace
    spans = tuple(
        msgspec.structs.replace(
            span, cpu_ns=max(span.end_ns - span.start_ns - wait_ns, 1) if cpu else 0
        )
        for span in trace.spans
    )
    return msgspec.structs.replace(trace, source="measured", spans=spans)


def scaled(factor, changes):
    """Durations in which firings of the actors that `changes` holds for take `factor` times."""
    return [
        [
            round(ns * factor) if changes(actor) else ns
            for actor, ns in zip(p.actors, row, strict=True)
        ]
        for p, row in zip(GRAPH.programs, DURATIONS, strict=True)
    ]


def explained(measured, plan=PLAN, predicted=PREDICTED):
    comparison = join(predicted, measured, plan)
    causes = comparison.error_causes
    error_s = comparison.measured_step_time_s - comparison.predicted_step_time_s
    assert sum(cause.seconds for cause in causes) == pytest.approx(error_s, abs=1e-12)
    for cause in causes:
        if cause.items:
            total = sum(item.seconds for item in cause.items)
            assert total == pytest.approx(cause.seconds, abs=1e-12)
    return {cause.name: cause for cause in causes}


def blamed(measured):
    """Names of the first cause and its first item."""
    causes = explained(measured)
    assert causes["left over"].seconds == 0
    first = next(iter(causes.values()))
    return first.name, first.items[0].name


def test_a_run_as_predicted_has_no_cause():
    assert all(cause.seconds == 0 for cause in explained(run()).values())


def test_a_kind_of_op_that_is_slower_is_named():
    slower = scaled(3, lambda actor: actor.kind == "matmul")
    assert blamed(run(slower)) == ("op cost", "matmul")


def test_a_rank_that_is_slower_is_named_beside_its_like():
    assert blamed(run(stragglers={3: 2.0})) == ("stragglers", "rank 3")


def test_ranks_of_a_stage_that_are_slower_are_named_beside_other_stages():
    name, item = blamed(run(stragglers={2: 2.0, 3: 2.0}))
    assert name == "stragglers"
    assert item in ("rank 2", "rank 3")


def test_a_transfer_that_is_slower_is_named_with_its_link():
    slower = scaled(50, lambda actor: actor.meeting and actor.meeting.peer is not None)
    name, item = blamed(run(slower))
    assert name == "collective cost"
    assert item in ("recv 0 → 2", "recv 1 → 3", "recv 2 → 0", "recv 3 → 1")


def test_time_without_a_core_is_named():
    slower = [[ns + 100_000 for ns in row] for row in DURATIONS]
    assert blamed(run(slower, wait_ns=100_000))[0] == "waiting for a core"


def test_a_trace_that_does_not_time_cores_has_no_waiting_for_them():
    causes = explained(run(stragglers={0: 2.0}, cpu=False))
    assert "waiting for a core" not in causes
    assert next(iter(causes)) == "stragglers"


def test_noise_is_variation_and_the_last_replay_is_the_run():
    causes = explained(run(jitter=0.5, seed=1))
    assert abs(causes["left over"].seconds) < 1e-9
    assert causes["variation"].seconds > 0


def test_ranks_that_share_cores_are_explained_without_a_rest():
    predicted = simulate(GRAPH, SHORT.cluster, plan_digest=PLAN.digest()).trace
    causes = explained(run(where=SHORT.cluster, jitter=0.3, cpu=False), SHORT, predicted)
    assert abs(causes["left over"].seconds) < 1e-9


def test_spans_of_the_last_steps_alone_are_enough():
    trace = run(stragglers={1: 2.0}, steps=9)
    firings = {lane.rank: lane.firings for lane in trace.lanes}
    late = tuple(s for s in trace.spans if s.firing // firings[s.rank][s.actor] >= 6)
    causes = explained(msgspec.structs.replace(trace, spans=late))
    assert next(iter(causes.values())).items[0].name == "rank 1"


def test_a_trace_of_other_firings_has_no_causes():
    trace = run()
    partial = msgspec.structs.replace(trace, spans=trace.spans[:-1])
    assert join(PREDICTED, partial, PLAN).error_causes == ()


def test_critical_paths_are_as_long_as_the_steps_and_lead_over_the_slow_rank():
    measured = run(stragglers={3: 4.0}, jitter=0.1)
    comparison = join(PREDICTED, measured, PLAN)
    paths = comparison.critical_paths
    for path in (paths.predicted, paths.measured):
        assert path[0].start_s - path[0].idle_s == pytest.approx(0, abs=1e-12)
        for before, after in pairwise(path):
            end_s = before.start_s + before.seconds
            assert after.start_s - after.idle_s == pytest.approx(end_s, abs=1e-12)
    everywhere = simulate(GRAPH, CORES, folded=False, jitter=0.2, plan_digest=PLAN.digest()).trace
    varied = join(everywhere, measured, PLAN)
    path = varied.critical_paths.predicted
    length_s = sum(segment.seconds + segment.idle_s for segment in path)
    assert length_s == pytest.approx(varied.predicted_step_time_s)
    length_s = sum(segment.seconds + segment.idle_s for segment in paths.predicted)
    assert length_s == pytest.approx(comparison.predicted_step_time_s)
    assert sum(row.predicted_s for row in paths.rows) == pytest.approx(length_s)
    on_slow_rank_s = sum(segment.seconds for segment in paths.measured if segment.rank == 3)
    assert on_slow_rank_s > 0.5 * sum(segment.seconds for segment in paths.measured)
