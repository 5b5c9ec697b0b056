"""Several ranks in one process: meetings by copying between their arenas, in a fixed order.

Used by tests and wherever one process is enough. Reductions add up in the order of the group's
members, so that results are the same in every run.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from time import perf_counter_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

from executor.communicator import Done, Exchange, Failed
from executor.errors import ExecutorError
from executor.rank import RankState
from executor.recording import Recorder, Recording
from executor.threaded import RankDriver, Work
from planner.actors.graph import ActorGraph
from planner.actors.protocol import Fire, Protocol
from planner.actors.rendezvous import Rendezvous

Array = NDArray[Any]
Meet = Callable[[Sequence[tuple[int, Fire]]], None]
Posted = tuple[int, Fire, Done]

REDUCTIONS: dict[str, np.ufunc] = {"sum": np.add, "max": np.maximum}


class InProcessCommunicator:
    """Meetings of ranks that live in one process.

    Parameters
    ----------
    graph
        The actor graph.
    meet
        Called as `meet(arrivals)` with `(rank, fire)` of every member, in the order of the group,
        once all have arrived; it moves the data.
    """

    def __init__(self, graph: ActorGraph, meet: Meet) -> None:
        self._meet = meet
        self._rendezvous = Rendezvous(graph, folded=False)
        self._order: dict[tuple[int, int], tuple[int, ...]] = {}
        for rank in range(graph.ranks):
            for index, actor in enumerate(graph.programs[graph.program_of(rank)].actors):
                if actor.meeting is not None:
                    self._order[rank, index] = graph.members(rank, actor.meeting)
        self._waiting: dict[tuple[int, int], Posted] = {}
        self._inbox: SimpleQueue[Posted | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, failed: Failed) -> None:
        """Serve meetings on a thread of their own."""
        self._thread = threading.Thread(target=self._serve, args=(failed,), daemon=True)
        self._thread.start()

    def post(self, rank: int, fire: Fire, done: Done) -> None:
        """Hand over one firing of a meeting actor."""
        self._inbox.put((rank, fire, done))

    def close(self) -> None:
        """End the thread."""
        self._inbox.put(None)
        if self._thread is not None:
            self._thread.join()

    def advance(self) -> None:
        """Carry out all meetings that are complete, in the caller's thread."""
        while True:
            try:
                posted = self._inbox.get_nowait()
            except Empty:
                return
            if posted is not None:
                self._arrive(posted)

    def _serve(self, failed: Failed) -> None:
        while (posted := self._inbox.get()) is not None:
            try:
                self._arrive(posted)
            except BaseException as error:
                failed(posted[0], posted[1], error)
                return

    def _arrive(self, posted: Posted) -> None:
        rank, fire, _ = posted
        self._waiting[rank, fire.actor] = posted
        arrived = self._rendezvous.arrive(rank, fire.actor, fire.firing)
        if arrived is None:
            return
        parties = {member: self._waiting.pop((member, actor)) for member, actor in arrived}
        order = self._order[rank, fire.actor]
        self._meet([(member, parties[member][1]) for member in order])
        for member in order:
            _, ready, done = parties[member]
            done(ready)


class KernelWork:
    """Kernels and arrays behind the drivers: the ranks that live in this process."""

    def __init__(self, states: Sequence[RankState]) -> None:
        self._states = {state.rank: state for state in states}

    def run(self, rank: int, fire: Fire) -> None:
        """Carry out one firing of a local actor of `rank`."""
        self._states[rank].run(fire)

    def meet(self, arrivals: Sequence[tuple[int, Fire]]) -> None:
        """Move the data of one meeting between arenas of this process."""
        parties = []
        for rank, fire in arrivals:
            state = self._states[rank]
            sends, recvs = state.arrays(fire)
            exchange = state.exchanges[fire.actor]
            parties.append(
                Party(
                    exchange=exchange,
                    outgoing=exchange.outgoing(sends[0]) if sends else None,
                    recv=recvs[0] if recvs else None,
                )
            )
        move(parties)


@dataclass(frozen=True, slots=True, kw_only=True)
class Party:
    """One member's part in a meeting: what it sends, in blocks, and where it receives."""

    exchange: Exchange
    outgoing: Array | None
    recv: Array | None


def move(parties: Sequence[Party]) -> None:
    """Carry out one meeting: `parties` in the order of the group.

    Raises
    ------
    ExecutorError
        The kind of the meeting is not one of `MOVES`.
    """
    first = parties[0].exchange
    outgoing = [party.outgoing for party in parties if party.outgoing is not None]
    targets = [
        (party.exchange, party.recv, party.exchange.incoming(party.recv))
        for party in parties
        if party.recv is not None
    ]
    if first.kind not in MOVES:
        raise ExecutorError(f"`{first.name}`: the NumPy backend has no {first.kind}")
    MOVES[first.kind](outgoing, [incoming for _, _, incoming in targets], first.reduction)
    for exchange, recv, _ in targets:
        exchange.deliver(recv)


def _rows(buffer: Array, parts: int) -> Array:
    return buffer.reshape(parts, -1)


def _reduce(terms: Sequence[Array], out: Array, reduction: str) -> None:
    """Reduce flat `terms` into flat `out`, in their order."""
    np.copyto(out, terms[0])
    for term in terms[1:]:
        REDUCTIONS[reduction](out, term, out=out)


def _all_reduce(outgoing: list[Array], incoming: list[Array], reduction: str) -> None:
    _reduce([send.reshape(-1) for send in outgoing], incoming[0].reshape(-1), reduction)
    for recv in incoming[1:]:
        np.copyto(recv, incoming[0])


def _all_gather(outgoing: list[Array], incoming: list[Array], reduction: str) -> None:
    for recv in incoming:
        rows = _rows(recv, len(outgoing))
        for row, send in zip(rows, outgoing, strict=True):
            np.copyto(row, send.reshape(-1))


def _reduce_scatter(outgoing: list[Array], incoming: list[Array], reduction: str) -> None:
    rows = [_rows(send, len(outgoing)) for send in outgoing]
    for position, recv in enumerate(incoming):
        _reduce([row[position] for row in rows], recv.reshape(-1), reduction)


def _all_to_all(outgoing: list[Array], incoming: list[Array], reduction: str) -> None:
    sends = [_rows(send, len(outgoing)) for send in outgoing]
    for position, recv in enumerate(incoming):
        for row, send in zip(_rows(recv, len(outgoing)), sends, strict=True):
            np.copyto(row, send[position])


def _transfer(outgoing: list[Array], incoming: list[Array], reduction: str) -> None:
    np.copyto(incoming[0], outgoing[0])


MOVES: dict[str, Callable[[list[Array], list[Array], str], None]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "send": _transfer,
    "recv": _transfer,
}


def execute_in_process(
    graph: ActorGraph, steps: int, work: Work, meet: Meet, *, spans: bool = True
) -> list[Recording]:
    """Run every rank of `graph` on threads of this process.

    Parameters
    ----------
    graph, steps
        What is run, and for how many steps.
    work
        Carries out local actors.
    meet
        Moves the data of a meeting, see `InProcessCommunicator`.
    spans
        Keep every firing's times.

    Returns
    -------
    list of Recording
        One per rank, without totals (a `RunState` holds its own).

    Raises
    ------
    ExecutorError
        Work or a meeting failed; names the rank, the actor and the cause of the first failure.
    """
    failures: list[ExecutorError] = []
    drivers: list[RankDriver] = []
    programs = [graph.programs[graph.program_of(rank)] for rank in range(graph.ranks)]

    def failed(rank: int, fire: Fire | None, error: BaseException) -> None:
        actor = None if fire is None else programs[rank].actors[fire.actor].name
        failure = ExecutorError(f"{type(error).__name__}: {error}", rank=rank, actor=actor)
        failure.__cause__ = error
        failures.append(failure)
        for driver in drivers:
            driver.stop()

    communicator = InProcessCommunicator(graph, meet)
    recorders = [Recorder(program, steps, spans=spans) for program in programs]
    for rank, program in enumerate(programs):
        drivers.append(
            RankDriver(
                program,
                rank,
                steps,
                work=work,
                communicator=communicator,
                recorder=recorders[rank],
                failed=failed,
            )
        )
    origin_ns = perf_counter_ns()
    communicator.start(failed)
    for driver in drivers:
        driver.start()
    try:
        for driver in drivers:
            driver.join()
    finally:
        for driver in drivers:
            driver.stop()
        communicator.close()
    if failures:
        raise failures[0]
    return [recorder.recording(rank, origin_ns) for rank, recorder in enumerate(recorders)]


def execute_lockstep(graph: ActorGraph, steps: int, work: Work, meet: Meet) -> None:
    """Run every rank of `graph` in the caller's thread, in one fixed order.

    The mathematics of `execute_in_process` without threads or times; errors of `work` come
    through as they are.

    Raises
    ------
    ExecutorError
        The actor graph cannot go on; says what every rank waits for.
    """
    protocols = [
        Protocol(graph.programs[graph.program_of(rank)], steps) for rank in range(graph.ranks)
    ]
    communicator = InProcessCommunicator(graph, meet)
    ready: deque[tuple[int, Fire]] = deque()

    def met(rank: int) -> Done:
        return lambda fire: ready.extend((rank, f) for f in protocols[rank].completed(fire.actor))

    done = [met(rank) for rank in range(graph.ranks)]
    for rank, protocol in enumerate(protocols):
        ready.extend((rank, fire) for fire in protocol.start())
    while ready:
        rank, fire = ready.popleft()
        protocol = protocols[rank]
        meeting = protocol.program.actors[fire.actor].meeting is not None
        if meeting:
            communicator.post(rank, fire, done[rank])
        ready.extend((rank, f) for f in protocol.issued(fire.actor))
        if meeting:
            communicator.advance()
        else:
            work.run(rank, fire)
            done[rank](fire)
    stuck = [wait for protocol in protocols for wait in protocol.waits()]
    if not all(protocol.finished for protocol in protocols):
        raise ExecutorError(f"the actor graph cannot go on: {stuck[:4]}")
