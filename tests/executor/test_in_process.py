"""Ranks in one process: the mathematics of meetings, threads against lockstep, failures."""

import threading
from collections.abc import Sequence

import numpy as np
import pytest

from millrace.executor.errors import ExecutorError
from millrace.executor.kernels import RunState
from millrace.executor.rank import RankState
from millrace.executor.recording import trace_of
from millrace.planner.actors.graph import ActorGraph
from millrace.planner.actors.protocol import Fire
from millrace.planner.mesh import Axis
from millrace.planner.sbp import parse_nd_sbp, shard_offsets
from tests.executor.actor_graphs import boxed, handed_on, split_matmul
from tests.executor.sources import WaveData, source_values
from tests.in_process import KernelWork, execute_in_process, execute_lockstep

Array = np.ndarray


def states_of(graph: ActorGraph, *, batch: int, microbatches: int = 1) -> list[RankState]:
    return [
        RankState(
            graph,
            rank,
            RunState(
                seed=0,
                dataset=WaveData(),
                global_batch=batch * microbatches,
                microbatches=microbatches,
                batch=batch,
            ),
        )
        for rank in range(graph.ranks)
    ]


def run(graph: ActorGraph, steps: int = 1, *, batch: int, microbatches: int = 1) -> list[RankState]:
    states = states_of(graph, batch=batch, microbatches=microbatches)
    work = KernelWork(states)
    execute_lockstep(graph, steps, work, work.meet)
    return states


def value(state: RankState, name: str, slot: int = 0) -> Array:
    names = [register.name for register in state.program.registers]
    return state.arena.views[names.index(name)][slot]


def shard(state: RankState, name: str, tensor: Array) -> Array:
    """The part of a whole tensor that `state` holds in register `name`."""
    register = next(r for r in state.program.registers if r.name == name)
    sbp = parse_nd_sbp(register.sbp)
    offsets = shard_offsets(tensor.shape, sbp, state.graph.axis_sizes, state.coordinate)
    return tensor[tuple(slice(o, o + n) for o, n in zip(offsets, register.shape, strict=True))]


def test_partial_products_add_up_over_the_ranks() -> None:
    states = run(split_matmul(2), batch=4, microbatches=2)
    for slot, first in ((0, 0), (1, 4)):
        x, w = source_values("x", (4, 8), first), source_values("w", (8, 6), first)
        # w's own dim 0 is read as the batch, so a rank's rows begin at its shard's offset
        for state in states:
            np.testing.assert_allclose(value(state, "y", slot), x @ w, rtol=1e-12)


ONE_AXIS = (Axis(name="tp", size=4),)
TWO = (Axis(name="dp", size=2), Axis(name="tp", size=2))


@pytest.mark.parametrize(
    ("axes", "kind", "over", "sbps", "factor"),
    [
        (ONE_AXIS, "all_reduce", ("tp",), ["P(sum)", "B"], 4),
        (ONE_AXIS, "all_gather", ("tp",), ["S(0)", "B"], 1),
        (ONE_AXIS, "all_gather", ("tp",), ["S(1)", "B"], 1),
        (ONE_AXIS, "all_gather", ("tp",), ["S(2)", "B"], 1),
        (ONE_AXIS, "reduce_scatter", ("tp",), ["P(sum)", "S(0)"], 4),
        (ONE_AXIS, "reduce_scatter", ("tp",), ["P(sum)", "S(1)"], 4),
        (ONE_AXIS, "all_to_all", ("tp",), ["S(0)", "S(1)"], 1),
        (ONE_AXIS, "all_to_all", ("tp",), ["S(2)", "S(1)"], 1),
        (ONE_AXIS, "all_to_all", ("tp",), ["S(1)", "S(0)"], 1),
        (TWO, "all_gather", ("tp",), ["(S(0), S(1))", "(S(0), B)"], 1),
        (TWO, "all_gather", ("tp",), ["(S(1), S(1))", "(S(1), B)"], 1),
        (TWO, "all_gather", ("dp", "tp"), ["(S(1), S(1))", "(B, B)"], 1),
        (TWO, "reduce_scatter", ("dp",), ["(P(sum), S(0))", "(S(2), S(0))"], 2),
        (TWO, "reduce_scatter", ("dp", "tp"), ["(P(sum), P(sum))", "(S(1), S(1))"], 4),
        (TWO, "all_to_all", ("dp",), ["(S(0), S(1))", "(S(2), S(1))"], 1),
        (TWO, "all_reduce", ("dp",), ["(P(sum), S(1))", "(B, S(1))"], 2),
    ],
)
def test_every_collective_gives_the_shard_of_the_whole_tensor(
    axes: tuple[Axis, ...], kind: str, over: tuple[str, ...], sbps: list[str], factor: int
) -> None:
    shape = (8, 4, 12)
    states = run(boxed(shape, axes, kind, over, sbps), batch=8)
    for state in states:
        expected = factor * shard(state, "y", source_values("x", shape))
        np.testing.assert_allclose(value(state, "y"), expected, rtol=1e-12)


def test_a_transfer_reaches_the_rank_at_the_same_coordinate() -> None:
    states = run(handed_on((6, 5)), steps=2, batch=6, microbatches=2)
    for state in states[2:]:
        for slot, first in ((0, 12), (1, 18)):
            tensor = source_values("x", (6, 5), first)
            np.testing.assert_array_equal(value(state, "y", slot), shard(state, "y", tensor))


def test_threads_give_the_values_of_lockstep_and_a_full_trace() -> None:
    graph = split_matmul(4)
    expected = run(graph, steps=5, batch=4, microbatches=2)
    states = states_of(graph, batch=4, microbatches=2)
    work = KernelWork(states)
    recordings = execute_in_process(graph, 5, work, work.meet)
    for state, other in zip(states, expected, strict=True):
        np.testing.assert_array_equal(value(state, "y", 1), value(other, "y", 1))
    trace = trace_of(graph, recordings, plan_digest="x", device="y")
    assert len(trace.spans) == 4 * 5 * 2 * 4
    assert all(0 <= span.start_ns <= span.end_ns for span in trace.spans)
    for rank, ends in enumerate(trace.step_end_ns):
        assert ends[-1] == max(span.end_ns for span in trace.spans if span.rank == rank)
    assert trace.lanes[0].queues == ("compute", "compute", "compute", "lane")


def test_a_rank_that_raises_stops_all_others_and_names_the_actor() -> None:
    graph = split_matmul(4)
    work = KernelWork(states_of(graph, batch=4, microbatches=2))

    class Fails:
        def run(self, rank: int, fire: Fire) -> None:
            if rank == 2 and fire.firing == 5:
                raise FloatingPointError("overflow")
            work.run(rank, fire)

    with pytest.raises(ExecutorError, match=r"rank 2.*: FloatingPointError: overflow") as raised:
        execute_in_process(graph, 50, Fails(), work.meet)
    assert raised.value.rank == 2
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rank")]


def test_a_meeting_that_cannot_move_data_stops_all_ranks() -> None:
    graph = split_matmul(2)
    work = KernelWork(states_of(graph, batch=4, microbatches=2))

    def meet(arrivals: Sequence[tuple[int, Fire]]) -> None:
        raise ValueError("no route")

    with pytest.raises(ExecutorError, match="no route"):
        execute_in_process(graph, 3, work, meet)


def test_spans_say_how_long_a_firing_had_a_core() -> None:
    graph = split_matmul()
    work = KernelWork(states_of(graph, batch=4))
    trace = trace_of(graph, execute_in_process(graph, 2, work, work.meet))
    for span in trace.spans:
        actor = graph.programs[graph.program_of(span.rank)].actors[span.actor]
        assert span.queued_ns >= 0
        if actor.meeting is None:
            assert span.cpu_ns > 0
            # Two clocks, one read inside the other's readings.
            assert span.cpu_ns <= span.end_ns - span.start_ns + 1_000_000
