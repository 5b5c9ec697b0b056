"""Standstill: the rank that is stuck is named, whichever it is, and not those that wait for it."""

import os
import random
from collections import deque
from pathlib import Path

import numpy as np
import pytest

from millrace.executor.errors import ExecutorError
from millrace.executor.probes.probe_graphs import group_graph
from millrace.executor.supervision.rank_board import (
    BoardReader,
    RankBoard,
    RankStanding,
    board_path,
    note_stopped,
)
from millrace.executor.supervision.stall_watch import StallLimit, StallWatch
from millrace.executor.supervision.standstill import StandstillFinder
from millrace.planner.actors.graph import ActorGraph
from millrace.planner.actors.protocol import ActorProtocol, Fire
from millrace.planner.actors.rendezvous import Rendezvous
from millrace.planner.compile import compile_plan
from tests.millrace.plans import data_parallel_pipeline

GRAPH = group_graph(2, 2)


def frozen_run(
    graph: ActorGraph, stuck: int, after: int, seed: int
) -> tuple[dict[int, RankStanding], list[float], str]:
    """Standings of all ranks when one is stuck in a local firing and the others can go no further.

    Also seconds since each came further (a firing takes one), and the actor that is stuck.
    """
    rng = random.Random(seed)
    programs = [graph.programs[graph.program_of(rank)] for rank in range(graph.ranks)]
    protocols = [ActorProtocol(program, 3) for program in programs]
    begun = [np.zeros(len(program.actors), np.int64) for program in programs]
    completed = [np.zeros(len(program.actors), np.int64) for program in programs]
    last = [0.0] * graph.ranks
    rendezvous = Rendezvous(graph, folded=False)
    ready: deque[tuple[int, Fire]] = deque()
    now, left, stuck_in = 0.0, after, ""

    def dispatch(rank: int, fires: list[Fire]) -> None:
        for fire in fires:
            ready.append((rank, fire))
            fires.extend(protocols[rank].issued(fire.actor))

    def complete(rank: int, actor: int) -> None:
        completed[rank][actor] += 1
        last[rank] = now
        dispatch(rank, protocols[rank].completed(actor))

    for rank, protocol in enumerate(protocols):
        dispatch(rank, protocol.start())
    while ready:
        ready.rotate(rng.randrange(len(ready)))
        rank, fire = ready.popleft()
        now += 1.0
        begun[rank][fire.actor] += 1
        actor = programs[rank].actors[fire.actor]
        if actor.meeting is not None:
            arrived = rendezvous.arrive(rank, fire.actor, fire.firing)
            for member, index in arrived or ():
                complete(member, index)
        elif rank == stuck and left == 0:
            stuck_in, left = actor.name, -1
        else:
            left -= rank == stuck and left > 0
            complete(rank, fire.actor)
    standings = {
        rank: RankStanding(
            1, int(completed[rank].sum()), False, False, begun[rank], completed[rank]
        )
        for rank in range(graph.ranks)
    }
    return standings, [now - then for then in last], stuck_in


@pytest.mark.parametrize("stuck", range(4))
def test_the_rank_that_is_stuck_is_named_and_not_those_that_wait_for_it(stuck: int) -> None:
    graph = compile_plan(data_parallel_pipeline())
    finder = StandstillFinder(graph)
    for seed in range(40):
        standings, silence_s, actor = frozen_run(graph, stuck, after=seed, seed=seed)
        standstill = finder.standstill(standings, silence_s, ())
        assert (standstill.rank, standstill.actor) == (stuck, actor)
        assert standstill.cause == "it computes"
        assert standstill.place(10).endswith(f"step {(standstill.step or 0) + 11}")


def test_a_stopped_process_is_named_before_all_others() -> None:
    graph = compile_plan(data_parallel_pipeline())
    standings, silence_s, _ = frozen_run(graph, 1, after=9, seed=3)
    standstill = StandstillFinder(graph).standstill(standings, silence_s, {2})
    assert (standstill.rank, standstill.cause) == (2, "its process is stopped")


def test_one_that_is_stopped_between_two_firings_is_missed_somewhere() -> None:
    graph = compile_plan(data_parallel_pipeline())
    standings, silence_s, _ = frozen_run(graph, 1, after=9, seed=3)
    between = standings[1]._replace(begun=standings[1].completed)
    standstill = StandstillFinder(graph).standstill({**standings, 1: between}, silence_s, {1})
    assert (standstill.rank, standstill.cause) == (1, "its process is stopped")
    assert standstill.actor is not None


def test_a_meeting_to_which_all_have_come_is_the_transports() -> None:
    actors = len(GRAPH.programs[0].actors)
    begun = np.array([1, 1, *[0] * (actors - 2)], np.int64)
    completed = np.array([1, *[0] * (actors - 1)], np.int64)
    standings = {rank: RankStanding(1, 1, False, False, begun, completed) for rank in range(2)}
    standstill = StandstillFinder(GRAPH).standstill(standings, [5.0, 6.0], ())
    assert (standstill.rank, standstill.actor) == (1, GRAPH.programs[0].actors[1].name)
    assert standstill.cause == "ranks 0 and 1 have all come, and no data moves"


def test_ranks_that_say_nothing_or_are_done_are_named() -> None:
    idle = np.zeros(len(GRAPH.programs[0].actors), np.int64)
    finder = StandstillFinder(GRAPH)
    assert finder.standstill({}, [1.0, 2.0], ()).cause == "it has not begun"
    standings = {
        0: RankStanding(1, 0, False, False, idle, idle),
        1: RankStanding(1, 3, True, False, idle, idle),
    }
    assert finder.standstill(standings, [1.0, 2.0], ()).cause.startswith("it is done")
    assert finder.standstill(standings, [2.0, 1.0], ()).cause == "it has nothing under way"
    on_gpu = {rank: RankStanding(1, 3, False, False, idle[:0], idle[:0]) for rank in range(2)}
    assert finder.standstill(on_gpu, [1.0, 2.0], ()).cause == "its step does not end"


def test_a_board_is_read_while_it_is_written(tmp_path: Path) -> None:
    reader = BoardReader(board_path(tmp_path, 3))
    assert reader.beats() is None
    assert reader.standing() is None
    board = RankBoard(board_path(tmp_path, 3), 2)
    board.begin(1)
    board.complete(1)
    board.begin(1)
    board.begin(0)
    standing = reader.standing()
    assert standing is not None
    assert standing[:4] == (os.getpid(), 1, False, False)
    assert (list(standing.begun), list(standing.completed)) == ([1, 2], [0, 1])
    note_stopped(board_path(tmp_path, 3), os.getpid(), True)
    assert reader.standing().is_stopped  # type: ignore[union-attr]
    board.done()
    assert reader.standing().is_done  # type: ignore[union-attr]
    reader.close()
    note_stopped(board_path(tmp_path, 4), 77, False)
    assert not board_path(tmp_path, 4).exists()
    note_stopped(board_path(tmp_path, 4), 77, True)
    early = BoardReader(board_path(tmp_path, 4))
    assert early.standing()[:4] == (77, 0, False, True)  # type: ignore[index]
    early.close()
    unreadable = RankBoard(tmp_path / "no folder" / "board", 2)
    unreadable.begin(0)


def test_a_run_ends_when_a_rank_comes_no_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a clock of its own; a pause of the watch itself is nobody's."""
    now_s = 100.0
    monkeypatch.setattr("millrace.executor.supervision.stall_watch.monotonic", lambda: now_s)
    boards = [RankBoard(board_path(tmp_path, rank), 4) for rank in range(2)]
    limit = StallLimit(predicted_step_s=0.1, least_s=1.0, steps=10.0)
    watch = StallWatch(GRAPH, tmp_path, limit, first_step=6)
    boards[0].begin(0)
    for board in boards:
        board.beat()
    watch.look()
    for _ in range(5):
        now_s += 0.5
        for board in boards:
            board.beat()
        watch.look()
    now_s += 60.0
    watch.look()
    for _ in range(3):
        now_s += 0.6
        watch.look()
    boards[1].done()
    now_s += 0.6
    message = r"rank 0, actor `.+`: no progress for 2 s in microbatch 1 of step 7: it computes"
    with pytest.raises(ExecutorError, match=message):
        watch.look()
    watch.close()
