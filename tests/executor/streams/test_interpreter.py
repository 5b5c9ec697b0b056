"""In whatever order streams and waits leave, a step computes the same bits."""

from collections import Counter
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest

from millrace.executor.errors import ExecutorError
from millrace.executor.rank import RankState
from millrace.executor.streams import Command, CommandBuffer, command_buffer, interpret
from millrace.planner.actors.graph import ActorGraph
from millrace.planner.actors.protocol import Fire
from millrace.planner.plan import plan_graph
from tests.actor_graphs import random_actor_graph
from tests.executor.streams.buffers import (
    changed,
    one_producer,
    plans,
    two_sends,
    waits_of,
    without,
)
from tests.in_process import KernelWork, execute_lockstep
from tests.parallel_runs import begun, run
from tests.test_agreement import Memory

STEPS = 3
TRAINED = [
    *("gpt: dp x tp", "gpt: pp", "gpt: interleaved pp", "gpt: ZeRO 3"),
    *("mixtral dp4 ep2", "deepseek dp2 pp2 ep2", "resnet pp2", "resnet dp4", "wide-deep tp2"),
    *("recomputed: 1f1b", "recomputed: sequence-parallel tp"),
    *("offloaded: interleaved", "offloaded: ZeRO 3"),
]


class FiredBy:
    """Commands as the work of an actor graph: firings are counted over all steps."""

    def __init__(self, work: Memory | KernelWork) -> None:
        self.work = work
        self.done: Counter[tuple[int, int]] = Counter()

    def __call__(self, commands: Sequence[Command]) -> None:
        arrivals = [(one.rank, self.fire(one)) for one in commands]
        if commands[0].meets:
            self.work.meet(arrivals)
        else:
            self.work.run(*arrivals[0])

    def fire(self, command: Command) -> Fire:
        firing = self.done[command.rank, command.actor]
        self.done[command.rank, command.actor] += 1
        return Fire(command.actor, firing, command.reads, command.writes)


def remembered(graph: ActorGraph, buffer: CommandBuffer, seed: int, steps: int = 1) -> Memory:
    memory = Memory(graph)
    interpret(buffer, FiredBy(memory), seed=seed, steps=steps)
    return memory


@pytest.mark.parametrize("seed", range(120))
def test_random_graphs_show_the_firings_slots_and_contents_of_the_protocol(seed: int) -> None:
    graph = random_actor_graph(seed)
    expected = Memory(graph)
    execute_lockstep(graph, 1, expected, expected.meet)
    buffer = command_buffer(graph, range(graph.ranks))
    for drawn in range(4):
        found = remembered(graph, buffer, drawn)
        assert found.records == expected.records
        assert found.slots == expected.slots


@pytest.mark.parametrize(("slots", "firings", "initial"), [(2, 1, 1), (3, 2, 1), (4, 2, 3)])
def test_slots_that_go_on_from_step_to_step_are_the_protocols(
    slots: int, firings: int, initial: int
) -> None:
    graph = one_producer(slots=slots, firings=firings, initial=initial)
    expected = Memory(graph)
    execute_lockstep(graph, 7, expected, expected.meet)
    found = remembered(graph, command_buffer(graph, (0,)), 1, steps=7)
    assert found.records == expected.records
    assert found.slots == expected.slots


def test_without_a_wait_some_order_shows_it() -> None:
    """The interpreter is not blind: few of the waits are for what meetings order as well."""
    noticed = Counter[bool]()
    for seed in range(12):
        graph = random_actor_graph(seed)
        buffer = command_buffer(graph, range(graph.ranks))
        for number, wait in waits_of(buffer):
            noticed[shows(graph, without(buffer, number, wait))] += 1
    assert noticed[True] > 5 * noticed[False]
    assert noticed.total() > 50


def shows(graph: ActorGraph, buffer: CommandBuffer) -> bool:
    for drawn in range(30):
        try:
            remembered(graph, buffer, drawn)
        except AssertionError:
            return True
    return False


@cache
def in_lockstep(name: str) -> list[RankState]:
    plan, graph = plans()[name]()
    return run(plan, plan_graph(plan), graph, STEPS)


@pytest.mark.parametrize(("seed", "name"), list(enumerate(TRAINED)))
def test_losses_and_variables_are_equal_bit_for_bit(seed: int, name: str) -> None:
    plan, graph = plans()[name]()
    states = begun(plan, plan_graph(plan), graph)
    buffer = command_buffer(graph, range(graph.ranks))
    interpret(buffer, FiredBy(KernelWork(states)), seed=seed, steps=STEPS)
    for found, expected in zip(states, in_lockstep(name), strict=True):
        assert len(found.run_state.totals) == STEPS
        assert found.run_state.totals == expected.run_state.totals
        for index, register in enumerate(found.program.registers):
            if register.initial:
                views = (one.arena.views[index][0] for one in (found, expected))
                np.testing.assert_array_equal(*views, err_msg=register.name)


def test_plans_that_are_trained_have_slots_that_begin_anew_every_step() -> None:
    """Where slots do not divide microbatches, the protocol's go on and the buffer's do not."""
    _, graph = plans()["gpt: pp"]()
    assert any(
        actor.firings // port.hold % program.registers[port.register].slots
        for program in graph.programs
        for actor in program.actors
        for port in actor.outputs
    )


def test_the_same_seed_gives_the_same_order_and_another_another() -> None:
    graph = random_actor_graph(3)
    buffer = command_buffer(graph, range(graph.ranks))

    def order(seed: int) -> list[tuple[Command, ...]]:
        found: list[tuple[Command, ...]] = []
        interpret(buffer, lambda commands: found.append(tuple(commands)), seed=seed, steps=2)
        return found

    assert order(1) == order(1)
    assert len({tuple(order(seed)) for seed in range(8)}) > 1


def test_a_buffer_that_cannot_go_on_tells_who_waits_for_what() -> None:
    graph = one_producer(slots=1, firings=2)
    buffer = command_buffer(graph, (0,))
    stuck = changed(buffer, 0, lambda one: one._replace(waits=(3,)))
    with pytest.raises(ExecutorError) as caught:
        interpret(stuck, lambda commands: None, seed=0, steps=1)
    story = (
        "no command can begin",
        "rank 0 stream `compute`: 0 (actor 0 firing 0)",
        " waits for an event behind 3 of stream `copy`",
        "rank 0 stream `copy`: 1 (actor 1 firing 0)",
        " waits for an event behind 0 of stream `compute`",
    )
    assert str(caught.value) == "{}\n{}{}\n{}{}".format(*story)


def test_an_event_that_is_not_recorded_never_comes() -> None:
    graph = one_producer(slots=1, firings=1)
    (commands,) = command_buffer(graph, (0,)).steps
    silent = CommandBuffer(
        ranks=(0,),
        streams=(("compute", "copy"),),
        steps=((commands[0]._replace(records=False), commands[1]),),
    )
    with pytest.raises(ExecutorError, match="stream `compute`, which records none"):
        interpret(silent, lambda commands: None, seed=0, steps=1)


def test_members_begin_together() -> None:
    graph = two_sends("ab", "ab")
    buffer = command_buffer(graph, (0, 1))
    met: list[list[int]] = []
    interpret(buffer, lambda commands: met.append([c.rank for c in commands]), seed=5, steps=1)
    assert [ranks for ranks in met if len(ranks) > 1] == [[0, 1], [0, 1]]
