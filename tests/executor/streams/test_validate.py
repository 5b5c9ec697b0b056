"""A buffer that does not keep the protocol's order is refused, and told why."""

import dataclasses
from typing import Any

import pytest
from msgspec.structs import replace

from millrace.executor.errors import ExecutorError
from millrace.executor.streams import command_buffer, validate
from tests.executor.streams.buffers import one_producer, two_sends, with_command

GRAPH = one_producer(slots=1, firings=2)
BUFFER = command_buffer(GRAPH, (0,))  # make, take, make, take
NAMES = ["make", "take", "make", "take"]


def test_the_example_is_what_it_is_said_to_be() -> None:
    (commands,) = validate(GRAPH, BUFFER).steps
    assert [GRAPH.programs[0].actors[command.actor].name for command in commands] == NAMES
    assert [command.waits for command in commands] == [(), (0,), (1,), (2,)]


@pytest.mark.parametrize(
    ("number", "changes", "said"),
    [
        (1, {"waits": ()}, "`take`: .*may begin before `make` firing 0"),
        (2, {"waits": ()}, "`make`: .*may begin before `take` firing 0"),
        (1, {"waits": (2,)}, "waits for command 2, not issued yet"),
        (2, {"waits": (0,)}, "waits for other streams .* 0, `make` firing 0"),
        (1, {"reads": (1,)}, r"expected .*\(0,\), \(\)\), found"),
        (1, {"firing": 1}, "expected .stream, firing, reads, writes."),
        (1, {"actor": 0}, "queue `compute` is not issued in its order"),
        (1, {"meets": (1,)}, r"expected to meet \[\] .rank, key, firing."),
    ],
)
def test_a_command_that_is_changed_is_named(
    number: int, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ExecutorError, match=said):
        validate(GRAPH, with_command(BUFFER, number, lambda command: command._replace(**changes)))


def test_an_event_that_nobody_records_is_named() -> None:
    (commands,) = BUFFER.steps
    silent = (commands[0]._replace(records=False), *commands[1:])
    with pytest.raises(ExecutorError, match="records is False, but another stream waits for it"):
        validate(GRAPH, dataclasses.replace(BUFFER, steps=(silent,)))


def test_a_command_that_is_missing_is_named() -> None:
    buffer = dataclasses.replace(BUFFER, steps=(BUFFER.steps[0][:-1],))
    with pytest.raises(ExecutorError, match="records is True, but another stream does not wait"):
        validate(GRAPH, buffer)


def test_a_queue_is_kept_to_from_its_first_place_to_its_last() -> None:
    program = GRAPH.programs[0]
    queue = program.queues[0]
    longer = replace(queue, order=(*queue.order, queue.order[0]))
    other = replace(program, queues=(longer, *program.queues[1:]))
    with pytest.raises(ExecutorError, match=f"`{queue.name}` is not issued in its order"):
        validate(replace(GRAPH, programs=(other,)), BUFFER)


def test_members_that_meet_others_are_named() -> None:
    actor_graph = two_sends("ab", "ab")
    buffer = command_buffer(actor_graph, (0, 1))
    number = next(index for index, command in enumerate(buffer.steps[0]) if command.meets)
    alone = with_command(buffer, number, lambda command: command._replace(meets=(number,)))
    with pytest.raises(ExecutorError, match="expected to meet"):
        validate(actor_graph, alone)


def test_streams_of_other_names_are_refused() -> None:
    with pytest.raises(ExecutorError, match="expected the streams"):
        validate(GRAPH, dataclasses.replace(BUFFER, streams=(("copy", "compute"),)))
