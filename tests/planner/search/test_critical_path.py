"""Critical paths of schedules' orders: against a graph library, as cuts, and of many rounds."""

from dataclasses import replace
from unittest.mock import patch

import networkx as nx
import numpy as np
import pytest

from millrace.planner.schedules import SCHEDULES, schedule_order, stage_of
from millrace.planner.search.stages import critical_path as module
from millrace.planner.search.stages.critical_path import (
    CriticalPath,
    PassTimes,
    critical_path,
    path_cut,
)

CASES = [
    ("gpipe", 3, 2, 5),
    ("1f1b", 4, 1, 9),
    ("1f1b", 4, 1, 2),
    ("interleaved-1f1b", 3, 2, 7),
    ("interleaved-1f1b", 2, 4, 8),
    ("zb-h1", 4, 1, 6),
    ("zb-v", 3, 2, 7),
]


def random_times(positions: int, seed: int, spread: float = 1.0) -> PassTimes:
    rng = np.random.default_rng(seed)
    return PassTimes(
        passes=1 + spread * rng.random((3, positions)),
        hops=rng.random(positions) / 5,
        begins=rng.random(positions),
        ends=rng.random(positions),
    )


def longest(schedule: str, stages: int, chunks: int, microbatches: int, times: PassTimes) -> float:
    """Longest path by networkx, over a graph that is written down edge by edge."""
    graph: nx.DiGraph = nx.DiGraph()
    positions = stages * chunks
    homes = [stage_of(schedule, k, stages) for k in range(positions)]
    for stage in range(stages):
        on_stage = [k for k in range(positions) if homes[k] == stage]
        before: object = "begin"
        order = schedule_order(
            schedule, stage=stage, stages=stages, chunks=chunks, microbatches=microbatches
        )
        last = {}
        for part, chunk, microbatch in order:
            k = on_stage[chunk]
            node = part[0], k, microbatch
            # Durations are those of the edges that leave a node.
            _, _, weight = duration = times.passes[:, k]
            ns = {"F": duration[0], "B": duration[1], "W": weight, "BW": duration[1] + weight}
            graph.add_node(node, ns=ns[part])
            graph.add_edge(
                before, node, weight=graph.nodes[before]["ns"] if before != "begin" else 0
            )
            if part == "F" and microbatch == 0:
                graph.add_edge("begin", node, weight=times.begins[k])
            before = node
            if part in ("W", "BW"):
                last[k] = node
        for k, node in last.items():
            graph.add_edge(node, "end", weight=graph.nodes[node]["ns"] + times.ends[k])
    for k in range(1, positions):
        hop = times.hops[k - 1] if homes[k] != homes[k - 1] else 0
        for m in range(microbatches):
            for source, target in ((("F", k - 1, m), ("F", k, m)), (("B", k, m), ("B", k - 1, m))):
                ns = graph.nodes[source]["ns"] + hop
                parallel_ns = graph.get_edge_data(source, target, {"weight": 0})["weight"]
                graph.add_edge(source, target, weight=max(ns, parallel_ns))
    return float(nx.dag_longest_path_length(graph))


def sum_of(path: CriticalPath, times: PassTimes) -> float:
    return float((path.counts * times.passes).sum())


@pytest.mark.parametrize("case", CASES)
def test_length_is_that_of_the_longest_path(case: tuple[str, int, int, int]):
    schedule, stages, chunks, microbatches = case
    for seed in range(5):
        times = random_times(stages * chunks, seed)
        path = critical_path(schedule, stages, chunks, microbatches, times)
        assert path.length_ns == pytest.approx(longest(*case, times))


@pytest.mark.parametrize("case", CASES)
def test_counts_of_a_critical_path_are_a_cut(case: tuple[str, int, int, int]):
    schedule, stages, chunks, microbatches = case
    paths = []
    for seed in range(6):
        times = random_times(stages * chunks, seed)
        paths.append((critical_path(schedule, stages, chunks, microbatches, times), times))
    for path, times in paths:
        assert sum_of(path, times) <= path.length_ns
        for other, others in paths:
            assert sum_of(path, others) <= other.length_ns * (1 + 1e-12)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("spread", [0.02, 0.1, 0.3])
def test_further_rounds_add_what_one_adds(schedule: str, spread: float):
    """Also where a busy stage is waited for only once the forwards before it have run out."""
    chunks = SCHEDULES[schedule].chunks or 2
    for stages, seed in ((2, 1), (2, 2), (4, 1)):
        times = random_times(stages * chunks, seed, spread)
        short = critical_path(schedule, stages, chunks, 120, times)
        with patch.object(module, "LAPS", 60):
            long = critical_path(schedule, stages, chunks, 120, times)
        assert short.length_ns == pytest.approx(long.length_ns, rel=1e-3)
        assert short.counts.sum() == pytest.approx(long.counts.sum(), rel=0.05)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("rounds", [1, 3, 9])
def test_no_order_is_shorter_than_a_path_that_was_cut_for_it(schedule: str, rounds: int):
    """Whatever its passes take; and of the times it was cut for, it is nearly the longest."""
    chunks = SCHEDULES[schedule].chunks or 2
    microbatches = 3 * (module.LAPS + rounds)
    shape = schedule, 3, chunks, microbatches
    drawn = [random_times(3 * chunks, seed, spread=4) for seed in range(8)]
    drawn = [replace(times, begins=0 * times.begins, ends=0 * times.ends) for times in drawn]
    with patch.object(module, "LAPS", microbatches):
        lengths = [critical_path(*shape, times).length_ns for times in drawn]
    for times, length_ns in zip(drawn, lengths, strict=True):
        cut = path_cut(*shape, times)
        assert cut.least_ns(times) >= (0.9 if schedule != "gpipe" else 0.5) * length_ns
        for other, other_ns in zip(drawn, lengths, strict=True):
            assert cut.least_ns(other) <= other_ns * (1 + 1e-12)


def test_eager_1f1b_hides_what_is_sent():
    times = random_times(4, 1, 0.3)
    far = replace(times, hops=times.hops + times.passes.max())
    lengths = {
        schedule: [
            critical_path(schedule, 4, 1, 32, hop_times).length_ns for hop_times in (times, far)
        ]
        for schedule in ("1f1b", "eager-1f1b")
    }
    waits = {schedule: there - here for schedule, (here, there) in lengths.items()}
    assert waits["eager-1f1b"] < 0.5 * waits["1f1b"]
