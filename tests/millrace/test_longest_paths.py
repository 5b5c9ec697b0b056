"""Longest paths: the kernel's events come to the same ends of steps."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from millrace.comparison.counterfactuals import Counterfactuals
from millrace.comparison.measured_run import measured_run
from millrace.planner.compile import compile_plan
from millrace.planner.costs.launch_overhead import pacing_of
from millrace.simulator import simulate
from millrace.simulator.step_split import step_ends_ns
from tests.millrace.plans import cluster, data_parallel_pipeline

STEPS = 4
DEVICES = msgspec.structs.replace(
    cluster(),
    cores_per_node=None,
    software=msgspec.structs.replace(cluster().software, host_ns=700, overlap=0.8),
)
PLAN = msgspec.structs.replace(data_parallel_pipeline(), cluster=DEVICES)


@pytest.fixture(scope="module")
def replays():
    graph = compile_plan(PLAN)
    trace = simulate(graph, DEVICES, steps=STEPS, plan_digest=PLAN.digest(), folded=False).trace
    run = measured_run(graph, msgspec.structs.replace(trace, source="measured"))
    return Counterfactuals(DEVICES, run)


def drawn(replays, steps, low, high):
    """Nanoseconds of every firing of some steps, drawn between these bounds."""
    random = np.random.default_rng(7)
    return [
        [random.integers(low, high, (steps, actor.firings)) for actor in program.actors]
        for program in replays.run.programs
    ]


def events(replays, scenario, steps):
    """Ends of steps on the slowest rank, by the kernel's events of all ranks."""
    rows = [
        step_ends_ns(instance.program, instance.ends, steps)
        for instance in replays.replayed(scenario, steps)
    ]
    return [max(column) for column in zip(*rows, strict=True)]


@pytest.mark.parametrize("launched", [False, True])
@pytest.mark.parametrize("late_ns", [1, 5_000])
def test_longest_paths_end_steps_when_events_do(replays, launched, late_ns):
    scenario = replace(
        replays.predicted(),
        work=drawn(replays, STEPS, 0, 3_000),
        lags=drawn(replays, 1, 0, late_ns),
        pacing=pacing_of(replays.run.graph, DEVICES)._replace(overlap=1.0) if launched else None,
    )
    assert not scenario.slows
    paths = replays._paths.step_ends_ns(scenario.work, scenario.lags, scenario.pacing, STEPS)
    assert paths == events(replays, scenario, STEPS)


def test_one_rank_of_a_program_stands_for_the_others_while_they_are_alike(replays):
    predicted = replays.predicted()
    assert predicted.slows
    other = predicted.changed(work={(1, 0): predicted.work[1][0] + 1})
    programs, ranks = len(replays.run.graph.programs), replays.run.graph.ranks
    assert programs < ranks
    assert len({id(instance) for instance in replays.replayed(predicted, 3)}) == programs
    assert len({id(instance) for instance in replays.replayed(other, 3)}) == ranks
