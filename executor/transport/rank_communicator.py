"""Communicator of a rank: MPI's messages between hosts, shared memory inside.

One thread per rank owns MPI while a run lasts. It carries out what the `MeetingProtocol` begins:
it posts sends and receives of chunks and tests them all, adds up chunks that have come while others
travel, and reads its neighbours' registers and words in shared memory. Whoever posts a meeting
tells the neighbours itself, so that a thread that can do nothing yet sleeps on.

Waiting is polite, since ranks may be more than cores: for words, until a neighbour rings; for
messages, some tests in a row after anything has moved, then sleeps that grow and end at once when a
call is posted or a neighbour rings.
"""

import os
import threading
from collections import deque
from time import perf_counter_ns
from typing import Any

from millrace.executor.transport.chunk_arrays import ChunkArrays, party_of
from millrace.executor.transport.communicator import Done, Failed, RankArrays, meeting_keys
from millrace.executor.transport.meeting_protocol import Begin, MeetingProtocol
from millrace.executor.transport.mpi import World
from millrace.executor.transport.routes import Do, Step, route
from millrace.executor.transport.shared import MeetingWords, SharedMemory
from millrace.planner.actors.graph import ActorGraph
from millrace.planner.actors.protocol import Fire

SLEEP_S_MIN = 50e-6  # shorter sleeps take a tenth of a core per waiting rank
SLEEP_S_MAX = 500e-6
SPIN_NS = 50_000  # about what waking a sleeping thread takes
RECHECK_S = 0.01  # rings are not lost in practice; this bounds the harm if one is


class RankCommunicator:
    """Communicator of one rank, which meets ranks of any host.

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
        self._memory = memory
        self._hosts = tuple(range(world.size)) if shared is None else shared.hosts
        self._numbers = meeting_keys(graph)
        self._messages = world.communicator.Dup()
        self._test_some = world.mpi.Request.Testsome
        self._bell = world.doorbell(() if shared is None else shared.blocks)
        self._routes: dict[int, tuple[Step, ...]] = {}
        self._openings: dict[int, list[Step]] = {}  # steps with which a meeting may begin
        self._protocol = MeetingProtocol(self._routes)
        self._words = MeetingWords(memory, shared, self._numbers)
        self._arrays = ChunkArrays(memory, self._words.register)
        self._inbox: deque[tuple[Fire, Done] | None] = deque()
        self._done: dict[int, Done] = {}
        self._firing: dict[int, int] = {}  # number of every meeting actor's latest firing
        self._requests: list[Any] = []
        self._awaited: list[Begin] = []  # the step of every request
        self._hearing: list[Begin] = []
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
        actor, arrays = fire.actor, self._memory.arrays(fire)
        if actor not in self._routes:
            steps = route(party_of(self._memory.exchanges[actor], self._hosts, arrays))
            self._openings[actor] = [step for step in steps if not step.needs and step.after < 0]
            self._routes[actor] = steps
        self._words.show(actor, *arrays)
        # Before the neighbours are told: by their rings the thread must see what has been posted.
        self._inbox.append((fire, done))
        is_rung = True  # by a neighbour, if all that can begin is to hear its word
        for step in self._openings[actor]:
            if step.do is Do.TELL:
                self._tell(actor, step, fire.firing)
            elif step.do is not Do.HEAR or self._words.are_said(actor, step, fire.firing):
                is_rung = False
        if not is_rung:
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
                    self._last, done = posted
                    self._done[self._last.actor] = done
                    self._firing[self._last.actor] = self._last.firing
                    self._arrays.begin(self._last)
                    self._begin(self._protocol.posted(self._last.actor))
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
            elif step.do is Do.HEAR and not self._words.are_said(actor, step, self._firing[actor]):
                self._hearing.append(begin)
            else:
                if step.do is Do.REDUCE:
                    self._arrays.reduce(actor, step)
                elif step.do is Do.TELL and step.needs:  # else `post` has
                    self._tell(actor, step, self._firing[actor])
                commands += self._protocol.over(actor, begin.step)
                if step.do is Do.END:
                    self._done.pop(actor)(self._arrays.end(actor))

    def _await(self, begin: Begin, request: Any) -> None:
        self._requests.append(request)
        self._awaited.append(begin)

    def _address(self, actor: int, step: Step) -> tuple[int, int]:
        """Rank and tag of a message."""
        exchange = self._memory.exchanges[actor][0]
        (peer,) = step.peers
        return exchange.members[peer], 2 * self._numbers[exchange.key] + step.stream

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
        heard = [
            begin
            for begin in self._hearing
            if self._words.are_said(
                begin.actor, self._routes[begin.actor][begin.step], self._firing[begin.actor]
            )
        ]
        for begin in heard:
            self._hearing.remove(begin)
            self._begin(self._protocol.over(begin.actor, begin.step))
        return bool(heard)

    def _tell(self, actor: int, step: Step, firing: int) -> None:
        """Say a word and wake those whom it is for."""
        self._words.say(actor, step, firing)
        members = self._memory.exchanges[actor][0].members
        self._bell.ring([members[peer] for peer in step.peers])
