"""A profile that a run was folded into predicts that run."""

import msgspec
import pytest

from millrace.comparison import unmarked_share
from millrace.planner.cluster import Cluster, Device
from millrace.planner.clusters import device, local_cluster, parse_cluster
from millrace.planner.compile import compile_plan
from millrace.planner.errors import PlanError
from millrace.planner.plan import Plan
from millrace.profiling.profile_update import profile_update, updated_profile
from millrace.simulator.simulate import simulate
from tests.millrace.traces import two_rank_trace
from tests.plan_requests import plan_of
from tests.small_models import small

TABLES = {
    "matmul": ((1000, 10_000), (10**9, 10**8)),
    "relu": ((1024, 1000), (10**6, 10**6)),
}


def on(plan: Plan, device: Device) -> Cluster:
    return msgspec.structs.replace(plan.cluster, device=device)


def profiled(plan: Plan, factor: float) -> Device:
    """Device of a plan whose every kernel takes so many times its time in `TABLES`."""
    tables = {
        kind: tuple((work, round(factor * ns)) for work, ns in points)
        for kind, points in TABLES.items()
    }
    return msgspec.structs.replace(plan.cluster.device, kernels=tables, launch_ns=0)


@pytest.mark.parametrize("pins", [{"dp": 2}, {"pp": 2}])
def test_a_run_is_predicted_once_it_is_folded_in(pins: dict[str, int]) -> None:
    plan = plan_of(small("gpt"), local_cluster(2, cores=2, memory_bytes=2**33), 8, **pins)
    graph = compile_plan(plan)
    run = simulate(graph, on(plan, profiled(plan, 1.7)), steps=12)
    trace = msgspec.structs.replace(run.trace, source="measured")
    guess = profiled(plan, 1.0)
    before_ns = simulate(graph, on(plan, guess)).step_time_ns
    after_ns = simulate(
        graph, on(plan, updated_profile(on(plan, guess), (graph, trace)))
    ).step_time_ns
    assert abs(before_ns / run.step_time_ns - 1) > 0.2
    assert abs(after_ns / run.step_time_ns - 1) < 0.02


@pytest.mark.parametrize(("ranks", "pins"), [(2, {"tp": 2}), (4, {"dp": 2, "tp": 2})])
def test_collectives_are_folded_in_where_ranks_share_cores_too(
    ranks: int, pins: dict[str, int]
) -> None:
    plan = plan_of(small("gpt"), local_cluster(ranks, cores=2, memory_bytes=2**33), 8, **pins)
    graph = compile_plan(plan)
    slow, guess = (
        msgspec.structs.replace(
            profiled(plan, 1.0),
            collectives={
                f"{kind}/{size}": ((64, round(factor * 200_000)), (10**8, round(factor * 10**8)))
                for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
                for size in (2, 4)
            },
        )
        for factor in (1.5, 1.0)
    )
    run = simulate(graph, on(plan, slow), steps=12)
    trace = msgspec.structs.replace(run.trace, source="measured")
    before_ns = simulate(graph, on(plan, guess)).step_time_ns
    after_ns = simulate(
        graph, on(plan, updated_profile(on(plan, guess), (graph, trace)))
    ).step_time_ns
    assert before_ns / run.step_time_ns - 1 < -0.2
    assert abs(after_ns / run.step_time_ns - 1) < 0.02


def test_a_trace_that_lacks_firings_is_refused() -> None:
    plan = plan_of(small("gpt"), local_cluster(2, cores=2, memory_bytes=2**33), 8, dp=2)
    trace = simulate(compile_plan(plan), plan.cluster, steps=12).trace
    part = msgspec.structs.replace(trace, source="measured", spans=trace.spans[::2])
    with pytest.raises(PlanError, match="every firing"):
        profile_update(plan, part)


def test_an_update_says_what_it_changes_and_which_steps_it_leaves_out() -> None:
    plan = plan_of(small("gpt"), local_cluster(2, cores=2, memory_bytes=2**33), 8, dp=2)
    guess = msgspec.structs.replace(plan, cluster=on(plan, profiled(plan, 1.0)))
    run = simulate(compile_plan(plan), on(plan, profiled(plan, 1.7)), steps=12)
    ends = [list(row) for row in run.trace.step_end_ns]
    for row in ends:
        row[8:] = [end + 10**9 for end in row[8:]]  # step 9 takes a second longer
    trace = msgspec.structs.replace(
        run.trace, source="measured", step_end_ns=tuple(map(tuple, ends))
    )
    update = profile_update(guess, trace)
    assert 9 in update.left_out
    assert abs(update.error) < 0.02
    assert update.changes[0].kind == "matmul"
    assert update.changes[0].after_s / update.changes[0].before_s == pytest.approx(1.7, rel=0.02)


def test_fused_kernels_of_a_gpu_are_folded_in_too() -> None:
    kernels = {
        "matmul": ((10**3, 2_000), (10**6, 3_000), (10**9, 10**6)),
        "add": ((10**3, 1_000), (10**9, 10**6)),
    }
    gpu = msgspec.structs.replace(device("a100-sxm-80gb"), kernels=kernels)
    cluster = parse_cluster("local-gpu:1", gpu)
    plan = plan_of(small("gpt"), cluster, 8, fusion="full")
    graph = compile_plan(plan)
    assert any(actor.parts for actor in graph.programs[0].actors)
    slow = {name: tuple((work, 2 * ns) for work, ns in points) for name, points in kernels.items()}
    run = simulate(graph, on(plan, msgspec.structs.replace(gpu, kernels=slow)), steps=12)
    trace = msgspec.structs.replace(run.trace, source="measured")
    learned = updated_profile(plan.cluster, (graph, trace))
    assert abs(simulate(graph, plan.cluster).step_time_ns / run.step_time_ns - 1) > 0.1
    assert abs(simulate(graph, on(plan, learned)).step_time_ns / run.step_time_ns - 1) < 0.03
    assert learned.launch_ns == gpu.launch_ns


def test_steps_in_which_actors_are_timed_count_as_long_as_the_others() -> None:
    trace = two_rank_trace("measured", steps=12)
    assert unmarked_share(trace) == 1.0
    last = tuple(span for span in trace.spans if span.start_ns >= 9 * 1_600)
    ends = tuple(
        tuple(end + max(0, step - 8) * 400 for step, end in enumerate(row))
        for row in trace.step_end_ns
    )
    marked = msgspec.structs.replace(trace, spans=last, step_end_ns=ends)
    assert unmarked_share(marked) == 1_600 / 2_000
