"""The protocol: when an actor fires, on which slots, and what it waits for."""

import pytest

from millrace.planner.actors.graph import Leave
from millrace.planner.actors.protocol import ActorProtocol, Fire
from millrace.planner.actors.validate import validate
from millrace.planner.errors import ProtocolError
from tests.planner.actors.nets import actor, chain, graph, program, queue, register


def test_a_producer_runs_ahead_by_its_slots_and_no_further():
    protocol = ActorProtocol(chain(firings=4, slots=2))
    assert protocol.start() == [Fire(0, 0, (), (0,))]
    assert protocol.issued(0) == []
    assert protocol.completed(0) == [Fire(0, 1, (), (1,)), Fire(1, 0, (0,), ())]
    assert protocol.completed(0) == []
    assert sorted(protocol.completed(1)) == [Fire(0, 2, (), (0,)), Fire(1, 1, (1,), ())]


def test_a_producer_writes_beside_the_version_that_is_there_before_the_first_step():
    net = program(
        [register("w", slots=2, initial=1)],
        [actor("read", (0,), (0,), firings=2), actor("write", (1,), (), (0,), firings=2)],
        [queue("a", [0, 0]), queue("b", [1, 1])],
    )
    protocol = ActorProtocol(net)
    assert sorted(protocol.start()) == [Fire(0, 0, (0,), ()), Fire(1, 0, (), (1,))]
    assert protocol.completed(1) == []
    assert sorted(protocol.completed(0)) == [Fire(0, 1, (1,), ()), Fire(1, 1, (), (0,))]


def test_what_no_actor_writes_is_there_for_every_step():
    net = program(
        [register("frozen", initial=1)],
        [actor("read", (0,), ((0, 2),), firings=2)],
        [queue("compute", [0, 0])],
    )
    validate(graph(net))
    protocol = ActorProtocol(net, steps=2)
    fires = protocol.start()
    for _ in range(4):
        assert [fire.reads for fire in fires] == [(0,)]
        assert not protocol.waits()
        fires = protocol.completed(0)
    assert protocol.finished


def test_a_slot_comes_back_only_when_every_consumer_has_read_it():
    net = program(
        [register("x")],
        [
            actor("make", (0,), (), (0,), firings=2),
            actor("one", (1,), (0,), firings=2),
            actor("two", (2,), (0,), firings=2),
        ],
        [queue("a", [0, 0]), queue("b", [1, 1]), queue("c", [2, 2])],
    )
    protocol = ActorProtocol(net)
    protocol.start()
    assert [f.actor for f in protocol.completed(0)] == [1, 2]
    assert protocol.completed(1) == []
    assert protocol.completed(2) == [Fire(0, 1, (), (0,))]


def test_a_held_version_serves_several_firings_and_is_published_once():
    """One version a step is read by three firings; their sum is one version again."""
    net = program(
        [register("w", initial=1), register("sum")],
        [
            actor("read", (0,), ((0, 3),), ((1, 3),), firings=3),
            actor("update", (0,), (1,), (0,)),
        ],
        [queue("compute", [0, 0, 0, 1])],
    )
    protocol = ActorProtocol(net, steps=2)
    fires = protocol.start()
    seen = []
    while fires:
        (fire,) = fires
        seen.append((fire.actor, fire.firing, fire.reads, fire.writes))
        assert protocol.issued(fire.actor) == []
        fires = protocol.completed(fire.actor)
    one_step = [(0, (0,), (0,))] * 3 + [(1, (0,), (0,))]
    assert [(a, r, w) for a, _, r, w in seen] == one_step * 2
    assert protocol.finished


def test_an_actor_waits_for_its_turn_in_every_queue():
    net = program(
        [register("x"), register("y")],
        [actor("late", (0, 1), (), (0,)), actor("early", (1, 2), (), (1,))],
        [queue("lane", [0]), queue("launch", [1, 0], Leave.ISSUED), queue("own", [1])],
    )
    protocol = ActorProtocol(net)
    assert [f.actor for f in protocol.start()] == [1]
    (wait,) = [w for w in protocol.waits() if w.actor == 0]
    assert (wait.reason, wait.what, wait.on) == ("queue", "launch", 1)
    assert [f.actor for f in protocol.issued(1)] == [0]


def test_completing_what_was_not_fired_is_refused():
    protocol = ActorProtocol(chain())
    with pytest.raises(ProtocolError, match="`use` completed firing 0 before it was fired"):
        protocol.completed(1)


def test_waits_name_the_register_and_the_actor_behind_it():
    protocol = ActorProtocol(chain())
    (wait,) = protocol.waits() if protocol.start() else []
    assert (wait.reason, wait.what, wait.on) == ("input", "x", 0)
