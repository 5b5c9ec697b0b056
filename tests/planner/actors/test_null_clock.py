"""The null clock runs live nets to their end, and names the cycle of those that are not."""

import pytest

from millrace.planner.actors.graph import Leave
from millrace.planner.actors.null_clock import run_to_completion
from millrace.planner.actors.validate import validate
from millrace.planner.errors import ProtocolError
from tests.planner.actors.nets import actor, chain, end, graph, program, queue, register


def test_a_chain_runs_to_its_end():
    assert run_to_completion(graph(chain(firings=5, slots=1)), steps=3) == 30


def test_too_few_slots_are_refused_with_the_waiting_cycle():
    """The consumer wants two versions before it gives one back: one slot cannot serve it."""
    net = program(
        [register("x", slots=1), register("y")],
        [
            actor("make", (0,), (), (0,), firings=2),
            actor("keep", (1,), (0,), firings=2),
            actor("first", (1,), (), (1,)),
            actor("late", (2,), ((0, 1), (1, 2)), firings=2),
        ],
        [queue("a", [0, 0]), queue("b", [1, 1, 2]), queue("c", [3, 3])],
    )
    with pytest.raises(ProtocolError, match=r"free slot of `x`, held by `late`") as caught:
        run_to_completion(graph(net))
    assert "deadlocks" in str(caught.value)
    wider = program([register("x", slots=2), net.registers[1]], net.actors, net.queues)
    assert run_to_completion(graph(wider)) == 7


def opposite(first, second):
    """Two ranks that meet twice, over two communicators, each with its own order of launches."""
    programs = []
    for rank, order in ((0, first), (1, second)):
        kinds = ("send", "recv") if rank == 0 else ("recv", "send")
        actors = [
            actor(f"{kinds[0]} a", (0, 2), (), (0,), meeting=end(kinds[0], 1 - rank, "a")),
            actor(f"{kinds[1]} b", (1, 2), (), (1,), meeting=end(kinds[1], 1 - rank, "b")),
        ]
        queues = [queue("lane a", [0]), queue("lane b", [1]), queue("launch", order)]
        programs.append(program([register("x"), register("y")], actors, queues, stage=rank))
    return graph(*programs)


def test_two_communicators_in_opposite_order_are_refused():
    """A then B here, B then A there: with kernels that occupy the device this hangs for ever."""
    assert run_to_completion(opposite([0, 1], [0, 1])) == 4
    with pytest.raises(ProtocolError, match="deadlocks") as caught:
        run_to_completion(opposite([0, 1], [1, 0]))
    message = str(caught.value)
    for part in ("meets", "`launch`", "stage 0", "stage 1"):
        assert part in message


def test_a_cycle_through_two_ranks_is_refused():
    """Each rank computes only after it has received, and sends only what it has computed."""
    programs = []
    for rank in (0, 1):
        actors = [
            actor("compute", (0,), (0,), (1,)),
            actor("recv", (1, 3), (), (0,), meeting=end("recv", 1 - rank, f"to {rank}")),
            actor("send", (2, 3), (1,), (), meeting=end("send", 1 - rank, f"to {1 - rank}")),
        ]
        queues = [
            queue("compute", [0]),
            queue("in", [1]),
            queue("out", [2]),
            queue("launch", [1, 2], Leave.ISSUED),
        ]
        programs.append(program([register("x"), register("y")], actors, queues, stage=rank))
    net = validate(graph(*programs))
    with pytest.raises(ProtocolError, match="deadlocks") as caught:
        run_to_completion(net)
    message = str(caught.value)
    for part in ("needs `x` from `recv`", "meets `send`", "needs `y` from `compute`"):
        assert part in message


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (
            program(
                [register("x")],
                [actor("a", (0,), (), (0,)), actor("b", (0,), (), (0,))],
                [queue("q", [0, 1])],
            ),
            "`x` .* has two producers",
        ),
        (
            program([register("x")], [actor("a", (0,), (0,))], [queue("q", [0])]),
            "`x` .*, read by `a`, has no producer",
        ),
        (
            program(
                [register("x")],
                [actor("a", (0,), (), (0,), firings=2), actor("b", (0,), (0,))],
                [queue("q", [0, 0, 1])],
            ),
            "produced 2 times a step, but `b` reads 1",
        ),
        (
            program([], [actor("a", (0,))], [queue("q", [0, 0])]),
            "lists `a` 2 times a step, expected 1",
        ),
        (
            program([], [actor("a", (0,))], [queue("q", [0], Leave.ISSUED)]),
            "no queue that waits for completion",
        ),
        (
            program([register("x", slots=0)], [actor("a", (0,), (), (0,))], [queue("q", [0])]),
            "`x` .* has 0 slots",
        ),
        (
            program([], [actor("a", (0,), meeting=end("send", 0, "k"))], [queue("q", [0])]),
            None,
        ),
    ],
)
def test_malformed_graphs_are_refused_by_name(net, message):
    if message is None:
        validate(graph(net))
        return
    with pytest.raises(ProtocolError, match=message):
        validate(graph(net))
