"""Blocks: every block of a chunk fires, in the time of the chunk's part."""

import pytest

from millrace.planner.actors.null_clock import run_to_completion
from millrace.planner.actors.validate import validate
from millrace.planner.compile import compile_plan
from millrace.planner.memory import plan_memory
from millrace.planner.plan import recomputed
from millrace.simulator import predict, simulate
from millrace.simulator.block_fidelity import by_block, shared
from millrace.simulator.stage_fidelity import stage_graph
from tests.millrace.plans import data_parallel_pipeline
from tests.simulator.graphs import GPU


def test_a_time_is_shared_in_proportion_and_whole() -> None:
    assert shared(10, [1, 3, 1]) == [2, 6, 2]
    assert shared(10, [1, 1, 1]) == [3, 4, 3]
    assert shared(9, [0, 0, 0]) == [3, 3, 3]
    assert shared(5, [2.5]) == [5]


@pytest.mark.parametrize("mode", ["none", "full"])
def test_a_part_becomes_its_blocks_and_takes_as_long(mode: str) -> None:
    plan = data_parallel_pipeline()
    plan = recomputed(plan, {choice.block: mode for c in plan.chunks for choice in c.blocks})
    stages = stage_graph(plan)
    coarse, durations_ns = stages.coarse.ordered(), stages.coarse.durations_ns
    graph, table, *_ = by_block(coarse, durations_ns, stages.rows)
    assert run_to_completion(validate(graph), steps=3) > run_to_completion(coarse, steps=3)
    for number, chunk in enumerate(plan.chunks):
        names = [choice.block for choice in chunk.blocks]
        program, row = graph.programs[chunk.stage], table[chunk.stage]
        for part, order in (("F", names), ("BW", names[::-1])):
            part_name = f"chunk {number}: {part}"
            indexes = [i for i, a in enumerate(program.actors) if a.name.startswith(part_name)]
            assert [program.actors[i].block for i in indexes] == order
            before = [a.name for a in coarse.programs[chunk.stage].actors].index(part_name)
            assert sum(row[i] for i in indexes) == durations_ns[chunk.stage][before]
            assert all(row[i] > 0 for i in indexes)
    fine = simulate(graph, GPU, durations_ns=table)
    assert fine.step_time_ns == simulate(coarse, GPU, durations_ns=durations_ns).step_time_ns


def test_jitter_of_blocks_evens_out_within_a_part() -> None:
    plan = data_parallel_pipeline()
    shared_work = {"stages": stage_graph(plan), "memory": plan_memory(plan), "spans": False}
    calm = predict(plan, fidelity="stage", **shared_work).step_time_ns
    stage, block = (
        sum(
            predict(plan, fidelity=fidelity, jitter=0.2, seed=seed, **shared_work).step_time_ns
            for seed in range(24)
        )
        / 24
        for fidelity in ("stage", "block")
    )
    assert calm < block < stage


def test_recomputing_takes_the_time_of_its_ops_and_shows_as_a_phase_of_its_own() -> None:
    plan = data_parallel_pipeline()
    full = recomputed(plan, {"h.0": "full", "h.1": "full"})
    keeping, again = (simulate(compile_plan(candidate), GPU) for candidate in (plan, full))
    busy: list[dict[str, int]] = []
    for run in (keeping, again):
        lanes = {lane.rank: lane for lane in run.trace.lanes}
        phase_ns: dict[str, int] = {}
        for span in run.trace.spans:
            lane = lanes[span.rank]
            if lane.queues[span.actor] == "compute":
                phase = lane.phases[span.actor]
                phase_ns[phase] = phase_ns.get(phase, 0) + span.end_ns - span.start_ns
        busy.append(phase_ns)
    assert busy[1].keys() - busy[0].keys() == {"recompute"}
    assert 0 < busy[1]["recompute"] < busy[1]["forward"] == busy[0]["forward"]
    assert again.step_time_ns > keeping.step_time_ns
