"""Speed of crowded cores, out of runs."""

import msgspec
import pytest

from millrace.planner.actors.graph import ActorGraph
from millrace.planner.actors.trace import Trace
from millrace.planner.cluster import Cluster
from millrace.planner.clusters import local_cluster
from millrace.planner.compile import compile_plan
from millrace.profiling.crowding import SPEED_MIN, crowded_speed
from millrace.simulator.simulate import simulate
from tests.plan_requests import plan_of
from tests.small_models import small

SHARED = local_cluster(4, cores=2, memory_bytes=2**33)


def at_speed(cluster: Cluster, speed: float) -> Cluster:
    device = msgspec.structs.replace(cluster.device, crowded_speed=speed)
    return msgspec.structs.replace(cluster, device=device)


def run_at(speed: float, **pins: int) -> tuple[ActorGraph, Trace]:
    graph = compile_plan(plan_of(small("gpt"), SHARED, 8, **pins))
    return graph, simulate(graph, at_speed(SHARED, speed), steps=8).trace


@pytest.mark.parametrize("speed", [0.7, 0.9, 1.0])
def test_the_speed_of_runs_comes_out(speed: float) -> None:
    runs = [run_at(speed, dp=4), run_at(speed, tp=4)]
    assert crowded_speed(SHARED, runs) == pytest.approx(speed, abs=0.01)


def test_runs_that_are_slow_for_another_reason_say_little() -> None:
    assert crowded_speed(SHARED, [run_at(0.3, dp=4)]) == SPEED_MIN


def test_without_a_crowd_the_speed_stays() -> None:
    alone = at_speed(local_cluster(1, cores=2, memory_bytes=2**33), 0.8)
    graph = compile_plan(plan_of(small("gpt"), alone, 8))
    trace = simulate(graph, alone, steps=8).trace
    assert crowded_speed(alone, [(graph, trace)]) == 0.8
