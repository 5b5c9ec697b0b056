"""The threaded driver: one rank's protocol, a thread per lane of local work.

Each queue that actors leave at `completed` has one thread; it runs what the protocol fires on that
queue, reports `completed`, and takes the next command itself, without a hand-off. Meetings go to
the communicator in the order in which the protocol fires them, which is the launch order, and come
back through `done`. One lock serialises the protocol; no lock is held while work runs.
"""

import threading
from queue import SimpleQueue
from time import perf_counter_ns, thread_time_ns
from typing import Protocol as Interface

from millrace.executor.recording import Recorder
from millrace.executor.supervision.rank_board import RankBoard
from millrace.executor.transport.communicator import Communicator, Failed
from millrace.executor.transport.run_queue import RunQueueWaits
from millrace.planner.actors.graph import Program
from millrace.planner.actors.protocol import ActorProtocol, Fire


class RankWork(Interface):
    """Work that the firings of a rank do; `millrace.executor.rank.RankState` computes."""

    def run(self, fire: Fire) -> None:
        """Carry out one firing of a local actor; calls of different actors may overlap."""
        ...


class RankDriver:
    """Driver of one rank of an actor graph on threads.

    Parameters
    ----------
    program, rank, steps
        What is run.
    work
        Carries out local actors.
    communicator
        Carries out meetings.
    recorder
        Keeps the times.
    failed
        Called as `failed(rank, fire, error)` when work raises; the driver has stopped by then.
    board
        Keeps how far every actor is, for others to read.
    """

    def __init__(
        self,
        program: Program,
        rank: int,
        steps: int,
        *,
        work: RankWork,
        communicator: Communicator,
        recorder: Recorder,
        failed: Failed,
        board: RankBoard | None = None,
    ) -> None:
        self.rank = rank
        self._protocol = ActorProtocol(program, steps)
        self._work, self._communicator = work, communicator
        self._recorder, self._failed = recorder, failed
        self._board = board
        self._lock = threading.Lock()
        self._posted_ns = [0] * len(program.actors)
        self._run_queue = RunQueueWaits()
        self._stopped = False
        lanes = sorted({a.queues[0] for a in program.actors if a.meeting is None})
        self._lane_of = [
            -1 if actor.meeting is not None else lanes.index(actor.queues[0])
            for actor in program.actors
        ]
        self._ready: list[SimpleQueue[Fire | None]] = [SimpleQueue() for _ in lanes]
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(
                target=self._serve,
                args=(index,),
                name=f"rank {rank} {program.queues[lane].name}",
                daemon=True,
            )
            for index, lane in enumerate(lanes)
        ]

    def start(self) -> None:
        """Fire what can be fired and begin to work."""
        with self._lock:
            self._dispatch(self._protocol.start())
            if self._protocol.finished:  # a rank that has nothing to do
                self._end()
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Wait until every firing has completed, or until the driver is stopped."""
        self._ended.wait()
        for thread in self._threads:
            thread.join()
        self._run_queue.close()

    def stop(self) -> None:
        """Start nothing more; work that is under way ends by itself."""
        with self._lock:
            self._stopped = True
            self._end()

    @property
    def finished(self) -> bool:
        """True once every firing of every step has completed."""
        return self._protocol.finished

    def _serve(self, lane: int) -> None:
        """Body of a lane's thread."""
        run, lock, board, ready = self._work.run, self._lock, self._board, self._ready[lane]
        fire: Fire | None = None
        start_ns = end_ns = cpu_ns = queued_ns = 0
        run_queue = RunQueueWaits()
        try:
            while True:
                if fire is not None:
                    with lock:
                        self._completed(fire, start_ns, end_ns, cpu_ns, queued_ns)
                queued_ns = 0
                if self._recorder.spans and ready.empty():
                    run_queue.lap_ns()
                    fire = ready.get()
                    queued_ns = run_queue.lap_ns() or 0
                else:
                    fire = ready.get()
                if fire is None or self._stopped:
                    run_queue.close()
                    return
                if board is not None:
                    board.begin(fire.actor)
                start_ns = perf_counter_ns()
                before_ns = thread_time_ns()
                run(fire)
                cpu_ns = thread_time_ns() - before_ns
                end_ns = perf_counter_ns()
        except BaseException as error:
            self.stop()
            self._failed(self.rank, fire, error)

    def _done(self, fire: Fire) -> None:
        """Take note that a meeting's data has moved (called by the communicator)."""
        end_ns = perf_counter_ns()
        waited_ns = self._run_queue.lap_ns() if self._recorder.spans else None
        with self._lock:
            if not self._stopped:
                start_ns = self._posted_ns[fire.actor]
                cpu_ns = 0 if waited_ns is None else max(end_ns - start_ns - waited_ns, 1)
                self._completed(fire, start_ns, end_ns, cpu_ns)

    def _completed(
        self, fire: Fire, start_ns: int, end_ns: int, cpu_ns: int, queued_ns: int = 0
    ) -> None:
        """Take note of a completed firing and start what it makes possible; holds the lock."""
        if self._board is not None:
            self._board.complete(fire.actor)
        self._recorder.record(fire.actor, fire.firing, start_ns, end_ns, cpu_ns, queued_ns)
        self._dispatch(self._protocol.completed(fire.actor))
        if self._protocol.finished:
            self._end()

    def _dispatch(self, fires: list[Fire]) -> None:
        """Hand each command to its lane or to the communicator; holds the lock."""
        for fire in fires:  # grows while it is walked
            lane = self._lane_of[fire.actor]
            if lane < 0:
                if self._board is not None:
                    self._board.begin(fire.actor)
                self._posted_ns[fire.actor] = perf_counter_ns()
                self._communicator.post(self.rank, fire, self._done)
            else:
                self._ready[lane].put(fire)
            fires.extend(self._protocol.issued(fire.actor))

    def _end(self) -> None:
        """Let the lanes' threads end once they have done what they are at."""
        for ready in self._ready:
            ready.put(None)
        self._ended.set()
