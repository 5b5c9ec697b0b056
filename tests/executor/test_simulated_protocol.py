"""The protocol and the transport on simulated ranks and links: seeded runs, deaths, mutants."""

from itertools import pairwise

import pytest

from benchmarks.executor.simulated.graphs import meeting_graph_of
from benchmarks.executor.simulated.run import SeededRun
from millrace.executor.transport.meeting_pieces import PartShape, Party
from millrace.executor.transport.meeting_protocol import MeetingProtocol
from millrace.executor.transport.routes import Do, route
from millrace.planner.errors import ProtocolError

RUNS, DEATHS = range(220), range(1000, 1080)


def test_random_runs_end_with_every_message_and_the_values_of_one_process() -> None:
    outcomes = [SeededRun(meeting_graph_of(seed), seed).run() for seed in RUNS]
    assert all(outcome.finished for outcome in outcomes)
    assert {outcome.ranks for outcome in outcomes} == {2, 3, 4, 6, 8}
    assert {outcome.hosts for outcome in outcomes} == {1, 2, 3, 4}
    assert sum(outcome.messages for outcome in outcomes) > 10_000


def test_survivors_of_a_rank_that_dies_end_and_make_no_false_progress() -> None:
    outcomes = [SeededRun(meeting_graph_of(seed), seed, dies=True).run() for seed in DEATHS]
    assert sum(outcome.died is not None for outcome in outcomes) > len(DEATHS) // 2
    assert not any(outcome.finished for outcome in outcomes if outcome.died is not None)


@pytest.mark.parametrize("dies", [False, True])
def test_a_seed_gives_one_trace(dies: bool) -> None:
    graph = meeting_graph_of(3)
    first, again = (SeededRun(graph, 3, dies=dies).run() for _ in range(2))
    assert first == again
    assert first.digest != SeededRun(graph, 4, dies=dies).run().digest


def party(
    position: int, hosts: tuple[int, ...], size: int = 2**20, kind: str = "all_reduce"
) -> Party:
    return Party(
        kind=kind,
        reduction="sum",
        position=position,
        hosts=hosts,
        scatter_dims=(None,),
        gather_dims=(None,),
        shapes=(PartShape((size,), (size,), 4),),
    )


def sent_bytes(hosts: tuple[int, ...]) -> dict[int, int]:
    """Bytes that an all_reduce of 4 MiB sends over the network, by host."""
    sent = dict.fromkeys(hosts, 0)
    for position, host in enumerate(hosts):
        for step in route(party(position, hosts)):
            if step.do is Do.SEND:
                source = step.sources[0]
                (length,) = source.shape or (region.stop - region.start for region in source.region)
                sent[host] += length * 4
    return sent


def test_an_all_reduce_crosses_the_network_twice_for_each_host_however_many_ranks_it_has() -> None:
    once = dict.fromkeys((0, 1), 2**22)
    assert sent_bytes((0, 1)) == sent_bytes((0, 0, 1, 1)) == sent_bytes((0,) * 4 + (1,) * 4) == once
    assert sent_bytes((0, 0, 0)) == {0: 0}


def test_words_go_to_those_alone_who_wait_for_them() -> None:
    def words(position: int, hosts: tuple[int, ...], kind: str) -> list[tuple[str, str, object]]:
        steps = route(party(position, hosts, kind=kind))
        spoken = [step for step in steps if step.do in (Do.TELL, Do.HEAR)]
        return [(step.do.name, step.word.name, step.peers) for step in spoken]

    assert words(0, (0, 0), "send") == [("TELL", "CAME", (1,)), ("HEAR", "READ", (1,))]
    assert words(1, (0, 0), "recv") == [("HEAR", "CAME", (0,)), ("TELL", "READ", (0,))]
    assert words(0, (0, 1), "send") == words(1, (0, 1), "recv") == []
    assert words(1, (0, 0, 0), "rotate") == [
        ("TELL", "CAME", (2,)),
        ("HEAR", "CAME", (0,)),
        ("TELL", "READ", (0,)),
        ("HEAR", "READ", (2,)),
    ]


def test_messages_between_two_members_begin_in_the_order_of_the_route() -> None:
    steps = route(party(0, (0, 1, 2)))
    streams: dict[tuple[Do, int, int], list[int]] = {}
    for number, step in enumerate(steps):
        if step.do in (Do.SEND, Do.RECEIVE):
            streams.setdefault((step.do, step.peers[0], step.stream), []).append(number)
    assert len(streams) == 8
    for numbers in streams.values():
        assert steps[numbers[0]].after == -1
        assert all(steps[after].after == before for before, after in pairwise(numbers))


def test_what_cannot_be_over_is_refused() -> None:
    protocol = MeetingProtocol({7: route(party(0, (0, 1)))})
    (*_, begin) = protocol.posted(7)
    with pytest.raises(ProtocolError, match="posted again"):
        protocol.posted(7)
    protocol.over(*begin)
    with pytest.raises(ProtocolError, match=f"step {begin.step} was over"):
        protocol.over(*begin)
