"""Simulated runs against closed forms, the null clock, and themselves."""

from random import Random

import pytest

from millrace.models.graph import to_json
from millrace.planner.actors.graph import ActorGraph
from millrace.planner.actors.null_clock import run_to_completion
from millrace.planner.actors.trace import Trace
from millrace.planner.costs import collective_duration_ns
from millrace.planner.errors import ProtocolError
from millrace.simulator import SimulationError, simulate
from tests.actor_graphs import random_actor_graph
from tests.simulator.graphs import (
    GPU,
    SimulatedWriter,
    chain,
    joined,
    overlapped,
    pipeline,
    shared,
    times,
)


def random_times(graph: ActorGraph, seed: int) -> list[list[int]]:
    """Durations by name, so that both ends of a meeting agree."""
    random = Random(seed)
    return [[random.randrange(1, 1000) for _ in program.actors] for program in graph.programs]


def test_with_two_slots_a_chain_is_as_fast_as_its_slowest_actor() -> None:
    graph = chain(4, firings=8, slots=2)
    for slowest in range(4):
        names = {f"a{index}": 70 + 30 * (index == slowest) for index in range(4)}
        simulated = simulate(graph, GPU, durations_ns=times(graph, names))
        assert simulated.step_time_ns == 8 * 100, slowest


def test_with_one_slot_neighbours_in_a_chain_take_turns() -> None:
    graph = chain(3, firings=8, slots=1)
    simulated = simulate(graph, GPU, durations_ns=times(graph, {"a0": 50, "a1": 70, "a2": 40}))
    assert simulated.step_time_ns == 8 * (50 + 70)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "microbatches"), [(2, 2), (4, 8), (3, 7), (4, 4), (8, 16)])
def test_a_flushed_pipeline_has_the_bubble_of_the_textbook(
    schedule: str, stages: int, microbatches: int
) -> None:
    graph = pipeline(schedule, stages, microbatches)
    simulated = simulate(graph, GPU, durations_ns=times(graph, {"F": 100, "B": 100}))
    assert simulated.step_time_ns == (microbatches + stages - 1) * 200
    expected = (stages - 1) / (microbatches + stages - 1)
    assert simulated.bubble_fraction == pytest.approx(expected, abs=1e-12)
    assert simulated.exposed_communication_ns == 0


def test_one_forward_one_backward_needs_no_more_activations_than_stages() -> None:
    graph = pipeline("1f1b", 4, 8)
    simulated = simulate(graph, GPU, durations_ns=times(graph, {"F": 100, "B": 200}))
    for stage, lane in enumerate(simulated.trace.lanes):
        forward, backward = lane.actors.index("F"), lane.actors.index("B")
        spans = [span for span in simulated.trace.spans if span.rank == lane.rank]
        forward_ends = sorted(span.end_ns for span in spans if span.actor == forward)
        backward_ends = sorted(span.end_ns for span in spans if span.actor == backward)
        in_flight = max(
            sum(m <= t for m in forward_ends) - sum(g <= t for g in backward_ends)
            for t in forward_ends
        )
        assert in_flight <= 4 - stage


def test_communication_shorter_than_compute_hides_behind_it() -> None:
    graph = overlapped(firings=10, ranks=2, message_bytes=0)
    simulated = simulate(graph, GPU, durations_ns=times(graph, {"compute": 100, "reduce": 90}))
    assert simulated.step_time_ns == 1000
    assert simulated.exposed_communication_ns == 0
    assert simulated.bubble_fraction == 0


def test_communication_longer_than_compute_is_exposed_by_the_difference() -> None:
    graph = overlapped(firings=10, ranks=2, message_bytes=0)
    simulated = simulate(graph, GPU, durations_ns=times(graph, {"compute": 100, "reduce": 130}))
    assert simulated.step_time_ns == 1300
    assert simulated.exposed_communication_ns == 300
    assert simulated.bubble_fraction == 0


def test_a_lone_all_reduce_takes_the_time_of_a_ring() -> None:
    size = 64 * 1024**2
    graph = overlapped(firings=1, ranks=8, message_bytes=size)
    expected = collective_duration_ns("all_reduce", size, 8, GPU)
    assert expected == 900 + 14 * 1_900 + -(-2 * 7 * size * 10**9 // (8 * 240 * 10**9))
    lane = simulate(graph, GPU, steps=1).trace.lanes[0]
    reduce = lane.actors.index("reduce")
    spans = simulate(graph, GPU, steps=1).trace.spans
    assert [s.end_ns - s.start_ns for s in spans if s.actor == reduce] == [expected]


def test_a_straggler_holds_up_all_that_meet_it() -> None:
    graph = overlapped(firings=10, ranks=4, message_bytes=0)
    ns = times(graph, {"compute": 100, "reduce": 10})
    simulated = simulate(graph, GPU, durations_ns=ns, stragglers={2: 1.5})
    assert simulated.step_time_ns == 1500
    assert simulated.bubble_fraction > 0
    assert [(lane.rank, lane.represents) for lane in simulated.trace.lanes] == [(0, 3), (2, 1)]


def test_a_world_meeting_waits_for_the_slowest_program() -> None:
    from millrace.planner.actors.graph import Meeting

    programs = []
    for stage in range(2):
        writer = SimulatedWriter()
        writer.actor("compute", "compute", [], [("x", 1)])
        meeting = Meeting(key="w", kind="all_reduce", world=True, reduction="sum")
        writer.actor("world", "lane", [("x", 1)], [("y", 1)], meeting=meeting)
        programs.append(writer.program(stage, (2 * stage, 2 * stage + 1)))
    graph = joined(*programs)
    simulated = simulate(graph, GPU, steps=1, durations_ns=((100, 7), (300, 7)))
    assert simulated.trace.step_end_ns == ((307,), (307,))


def test_random_graphs_run_to_their_end_folded_and_not_with_equal_times() -> None:
    for seed in range(40):
        graph = random_actor_graph(seed)
        ns = random_times(graph, seed)
        folded = simulate(graph, GPU, durations_ns=ns)
        every = simulate(graph, GPU, durations_ns=ns, folded=False)
        assert folded.firings == run_to_completion(graph, steps=3), seed
        assert every.firings == run_to_completion(graph, steps=3, folded=False), seed
        assert folded.trace.step_times_ns() == every.trace.step_times_ns(), seed
        assert folded.step_time_ns == every.step_time_ns, seed
        assert folded.bubble_fraction == pytest.approx(every.bubble_fraction), seed


def test_on_one_core_nothing_overlaps() -> None:
    overlapping = []
    for seed in range(0, 60, 3):
        graph = random_actor_graph(seed)
        ns = random_times(graph, seed)
        simulated = simulate(graph, shared(graph.ranks, cores=1), durations_ns=ns)
        work = sum(
            3 * actor.firings * duration * (1 if actor.meeting is None else 0)
            for program, row in zip(graph.programs, ns, strict=True)
            for actor, duration in zip(program.actors, row, strict=True)
            for _ in program.ranks
        )
        if max(end[-1] for end in simulated.trace.step_end_ns) < work:
            overlapping.append(seed)
    assert overlapping == []


@pytest.mark.parametrize(("cores", "expected"), [(1, 4000), (2, 2000), (3, 1333), (4, 1000)])
def test_ranks_that_share_cores_take_turns(cores: int, expected: int) -> None:
    programs = []
    for stage in range(4):
        writer = SimulatedWriter()
        writer.actor("compute", "compute", [], [])
        programs.append(writer.program(stage, (stage,)))
    graph = joined(*programs)
    simulated = simulate(graph, shared(4, cores), steps=1, durations_ns=[[1000]] * 4)
    assert simulated.step_time_ns in (expected, expected + 1)


def test_a_collective_takes_as_long_as_measured_when_its_members_have_the_cores_to_themselves() -> (
    None
):
    graph = overlapped(firings=1, ranks=4, message_bytes=0)
    ns = times(graph, {"compute": 0, "reduce": 900})
    assert simulate(graph, shared(4, cores=2), steps=1, durations_ns=ns).step_time_ns == 900


def test_the_same_seed_gives_the_same_bytes() -> None:
    for seed in range(3):
        graph = random_actor_graph(seed)
        ns = random_times(graph, 1)
        first, second, third = (
            to_json(simulate(graph, GPU, durations_ns=ns, jitter=0.2, seed=drawn).trace)
            for drawn in (seed, seed, seed + 1)
        )
        assert first == second, seed
        assert first != third, seed


def test_jitter_costs_time_where_ranks_meet() -> None:
    graph = overlapped(firings=200, ranks=8, message_bytes=0, slots=1)
    ns = times(graph, {"compute": 100_000})
    calm = simulate(graph, GPU, durations_ns=ns)
    windy = simulate(graph, GPU, durations_ns=ns, jitter=0.1, seed=3)
    # The largest of eight normal values has mean 1.424 and variance 0.373 (Harter, 1961); its
    # exponential at a tenth of the scale, over the mean of one of them, is 1.149.
    assert windy.step_time_ns / calm.step_time_ns == pytest.approx(1.149, abs=0.015)


def test_a_trace_without_spans_keeps_the_ends_of_the_steps() -> None:
    graph = chain(3, firings=2, slots=2)
    ns = random_times(graph, 0)
    full = simulate(graph, GPU, plan_digest="abc", durations_ns=ns)
    bare = simulate(graph, GPU, plan_digest="abc", durations_ns=ns, spans=False)
    assert bare.trace.spans == ()
    assert bare.trace.step_end_ns == full.trace.step_end_ns
    assert isinstance(full.trace, Trace)
    assert full.trace.source == "simulated"
    assert full.trace.plan_digest == "abc"
    assert len(full.trace.spans) == full.firings == 3 * 3 * 2


def test_a_graph_that_cannot_go_on_is_refused_with_its_cycle() -> None:
    writer = SimulatedWriter(slots=1)
    writer.actor("a", "q", [("back", 1)], [("forth", 1)])
    writer.actor("b", "q", [("forth", 1)], [("back", 1)])
    with pytest.raises(ProtocolError, match="deadlocks"):
        simulate(joined(writer.program()), GPU, durations_ns=[[1, 1]])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"steps": 0}, "steps is 0"),
        ({"steps": 10**9}, "steps is 1000000000: expected 1 to 10,000"),
        ({"jitter": -0.1}, "jitter is -0.1"),
        ({"jitter": float("nan")}, "jitter is nan"),
        ({"stragglers": {9: 2.0}}, "straggler 9: the ranks are 0 to 1"),
        ({"stragglers": {0: 0.0}}, "straggler 0: factor 0.0"),
        ({"stragglers": {0: 1e15}}, "straggler 0: factor 1000000000000000.0"),
        ({"stragglers": {0: float("nan")}}, "straggler 0: factor nan"),
    ],
)
def test_options_out_of_range_are_refused_by_name(
    options: dict[str, object], expected: str
) -> None:
    graph = overlapped(firings=1, ranks=2, message_bytes=0)
    with pytest.raises(SimulationError, match=expected):
        simulate(graph, GPU, **options)


def test_more_ranks_than_devices_are_refused() -> None:
    graph = overlapped(firings=1, ranks=8, message_bytes=0)
    with pytest.raises(SimulationError, match="has 8 ranks, but cluster `local:4` has 4"):
        simulate(graph, shared(4, 2))
