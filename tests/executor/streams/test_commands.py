"""Commands that a host issues: they keep the protocol's order, no wait too few, none too many."""

from math import gcd

import pytest

from millrace.executor.errors import ExecutorError
from millrace.executor.streams import Command, command_buffer, validate
from millrace.planner.actors.graph import ActorGraph
from tests.actor_graphs import random_actor_graph
from tests.executor.streams.buffers import actor as an_actor
from tests.executor.streams.buffers import graph, one_producer, program, register, two_sends

SEEDS = range(40)


def every_rank(actor_graph: ActorGraph) -> range:
    return range(actor_graph.ranks)


def test_buffers_of_random_graphs_are_valid_for_one_rank_and_for_all() -> None:
    complaints = []
    for seed in SEEDS:
        actor_graph = random_actor_graph(seed)
        joint = every_rank(actor_graph)
        for ranks in (*((rank,) for rank in joint), joint):
            try:
                validate(actor_graph, command_buffer(actor_graph, ranks))
            except ExecutorError as error:
                complaints.append((seed, ranks, str(error)))
    assert complaints == []


def test_a_filled_input_and_a_free_slot_are_waits_and_stream_order_is_none() -> None:
    actor_graph = one_producer(slots=2, firings=4)
    (commands,) = command_buffer(actor_graph, (0,)).steps
    by_firing = {(command.actor, command.firing): command for command in commands}
    numbers = {(command.actor, command.firing): number for number, command in enumerate(commands)}
    for firing in range(4):
        assert by_firing[1, firing].waits == (numbers[0, firing],)
        assert by_firing[1, firing].reads == (firing % 2,)
        expected = (numbers[1, firing - 2],) if firing >= 2 else ()
        assert by_firing[0, firing].waits == expected
        assert by_firing[0, firing].writes == (firing % 2,)


def test_what_other_waits_imply_is_not_waited_for() -> None:
    """c reads what a and b make, and b has waited for a."""
    registers = (register("x", 0), register("y", 1))
    actors = (
        an_actor("a", (0,), (), (0,)),
        an_actor("b", (1,), (0,), (1,)),
        an_actor("c", (2,), (0, 1)),
    )
    actor_graph = graph(program(0, registers, actors, {"one": "a", "two": "b", "three": "c"}))
    (commands,) = command_buffer(actor_graph, (0,)).steps
    assert [command.waits for command in commands] == [(), (0,), (1,)]
    assert [command.records for command in commands] == [True, True, False]


@pytest.mark.parametrize("launched", ["ab", "ba"])
def test_meetings_are_issued_in_the_order_of_the_launch_queue(launched: str) -> None:
    actor_graph = two_sends(launched, launched)
    for ranks in ((0,), (1,), (0, 1)):
        (commands,) = command_buffer(actor_graph, ranks).steps
        names = [
            actor_graph.programs[command.rank].actors[command.actor].name
            for command in commands
            if command.meets
        ]
        assert "".join(dict.fromkeys(name[0] for name in names)) == launched
    members = [number for number, command in enumerate(commands) if command.meets]
    assert [commands[number].meets for number in members] == [tuple(members[:2])] * 2 + [
        tuple(members[2:])
    ] * 2


def test_launch_orders_that_contradict_each_other_are_refused() -> None:
    """The protocol gets by, for there are two lanes; devices could wait for each other."""
    actor_graph = two_sends("ab", "ba")
    for ranks in ((0,), (0, 1)):
        with pytest.raises(
            ExecutorError, match=r"contradict each other, among them `a\.send` of rank 0, `b"
        ):
            command_buffer(actor_graph, ranks)


@pytest.mark.parametrize(
    ("slots", "firings", "initial"), [(2, 1, 1), (3, 2, 1), (4, 2, 3), (3, 3, 2)]
)
def test_slots_of_what_a_step_finds_go_on_from_step_to_step(
    slots: int, firings: int, initial: int
) -> None:
    actor_graph = one_producer(slots=slots, firings=firings, initial=initial)
    buffer = validate(actor_graph, command_buffer(actor_graph, (0,)))
    assert buffer.period == slots // gcd(slots, firings)
    reads = [command.reads[0] for step in buffer.steps for command in step if command.actor == 1]
    assert reads == [number % slots for number in range(buffer.period * firings)]
    writes = [command.writes[0] for step in buffer.steps for command in step if command.actor == 0]
    assert writes == [(number + initial) % slots for number in range(buffer.period * firings)]


def test_what_no_step_finds_begins_in_slot_0() -> None:
    actor_graph = one_producer(slots=2, firings=3)
    assert command_buffer(actor_graph, (0,)).period == 1


def test_a_rank_that_is_not_there_is_refused() -> None:
    actor_graph = one_producer(slots=1, firings=1)
    for ranks in ((1,), (-1,), ()):
        with pytest.raises(ExecutorError, match="expected some of the 1 ranks of `by hand`"):
            command_buffer(actor_graph, ranks)


def test_an_actor_in_two_streams_is_refused() -> None:
    actors = (an_actor("a", (0, 1)),)
    actor_graph = graph(program(0, (), actors, {"one": "a", "two": "a"}))
    with pytest.raises(ExecutorError, match=r"actor `a`: expected one queue .* \['one', 'two'\]"):
        command_buffer(actor_graph, (0,))


def test_the_same_graph_gives_the_same_buffer() -> None:
    actor_graph = random_actor_graph(3)
    first, second = (command_buffer(actor_graph, every_rank(actor_graph)) for _ in range(2))
    assert first == second
    assert isinstance(first.steps[0][0], Command)
