"""In whatever order streams and waits leave, a step computes the same bits."""

from collections import Counter

import pytest

from millrace.executor.errors import ExecutorError
from millrace.executor.streams import Command, CommandBuffer, command_buffer, interpret
from millrace.planner.actors.graph import ActorGraph
from tests.actor_graphs import random_actor_graph
from tests.executor.streams.buffers import (
    FiredBy,
    one_producer,
    two_sends,
    waits_of,
    with_command,
    without,
)
from tests.in_process import execute_lockstep
from tests.test_agreement import CheckedMemory


def remembered(
    graph: ActorGraph, buffer: CommandBuffer, seed: int, steps: int = 1
) -> CheckedMemory:
    memory = CheckedMemory(graph)
    interpret(buffer, FiredBy(memory), seed=seed, steps=steps)
    return memory


def test_random_graphs_show_the_firings_slots_and_contents_of_the_protocol() -> None:
    for seed in range(40):
        graph = random_actor_graph(seed)
        expected = CheckedMemory(graph)
        execute_lockstep(graph, 1, expected, expected.meet)
        buffer = command_buffer(graph, range(graph.ranks))
        for drawn in range(4):
            memory = remembered(graph, buffer, drawn)
            assert memory.records == expected.records, (seed, drawn)
            assert memory.slots == expected.slots, (seed, drawn)


@pytest.mark.parametrize(("slots", "firings", "initial"), [(2, 1, 1), (3, 2, 1), (4, 2, 3)])
def test_slots_that_go_on_from_step_to_step_are_the_protocols(
    slots: int, firings: int, initial: int
) -> None:
    graph = one_producer(slots=slots, firings=firings, initial=initial)
    expected = CheckedMemory(graph)
    execute_lockstep(graph, 7, expected, expected.meet)
    memory = remembered(graph, command_buffer(graph, (0,)), 1, steps=7)
    assert memory.records == expected.records
    assert memory.slots == expected.slots


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


def test_the_same_seed_gives_the_same_order_and_another_another() -> None:
    graph = random_actor_graph(3)
    buffer = command_buffer(graph, range(graph.ranks))

    def order(seed: int) -> list[tuple[Command, ...]]:
        issued: list[tuple[Command, ...]] = []
        interpret(buffer, lambda commands: issued.append(tuple(commands)), seed=seed, steps=2)
        return issued

    assert order(1) == order(1)
    assert len({tuple(order(seed)) for seed in range(8)}) > 1


def test_a_buffer_that_cannot_go_on_tells_who_waits_for_what() -> None:
    graph = one_producer(slots=1, firings=2)
    buffer = command_buffer(graph, (0,))
    stuck = with_command(buffer, 0, lambda command: command._replace(waits=(3,)))
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
