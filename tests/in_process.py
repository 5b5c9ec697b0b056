"""All ranks of an actor graph in one process: meetings by copying between their arenas.

The protocol, the kernels and, on threads, the driver are those of a run; only the transport is not.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from time import perf_counter_ns
from typing import Protocol as Interface

from millrace.executor.errors import ExecutorError
from millrace.executor.rank import RankState
from millrace.executor.recording import Recorder, Recording
from millrace.executor.threaded import RankDriver
from millrace.executor.transport.communicator import Done, Exchange, Failed, receive
from millrace.models.arrays import Array
from millrace.planner.actors.graph import ActorGraph
from millrace.planner.actors.protocol import ActorProtocol, Fire
from millrace.planner.actors.rendezvous import Rendezvous

Meet = Callable[[Sequence[tuple[int, Fire]]], None]
Posted = tuple[int, Fire, Done]


class WorkOfAll(Interface):
    """Work of all ranks: `run` carries out one firing of a local actor of a rank."""

    def run(self, rank: int, fire: Fire) -> None: ...


class WorkOfOne:
    """Work of one rank, which passes its firings on to the work of all."""

    def __init__(self, work: WorkOfAll, rank: int) -> None:
        self._work, self._rank = work, rank

    def run(self, fire: Fire) -> None:
        self._work.run(self._rank, fire)


class InProcessCommunicator:
    """Meetings of ranks that live in one process.

    `meet(arrivals)` is called with `(rank, fire)` of every member, in the order of the group, once
    all have arrived; it moves the data.
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
    """Kernels and arrays behind the drivers: work of all ranks, and the data of their meetings."""

    def __init__(self, states: Sequence[RankState]) -> None:
        self._states = {state.rank: state for state in states}

    def run(self, rank: int, fire: Fire) -> None:
        """Carry out one firing of a local actor of `rank`."""
        self._states[rank].run(fire)

    def meet(self, arrivals: Sequence[tuple[int, Fire]]) -> None:
        """Move the data of one meeting between arenas of this process, part by part."""
        sends: dict[int, list[Array]] = {}
        targets: list[tuple[int, Exchange, Array]] = []
        for rank, fire in arrivals:
            state = self._states[rank]
            sent, received = state.arrays(fire)
            for part, send in enumerate(sent):
                sends.setdefault(part, []).append(send.copy())  # some receive where they send
            for part, recv in enumerate(received):
                targets.append((part, state.exchanges[fire.actor][part], recv))
        for part, exchange, recv in targets:
            receive(exchange, sends[part], recv)


def execute_in_process(
    graph: ActorGraph, steps: int, work: WorkOfAll, meet: Meet, *, spans: bool = True
) -> list[Recording]:
    """Run every rank of `graph` on threads of this process; one recording each, without totals.

    Raises an ExecutorError where work or a meeting failed: names the rank, the actor and the cause
    of the first failure.
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
                work=WorkOfOne(work, rank),
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


def execute_lockstep(graph: ActorGraph, steps: int, work: WorkOfAll, meet: Meet) -> None:
    """Run every rank of `graph` in the caller's thread, in one fixed order.

    The mathematics of `execute_in_process` without threads or times; errors of `work` come
    through as they are. Raises an ExecutorError where the actor graph cannot go on.
    """
    protocols = [
        ActorProtocol(graph.programs[graph.program_of(rank)], steps) for rank in range(graph.ranks)
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
