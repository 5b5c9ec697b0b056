"""Representatives: few ranks show what all of them do."""

from random import Random
from statistics import mean

import pytest

from millrace.planner.actors.graph import ActorGraph, Meeting
from millrace.planner.clusters import parse_cluster
from millrace.planner.costs.expert_routing import largest_of
from millrace.planner.mesh import Axis
from millrace.simulator import simulate
from millrace.simulator.variation.representatives import representatives
from tests.actor_graphs import random_actor_graph
from tests.simulator.graphs import GPU, SimulatedWriter, overlapped, times

WIDE = parse_cluster("a100-sxm-80gb:8x256")


def grid(rows: int, columns: int, microbatches: int, stages: int = 1) -> ActorGraph:
    """Actor graph that reduces every microbatch along the columns and the step along the rows."""
    programs = []
    for stage in range(stages):
        writer = SimulatedWriter(slots=microbatches)
        writer.actor("work", "compute", [], [("part", 1)], firings=microbatches)
        inner = Meeting(key="inner", kind="all_reduce", axes=("tp",), reduction="sum")
        writer.actor("inner", "a", [("part", 1)], [("sum", 1)], firings=microbatches, meeting=inner)
        ports = [("sum", 1)]
        writer.actor("more", "more", ports, [("end", microbatches)], firings=microbatches)
        outer = Meeting(key="outer", kind="all_reduce", axes=("dp",), reduction="sum")
        writer.actor("outer", "b", [("end", 1)], [("all", 1)], meeting=outer)
        world = Meeting(key="world", kind="all_reduce", world=True, reduction="sum")
        writer.actor("world", "c", [("all", 1)], [("done", 1)], meeting=world)
        ranks = range(stage * rows * columns, (stage + 1) * rows * columns)
        programs.append(writer.program(stage, tuple(ranks)))
    axes = (Axis(name="dp", size=rows), Axis(name="tp", size=columns))
    return ActorGraph(name="grid", axes=axes, programs=tuple(programs))


def test_one_stands_for_all_and_a_straggler_leaves_four_positions() -> None:
    graph = grid(4, 2, 1, stages=2)
    alone = representatives(graph)
    assert (alone.ranks, alone.counts) == ((0, 8), (8, 8))
    positions = representatives(graph, [3])  # dp 1, tp 1 of the first stage
    assert positions.ranks == (0, 1, 2, 3, 8, 9, 10, 11)
    assert positions.counts == (3, 3, 1, 1, 3, 3, 1, 1)
    assert representatives(graph, [3], sampled=100).ranks == tuple(range(16))
    several = representatives(grid(100, 10, 1), [7, 15])  # rows 0 and 1, columns 7 and 5
    assert several.ranks == (0, 5, 7, 10, 15, 17, 20, 25, 27)
    assert several.counts == (8, 1, 1, 8, 1, 1, 98 * 8, 98, 98)


def test_stragglers_in_random_graphs_are_exact_with_few_ranks() -> None:
    for seed in range(40):
        graph = random_actor_graph(seed)
        random = Random(seed)
        ns = [[random.randrange(1, 1000) for _ in program.actors] for program in graph.programs]
        slow = {
            rank: 1 + 2 * random.random()
            for rank in random.sample(range(graph.ranks), 2 % graph.ranks)
        }
        few = simulate(graph, GPU, durations_ns=ns, stragglers=slow)
        every = simulate(graph, GPU, durations_ns=ns, stragglers=slow, folded=False)
        assert few.trace.step_times_ns() == every.trace.step_times_ns(), seed
        assert few.bubble_fraction == pytest.approx(every.bubble_fraction), seed
        assert few.exposed_communication_ns == pytest.approx(
            every.exposed_communication_ns, abs=1
        ), seed
        assert sum(lane.represents for lane in few.trace.lanes) == graph.ranks, seed
        assert few.firings <= every.firings, seed


def test_stragglers_on_a_grid_are_exact_and_as_cheap_on_a_larger_one() -> None:
    ns_of = {"work": 1000, "inner": 50, "more": 700, "outer": 300, "world": 10}
    graph = grid(8, 4, 6, stages=2)
    slow = {13: 1.7, 40: 1.2}
    few = simulate(graph, WIDE, durations_ns=times(graph, ns_of), stragglers=slow)
    every = simulate(graph, WIDE, durations_ns=times(graph, ns_of), stragglers=slow, folded=False)
    assert few.step_time_ns == every.step_time_ns
    assert few.bubble_fraction == pytest.approx(every.bubble_fraction)
    large = grid(128, 8, 6, stages=2)
    larger = simulate(large, WIDE, durations_ns=times(large, ns_of), stragglers=slow)
    assert larger.firings == few.firings < every.firings / 3


def test_the_largest_of_normal_values_is_that_of_the_tables() -> None:
    # Harter, "Expected values of normal order statistics", 1961.
    for count, expected in ((2, 0.5642), (8, 1.4236), (50, 2.2491), (400, 2.9671)):
        assert largest_of(count) == pytest.approx(expected, rel=0.05)


def test_sampled_jitter_comes_close_to_that_of_every_rank() -> None:
    ns_of = {"work": 100_000, "inner": 0, "more": 50_000, "outer": 0, "world": 0}
    graph = grid(16, 8, 8)
    ns = times(graph, ns_of)
    some, every = (
        mean(
            simulate(
                graph, WIDE, durations_ns=ns, jitter=0.1, seed=seed, folded=folded, spans=False
            ).step_time_ns
            for seed in range(12)
        )
        for folded in (True, False)
    )
    calm = simulate(graph, WIDE, durations_ns=ns).step_time_ns
    assert every > 1.02 * calm
    assert some == pytest.approx(every, rel=0.01)


def test_where_few_ranks_meet_jitter_is_simulated_for_each() -> None:
    graph = overlapped(firings=5, ranks=8, message_bytes=0)
    ns = times(graph, {"compute": 1000})
    some, every = (
        simulate(graph, GPU, durations_ns=ns, jitter=0.1, seed=1, folded=folded)
        for folded in (None, False)
    )
    assert some == every
