"""No two commands of a plan get in each other's way, and every wait is there for a reason."""

import pytest
from msgspec.structs import replace

from millrace.executor.streams import Race, command_buffer, find_races
from millrace.planner.actors.graph import HOST, ActorGraph, Program
from tests.actor_graphs import random_actor_graph
from tests.executor.streams.buffers import (
    LINE_BYTES,
    actor,
    graph,
    one_producer,
    program,
    register,
    waits_of,
    with_command,
    without,
)

SEEDS = range(40)


def test_random_graphs_have_no_races() -> None:
    graphs = {seed: random_actor_graph(seed) for seed in SEEDS}
    races = {
        seed: find_races(actor_graph, command_buffer(actor_graph, range(actor_graph.ranks)))
        for seed, actor_graph in graphs.items()
    }
    assert not any(races.values()), races


@pytest.mark.parametrize(("slots", "firings", "initial"), [(2, 1, 1), (3, 2, 1), (4, 2, 3)])
def test_what_one_step_leaves_to_the_next_is_whole(slots: int, firings: int, initial: int) -> None:
    actor_graph = one_producer(slots=slots, firings=firings, initial=initial)
    assert find_races(actor_graph, command_buffer(actor_graph, (0,))) == []


def test_without_any_one_wait_a_random_graph_has_a_race() -> None:
    unnoticed = []
    for seed in SEEDS:
        actor_graph = random_actor_graph(seed)
        for rank_program in actor_graph.programs:
            buffer = command_buffer(actor_graph, rank_program.ranks[:1])
            for number, wait in waits_of(buffer):
                races = find_races(actor_graph, without(buffer, number, wait))
                if not any(number in race.commands for race in races):
                    unnoticed.append((seed, rank_program.name, number, wait))
    assert unnoticed == []


def shared(kind: str = "activation") -> ActorGraph:
    """Graph of x and y in one place: x is made and read before y is, on another stream."""
    registers = tuple(
        replace(register(name, line), memory_kind=kind)
        for name, line in (("x", 0), ("y", 0), ("z", 1))
    )
    actors = (
        actor("a", (0,), (), (0,)),
        actor("b", (1,), (0,), (2,)),
        actor("c", (0,), (2,), (1,)),
        actor("d", (0,), (1,)),
    )
    return graph(program(0, registers, actors, {"compute": "acd", "copy": "b"}))


def races_without(actor_graph: ActorGraph, number: int) -> list[Race]:
    buffer = command_buffer(actor_graph, (0,))
    return find_races(
        actor_graph, with_command(buffer, number, lambda command: command._replace(waits=()))
    )


def test_a_place_that_two_registers_share_in_turn_is_no_race() -> None:
    assert find_races(shared(), command_buffer(shared(), (0,))) == []


def test_a_race_tells_who_does_what_where() -> None:
    """c no longer waits for b: it may overwrite x, and read z before it is there."""
    shares, reads = races_without(shared(), 2)
    assert shares.message == (
        "rank 0: `b` firing 0 reads slot 0 of `x` and `c` firing 0 writes slot 0 of `y`, "
        "bytes 0 to 64 of the device's arena: neither streams nor waits order them"
    )
    assert (shares.commands, shares.registers, shares.host) == ((1, 2), ("x", "y"), False)
    assert (reads.registers, reads.start_bytes, reads.end_bytes) == (("z", "z"), 64, 128)


def test_host_memory_is_an_arena_of_its_own() -> None:
    assert {race.host for race in races_without(shared(HOST), 2)} == {True}
    apart = shared()
    (rank_program,) = apart.programs
    moved = replace(rank_program.registers[1], memory_kind=HOST)
    registers = (rank_program.registers[0], moved, rank_program.registers[2])
    apart = replace(apart, programs=(replace(rank_program, registers=registers),))
    assert [race.registers for race in races_without(apart, 2)] == [("z", "z")]


def moved(actor_graph: ActorGraph, which: int, offset_bytes: int) -> ActorGraph:
    """The graph with one register of its first program elsewhere."""
    rank_program = actor_graph.programs[0]
    registers = list(rank_program.registers)
    registers[which] = replace(registers[which], offset_bytes=offset_bytes)
    return replace(
        actor_graph,
        programs=(replace(rank_program, registers=tuple(registers)), *actor_graph.programs[1:]),
    )


def test_an_order_that_overwrites_what_is_still_to_be_read_is_found() -> None:
    """All on one stream: nothing races, but c reads what b has put in the place of x."""
    actors = (actor("a", (0,), (), (0,)), actor("b", (0,), (), (1,)), actor("c", (0,), (0,)))
    actor_graph = graph(
        program(0, (register("x", 0), register("y", 1)), actors, {"compute": "abc"})
    )
    assert find_races(actor_graph, command_buffer(actor_graph, (0,))) == []
    actor_graph = moved(actor_graph, 1, LINE_BYTES // 2)
    (race,) = find_races(actor_graph, command_buffer(actor_graph, (0,)))
    assert race.message == (
        "rank 0: `b` firing 0 writes slot 0 of `y` and `c` firing 0 reads slot 0 of `x`, "
        "bytes 32 to 64 of the device's arena: expected there: what `a` firing 0 made"
    )


def test_a_command_must_not_read_what_it_overwrites_unless_it_updates_in_place() -> None:
    actors = (actor("a", (0,), (), (0,)), actor("b", (0,), (0,), (1,)))
    registers = (register("x", 0), register("y", 1))
    actor_graph = graph(program(0, registers, actors, {"compute": "ab"}))
    actor_graph = moved(actor_graph, 1, 0)
    (race,) = find_races(actor_graph, command_buffer(actor_graph, (0,)))
    assert race.commands == (1, 1)


def variable(order: str) -> Program:
    """Program that makes x twice a step; an update reads it and writes the variable in place."""
    registers = (register("w", 0, initial=1), register("x", 1), register("s", 2, initial=1))
    actors = (
        actor("a", (0,), (0,), (1,)),
        replace(actor("update", (0,), (1,), (0,)), in_place=True, state=(2,)),
    )
    return program(0, registers, actors, {"compute": order})


def test_an_update_in_place_is_no_race_and_what_the_next_step_finds_is_kept() -> None:
    actor_graph = graph(variable("au"))
    assert find_races(actor_graph, command_buffer(actor_graph, (0,))) == []
    over_state = moved(actor_graph, 1, 2 * LINE_BYTES)
    messages = [race.message for race in find_races(over_state, command_buffer(over_state, (0,)))]
    assert any("expected there: what the step before made" in message for message in messages)


def test_a_variable_that_is_overwritten_after_its_update_is_missed_by_the_next_step() -> None:
    registers = (register("w", 0, initial=1), register("x", 1))
    actors = (
        actor("read", (0,), (0,)),
        replace(actor("update", (0,), (), (0,)), in_place=True),
        actor("make", (0,), (), (1,)),
    )
    actor_graph = graph(program(0, registers, actors, {"compute": "rum"}))
    assert find_races(actor_graph, command_buffer(actor_graph, (0,))) == []
    actor_graph = moved(actor_graph, 1, 0)
    (race,) = find_races(actor_graph, command_buffer(actor_graph, (0,)))
    assert race.message == (
        "rank 0: `make` firing 0 writes slot 0 of `x` and the step after reads slot 0 of `w`, "
        "bytes 0 to 64 of the device's arena: expected there: what `update` firing 0 made"
    )


def test_bytes_that_nobody_wrote_are_named() -> None:
    """A register that is updated in place, but never begun."""
    registers = (register("x", 0),)
    actors = (replace(actor("a", (0,), (), (0,)), in_place=True), actor("b", (0,), (0,)))
    actor_graph = graph(program(0, registers, actors, {"compute": "ab"}))
    (race,) = find_races(actor_graph, command_buffer(actor_graph, (0,)))
    assert race.message == (
        "rank 0: `a` firing 0 reads slot 0 of `x`, bytes 0 to 64 of the device's arena: "
        "there is no version yet that it could read"
    )
