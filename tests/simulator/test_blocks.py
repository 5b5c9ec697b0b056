"""Coarser graphs: fewer firings, the same time."""

from random import Random

import pytest

from planner.actors.null_clock import run_to_completion
from planner.actors.validate import validate
from planner.compile import compile_plan
from planner.recomputed import recomputed
from simulator import simulate
from simulator.blocks import by_block
from tests.actor_graphs import random_actor_graph
from tests.millrace.plans import data_parallel_pipeline
from tests.simulator.graphs import GPU, Writer, joined


def row_of(length: int) -> Writer:
    writer = Writer(slots=1)
    for index in range(length):
        inputs = [(f"r{index - 1}", 1)] if index else []
        writer.actor(f"a{index}", "compute", inputs, [(f"r{index}", 1)], firings=4)
    writer.orders["compute"] = [*range(length)] * 4
    return writer


def test_a_row_of_actors_in_one_queue_becomes_one_actor() -> None:
    graph = joined(row_of(5).program())
    coarse, table, _ = by_block(graph, [[1, 2, 3, 4, 5]])
    (actor,) = coarse.programs[0].actors
    assert (actor.name, actor.firings) == ("a0 … a4", 4)
    assert table == [[15]]
    assert coarse.programs[0].memory_bytes == graph.programs[0].memory_bytes


def test_an_actor_that_another_queue_waits_for_ends_a_run() -> None:
    writer = row_of(5)
    writer.actor("aside", "lane", [("r2", 1)], [], firings=4)
    coarse, *_ = by_block(joined(writer.program()), [[1] * 6])
    assert [actor.name for actor in coarse.programs[0].actors] == ["a0 … a2", "a3 … a4", "aside"]


def test_an_actor_that_waits_for_another_queue_begins_a_run() -> None:
    writer = row_of(4)
    writer.actor("before", "lane", [], [("news", 1)], firings=4)
    writer.actor("late", "compute", [("news", 1), ("r3", 1)], [], firings=4)
    writer.orders["compute"] = [0, 1, 2, 3, 5] * 4
    coarse, *_ = by_block(joined(writer.program()), [[1] * 6])
    assert [actor.name for actor in coarse.programs[0].actors] == ["a0 … a3", "late", "before"]


@pytest.mark.parametrize("seed", range(40))
def test_random_graphs_stay_live_and_about_as_fast(seed: int) -> None:
    graph = random_actor_graph(seed)
    random = Random(seed)
    ns = [[random.randrange(1, 1000) for _ in program.actors] for program in graph.programs]
    coarse, table, _ = by_block(graph, ns)
    assert run_to_completion(validate(coarse), steps=3) <= run_to_completion(graph, steps=3)
    fine = simulate(graph, GPU, durations_ns=ns)
    fast = simulate(coarse, GPU, durations_ns=table)
    # These graphs have one or two slots everywhere, where the moment of release matters most.
    assert fast.step_time_ns == pytest.approx(fine.step_time_ns, rel=0.5)


@pytest.mark.parametrize("mode", ["none", "selective", "full"])
def test_a_compiled_plan_keeps_its_step_time_within_two_percent(mode: str) -> None:
    plan = data_parallel_pipeline()
    plan = recomputed(plan, {choice.block: mode for c in plan.chunks for choice in c.blocks})
    graph = compile_plan(plan)
    for cluster in (plan.cluster, GPU):
        fine = simulate(graph, cluster)
        coarse = simulate(graph, cluster, fidelity="block")
        assert coarse.firings < 0.5 * fine.firings
        assert coarse.step_time_ns == pytest.approx(fine.step_time_ns, rel=0.02)
        assert coarse.memory_bytes_max == fine.memory_bytes_max


def test_recomputing_takes_the_time_of_its_ops_and_shows_as_a_phase_of_its_own() -> None:
    plan = data_parallel_pipeline()
    full = recomputed(plan, {"h.0": "full", "h.1": "full"})
    kept, again = (simulate(compile_plan(one), GPU) for one in (plan, full))
    busy: list[dict[str, int]] = []
    for run in (kept, again):
        lanes = {lane.rank: lane for lane in run.trace.lanes}
        found: dict[str, int] = {}
        for span in run.trace.spans:
            lane = lanes[span.rank]
            if lane.queues[span.actor] == "compute":
                phase = lane.phases[span.actor]
                found[phase] = found.get(phase, 0) + span.end_ns - span.start_ns
        busy.append(found)
    assert busy[1].keys() - busy[0].keys() == {"recompute"}
    assert 0 < busy[1]["recompute"] < busy[1]["forward"] == busy[0]["forward"]
    assert again.step_time_ns > kept.step_time_ns
