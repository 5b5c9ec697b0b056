"""Meetings of ranks on several hosts: by MPI's messages between hosts, in shared memory inside.

One thread per rank owns MPI while a run lasts. It carries out what the `MeetingProtocol` begins:
it posts sends and receives of chunks and tests them all, adds up chunks that have come while others
travel, and reads its neighbours' registers and words in shared memory. Waiting is polite, since
ranks may be more than cores: some tests in a row after anything has moved, then sleeps that grow
and end at once when a call is posted or a neighbour rings.
"""

import os
import threading
from collections import deque
from math import prod
from time import perf_counter_ns
from typing import Any

from millrace.executor.transport.chunk_arrays import ChunkArrays, party_of
from millrace.executor.transport.communicator import (
    Communicator,
    Done,
    Failed,
    RankArrays,
    meeting_keys,
)
from millrace.executor.transport.meeting_protocol import Begin, MeetingProtocol
from millrace.executor.transport.mpi import World
from millrace.executor.transport.routes import Do, Step, Store, route
from millrace.executor.transport.shared import (
    RECV_AT,
    SEND_AT,
    SPIN_NS,
    SharedCommunicator,
    SharedMemory,
    Words,
)
from millrace.models.arrays import Array
from millrace.planner.actors.graph import ActorGraph
from millrace.planner.actors.protocol import Fire

SLEEP_S_MIN = 50e-6  # shorter sleeps take a tenth of a core per waiting rank
SLEEP_S_MAX = 500e-6
RECHECK_S = 0.01  # rings are not lost in practice; this bounds the harm if one is


def open_communicator(
    graph: ActorGraph, memory: RankArrays, world: World, shared: SharedMemory | None
) -> Communicator:
    """Communicator of this rank: in shared memory alone where all ranks are on one host.

    Parameters
    ----------
    graph, memory, world, shared
        As for `NetworkCommunicator`.
    """
    if shared is not None and len(set(shared.hosts)) == 1:
        return SharedCommunicator(graph, memory, world, shared)
    return NetworkCommunicator(graph, memory, world, shared)


class NetworkCommunicator:
    """Meetings of one rank with ranks of any host.

    Parameters
    ----------
    graph
        The actor graph.
    memory
        The rank's arrays, laid out in its block of `shared`.
    world
        The ranks of this run; all must make their communicators at the same point.
    shared
        The memory of the ranks of this host; None: every rank is a host of its own.
    """

    def __init__(
        self, graph: ActorGraph, memory: RankArrays, world: World, shared: SharedMemory | None
    ) -> None:
        self._memory, self._shared = memory, shared
        self._hosts = tuple(range(world.size)) if shared is None else shared.hosts
        self._numbers = meeting_keys(graph)
        self._messages = world.communicator.Dup()
        self._test_some = world.mpi.Request.Testsome
        self._bell = world.doorbell(() if shared is None else shared.blocks)
        self._routes: dict[int, tuple[Step, ...]] = {}
        self._protocol = MeetingProtocol(self._routes)
        self._arrays = ChunkArrays(memory, self._register_of)
        self._inbox: deque[tuple[Fire, Done] | None] = deque()
        self._done: dict[int, Done] = {}
        self._requests: list[Any] = []
        self._awaited: list[Begin] = []  # the step of every request
        self._hearing: list[Begin] = []
        self._fence = threading.Lock()
        self._thread: threading.Thread | None = None
        self._last: Fire | None = None

    def start(self, failed: Failed) -> None:
        """Serve meetings on the thread that owns MPI from now on."""
        self._thread = threading.Thread(
            target=self._serve, args=(failed,), name="meetings", daemon=True
        )
        self._thread.start()

    def post(self, rank: int, fire: Fire, done: Done) -> None:
        """Hand over one firing of a meeting actor."""
        self._inbox.append((fire, done))
        self._bell.ring((self._memory.rank,))

    def close(self) -> None:
        """End the thread; MPI belongs to the caller again."""
        self._inbox.append(None)
        self._bell.ring((self._memory.rank,))
        if self._thread is not None:
            self._thread.join()
        self._bell.close()

    def _serve(self, failed: Failed) -> None:
        wait_s: float | None = None
        moved_ns = 0
        try:
            while True:
                self._bell.wait(wait_s)
                moved = False
                while self._inbox:
                    posted = self._inbox.popleft()
                    if posted is None:
                        return
                    self._post(*posted)
                    moved = True
                if self._requests:
                    moved |= self._test()
                if self._hearing:
                    moved |= self._listen()
                if moved:
                    moved_ns = perf_counter_ns()
                wait_s = self._pause(perf_counter_ns() - moved_ns)
        except BaseException as error:
            failed(self._memory.rank, self._last, error)

    def _pause(self, idle_ns: int) -> float | None:
        """Seconds to wait for a ring, nothing having moved for so long; None: until one comes."""
        if not self._requests and not self._hearing:
            return None
        if idle_ns < SPIN_NS:
            os.sched_yield()
            return 0.0
        if not self._requests:
            return RECHECK_S
        return min(max(SLEEP_S_MIN, idle_ns * 0.25e-9), SLEEP_S_MAX)

    def _post(self, fire: Fire, done: Done) -> None:
        self._last = fire
        sent, received = self._memory.arrays(fire)
        exchanges = self._memory.exchanges[fire.actor]
        if fire.actor not in self._routes:
            self._routes[fire.actor] = route(party_of(exchanges, self._hosts, (sent, received)))
        if self._shared is not None:
            base = self._shared.blocks[self._memory.rank].ctypes.data
            words = self._words(fire.actor, self._memory.rank)
            for word, arrays in ((SEND_AT, sent), (RECV_AT, received)):
                if arrays:
                    words[word] = arrays[0].ctypes.data - base
        self._done[fire.actor] = done
        self._arrays.begin(fire)
        self._begin(self._protocol.posted(fire.actor))

    def _begin(self, commands: list[Begin]) -> None:
        """Carry out steps; those that are over at once make others possible."""
        for begin in commands:  # grows while it is walked
            actor = begin.actor
            step = self._routes[actor][begin.step]
            if step.do is Do.SEND:
                array = self._arrays.array(actor, step.sources[0])
                self._await(begin, self._messages.Isend(array, *self._address(actor, step)))
            elif step.do is Do.RECEIVE:
                assert step.target is not None
                array = self._arrays.array(actor, step.target)
                self._await(begin, self._messages.Irecv(array, *self._address(actor, step)))
            elif step.do is Do.HEAR:
                self._hearing.append(begin)
            else:
                if step.do is Do.REDUCE:
                    self._arrays.reduce(actor, step)
                elif step.do is Do.TELL:
                    self._tell(actor, step)
                commands += self._protocol.over(actor, begin.step)
                if step.do is Do.END:
                    self._done.pop(actor)(self._arrays.end(actor))

    def _await(self, begin: Begin, request: Any) -> None:
        self._requests.append(request)
        self._awaited.append(begin)

    def _address(self, actor: int, step: Step) -> tuple[int, int]:
        """Rank and tag of a message."""
        exchange = self._memory.exchanges[actor][0]
        return exchange.members[step.peer], 2 * self._numbers[exchange.key] + step.stream

    def _test(self) -> bool:
        """Go on after the messages that have been sent or have come; True if there were any."""
        moved = self._test_some(self._requests)
        if not moved:
            return False
        over = [self._awaited[index] for index in moved]
        gone = set(moved)
        keep = [index for index in range(len(self._requests)) if index not in gone]
        self._requests = [self._requests[index] for index in keep]
        self._awaited = [self._awaited[index] for index in keep]
        for begin in over:
            self._begin(self._protocol.over(begin.actor, begin.step))
        return True

    def _listen(self) -> bool:
        """Go on after the words that all neighbours have said; True if there were any."""
        heard = [begin for begin in self._hearing if self._is_said(begin)]
        for begin in heard:
            self._hearing.remove(begin)
            self._begin(self._protocol.over(begin.actor, begin.step))
        return bool(heard)

    def _is_said(self, begin: Begin) -> bool:
        word = self._routes[begin.actor][begin.step].word
        firing = self._arrays.fire(begin.actor).firing
        return all(
            self._words(begin.actor, rank)[word] > firing for rank in self._neighbours(begin.actor)
        )

    def _neighbours(self, actor: int) -> list[int]:
        exchange = self._memory.exchanges[actor][0]
        here = self._hosts[self._memory.rank]
        return [rank for rank in exchange.others if self._hosts[rank] == here]

    def _words(self, actor: int, rank: int) -> Words:
        assert self._shared is not None
        words: Words = self._shared.words[rank]
        meeting: Words = words[self._numbers[self._memory.exchanges[actor][0].key]]
        return meeting

    def _tell(self, actor: int, step: Step) -> None:
        """Write a word once all writes before it can be seen, and wake the neighbours."""
        # A lock that is taken twice orders memory on every processor: release, then acquire.
        for _ in range(2):
            with self._fence:
                pass
        self._words(actor, self._memory.rank)[step.word] = self._arrays.fire(actor).firing + 1
        self._bell.ring(self._neighbours(actor))

    def _register_of(self, fire: Fire, member: int, store: Store, part: int, like: Array) -> Array:
        """Register of a member on this host; parts lie as far apart there as they do here."""
        assert self._shared is not None
        arrays = self._memory.arrays(fire)[0 if store is Store.SENT else 1]
        further = arrays[part].ctypes.data - arrays[0].ctypes.data if part else 0
        rank = self._memory.exchanges[fire.actor][0].members[member]
        word = SEND_AT if store is Store.SENT else RECV_AT
        offset = int(self._words(fire.actor, rank)[word]) + further
        size_bytes = prod(like.shape) * like.itemsize
        bytes_there = self._shared.blocks[rank][offset : offset + size_bytes]
        return bytes_there.view(like.dtype).reshape(like.shape)
