"""Whole runs of small actor graphs on simulated ranks, links and time.

Protocols, routes and arrays are those of a run; clock, links, doorbells and local work are drawn
from a seed, each as slow and as late as it may ever be:

* Messages of a link keep their order only where MPI keeps it, and links are of no common order. A
  message is read from memory at any time until its sender hears that it is gone, and written at any
  time until its receiver hears of it; what is awaited is poisoned until then.
* Ranks of a host see each other's words late. Work and reductions read when they end.
* A slow rank takes up to thirty times as long for all that it does. A dying rank stops at some
  event; its messages under way arrive or are lost.

Every meeting's result is compared, bit by bit, with what `receive` makes of what its members sent.
"""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from heapq import heappop, heappush
from random import Random
from typing import NamedTuple

import numpy as np

from millrace.executor.rank import RankMemory
from millrace.executor.transport.chunk_arrays import ChunkArrays, Neighbour, party_of
from millrace.executor.transport.communicator import Exchange, receive
from millrace.executor.transport.meeting_protocol import Begin, MeetingProtocol
from millrace.executor.transport.routes import Do, Step, Store, Word, route
from millrace.models.arrays import Array
from millrace.planner.actors.graph import ActorGraph
from millrace.planner.actors.protocol import ActorProtocol, Fire
from millrace.planner.collectives import ROTATE

CHUNK_BYTES, SMALL_BYTES = 384, 1024  # so that tensors of a few KiB are cut into chunks
POISON = np.nan
MEAN_DELAY = 20.0

Firing = tuple[tuple[int, ...], str, int]  # group, key, number


class FalseProgressError(AssertionError):
    """Something that a simulated run did and must never do; says what, where and when."""


class _Message(NamedTuple):
    """Message under way, or a receive that waits for one: rank, meeting, step and its array."""

    rank: int
    begin: Begin
    array: Array
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedOutcome:
    """Outcome of a simulated run.

    Attributes
    ----------
    ranks, hosts, firings, messages
        How many there were, the firings and messages being those that were over.
    died
        The rank that died; None if none did.
    finished
        True if every rank made all its firings.
    digest
        Of the whole trace: every event, its time and its rank.
    """

    ranks: int
    hosts: int
    firings: int
    messages: int
    died: int | None
    finished: bool
    digest: str


class _Rank:
    """One simulated rank: the two protocols, and its memory."""

    def __init__(self, graph: ActorGraph, rank: int, steps: int, slowness: float) -> None:
        self.rank, self.slowness = rank, slowness
        self.memory = RankMemory(graph, rank)
        for views in self.memory.arena.views:
            for view in views:
                view.fill(0)
        self.protocol = ActorProtocol(self.memory.program, steps)
        self.routes: dict[int, tuple[Step, ...]] = {}
        self.meetings = MeetingProtocol(self.routes)
        self.arrays: ChunkArrays
        self.words: Counter[tuple[str, Word]] = Counter()  # firings that a word was said for
        self.hearing: set[Begin] = set()
        self.registers: dict[str, tuple[int, list[Array], list[Array]]] = {}  # where they lie
        self.dead = False


class SeededRun:
    """A run of an actor graph, drawn from a seed.

    Parameters
    ----------
    graph
        The graph.
    seed
        Decides hosts, delays, slow ranks and deaths.
    steps
        How many.
    dies
        A rank dies somewhere.
    """

    def __init__(self, graph: ActorGraph, seed: int, *, steps: int = 2, dies: bool = False) -> None:
        self._graph, self._random = graph, Random(seed)
        count = graph.ranks
        hosts = self._random.randint(1, min(count, 4))
        order = [self._random.randrange(hosts) for _ in range(count)]
        self._hosts = tuple(sorted(order) if self._random.random() < 0.7 else order)
        slow = {rank for rank in range(count) if self._random.random() < 0.15}
        self.ranks = [
            _Rank(graph, rank, steps, self._random.uniform(3, 30) if rank in slow else 1.0)
            for rank in range(count)
        ]
        for state in self.ranks:
            state.arrays = ChunkArrays(state.memory, self._neighbours(state))
        self._events: list[tuple[float, int, int, Callable[[], None]]] = []
        self._now, self._number = 0.0, 0
        self._trace = blake2b(digest_size=16)
        self._sent: dict[tuple[int, int, str, int], deque[_Message]] = {}
        self._awaited: dict[tuple[int, int, str, int], deque[_Message]] = {}
        self._messages: Counter[int] = Counter()
        self._offered: dict[Firing, dict[int, list[Array]]] = {}
        self._firings = self._matched = 0
        self._dies_at = self._random.expovariate(1 / 600) if dies else None
        self._died: int | None = None

    def run(self) -> SimulatedOutcome:
        """Run to the end, and check it.

        Raises
        ------
        FalseProgressError
            A rank waits for ever, a message is lost or comes twice, or a value is wrong.
        """
        for state in self.ranks:
            self._later(state, self._starts(state))
        while self._events:
            self._now, _, rank, happen = heappop(self._events)
            if self._dies_at is not None and self._now >= self._dies_at:
                self._die()
            if rank < 0 or not self.ranks[rank].dead:
                happen()
        finished = all(state.protocol.finished for state in self.ranks)
        if self._died is None:
            self._check_end(finished)
        return SimulatedOutcome(
            ranks=len(self.ranks),
            hosts=len(set(self._hosts)),
            firings=self._firings,
            messages=self._matched,
            died=self._died,
            finished=finished,
            digest=self._trace.hexdigest(),
        )

    def _die(self) -> None:
        """Let one of the ranks that are not through stop for good."""
        self._dies_at = None
        busy = [state for state in self.ranks if not state.protocol.finished]
        if busy:
            state = self._random.choice(busy)
            state.dead, self._died = True, state.rank

    def _starts(self, state: _Rank) -> Callable[[], None]:
        return lambda: self._fire(state, state.protocol.start())

    def _later(self, state: _Rank, happen: Callable[[], None], mean: float = MEAN_DELAY) -> None:
        """Let something happen on a rank some time from now."""
        delay = self._random.expovariate(1 / mean) * state.slowness
        self._schedule(self._now + delay, state.rank, happen)

    def _schedule(self, time: float, rank: int, happen: Callable[[], None]) -> None:
        self._number += 1
        heappush(self._events, (time, self._number, rank, happen))

    def _note(self, rank: int, what: str, *numbers: object) -> None:
        self._trace.update(f"{self._now!r} {rank} {what} {numbers}\n".encode())

    # The rank's own protocol.

    def _fire(self, state: _Rank, fires: list[Fire]) -> None:
        for fire in fires:  # grows while it is walked
            self._note(state.rank, "fires", *fire)
            actor = state.memory.program.actors[fire.actor]
            if actor.meeting is not None:
                self._post(state, fire)
            else:
                self._later(state, self._works(state, fire))
                if not actor.in_place:
                    self._poison(state, fire)
            fires.extend(state.protocol.issued(fire.actor))

    def _poison(self, state: _Rank, fire: Fire) -> None:
        actor = state.memory.program.actors[fire.actor]
        _, outputs = state.memory.arrays(fire)
        for port, output in zip(actor.outputs, outputs, strict=True):
            if fire.firing % port.hold == 0:
                output.fill(POISON)

    def _works(self, state: _Rank, fire: Fire) -> Callable[[], None]:
        def work() -> None:
            inputs, outputs = state.memory.arrays(fire)
            for array in inputs:
                self._require(not np.isnan(array).any(), state, fire, "reads what is not there")
            seed = [state.rank, fire.actor, fire.firing]
            noise = np.random.Generator(np.random.SFC64(seed))
            total = sum(float(array.flat[0]) for array in inputs)
            for output in outputs:
                output[...] = noise.random(output.shape) + np.tanh(total)
            self._completed(state, fire)

        return work

    def _completed(self, state: _Rank, fire: Fire) -> None:
        self._firings += 1
        self._note(state.rank, "done", *fire)
        self._fire(state, state.protocol.completed(fire.actor))

    # Its meetings.

    def _post(self, state: _Rank, fire: Fire) -> None:
        exchanges = state.memory.exchanges[fire.actor]
        sent, received = state.memory.arrays(fire)
        if fire.actor not in state.routes:
            party = party_of(exchanges, self._hosts, (sent, received))
            state.routes[fire.actor] = route(
                party, chunk_bytes=CHUNK_BYTES, small_bytes=SMALL_BYTES
            )
        offers = self._offered.setdefault(_firing(exchanges[0], fire), {})
        offers[state.rank] = [array.copy() for array in sent]
        for array in received:
            array.fill(POISON)
        state.registers[exchanges[0].key] = fire.firing, sent, received
        state.arrays.begin(fire)
        self._begin(state, state.meetings.posted(fire.actor))

    def _begin(self, state: _Rank, commands: list[Begin]) -> None:
        for begin in commands:
            step = state.routes[begin.actor][begin.step]
            self._note(state.rank, "begins", *begin)
            CARRIED_OUT[step.do](self, state, begin, step)

    def _over(self, state: _Rank, begin: Begin) -> None:
        self._note(state.rank, "over", *begin)
        self._begin(state, state.meetings.over(begin.actor, begin.step))

    def _reduces(self, state: _Rank, begin: Begin, step: Step) -> None:
        def reduce() -> None:
            state.arrays.reduce(begin.actor, step)
            self._over(state, begin)

        self._later(state, reduce)

    def _tells(self, state: _Rank, begin: Begin, step: Step) -> None:
        exchange, fire = self._meeting(state, begin)
        state.words[exchange.key, step.word] = fire.firing + 1
        self._later(state, lambda: self._over(state, begin))
        for peer in step.peers:
            other = self.ranks[exchange.members[peer]]
            self._later(other, self._listens(other))

    def _hears(self, state: _Rank, begin: Begin, step: Step) -> None:
        state.hearing.add(begin)
        self._later(state, self._listens(state))

    def _listens(self, state: _Rank) -> Callable[[], None]:
        def listen() -> None:
            for begin in sorted(state.hearing):
                exchange, fire = self._meeting(state, begin)
                step = state.routes[begin.actor][begin.step]
                peers = [self.ranks[exchange.members[peer]] for peer in step.peers]
                if all(peer.words[exchange.key, step.word] > fire.firing for peer in peers):
                    state.hearing.remove(begin)
                    self._over(state, begin)

        return listen

    def _sends(self, state: _Rank, begin: Begin, step: Step) -> None:
        exchange, _ = self._meeting(state, begin)
        array = state.arrays.array(begin.actor, step.sources[0])
        self._require_row(array, state, begin)
        peer = exchange.members[step.peers[0]]
        link = state.rank, peer, exchange.key, step.stream
        # MPI matches messages of a link in their order, however late each of them is.
        before = self._sent.setdefault(link, deque())
        before.append(_Message(state.rank, begin, array, self._number))
        self._later(self.ranks[peer], lambda: self._match(link))

    def _receives(self, state: _Rank, begin: Begin, step: Step) -> None:
        assert step.target is not None
        exchange, _ = self._meeting(state, begin)
        array = state.arrays.array(begin.actor, step.target)
        self._require_row(array, state, begin)
        array.fill(POISON)
        link = exchange.members[step.peers[0]], state.rank, exchange.key, step.stream
        self._awaited.setdefault(link, deque()).append(_Message(state.rank, begin, array, 0))
        self._later(state, lambda: self._match(link))

    def _match(self, link: tuple[int, int, str, int]) -> None:
        """Let the next message of a link reach the receive that waits for it, if there are both."""
        sent, awaited = self._sent.get(link), self._awaited.get(link)
        if not sent or not awaited:
            return
        message, waiting = sent.popleft(), awaited.popleft()
        sender, receiver = self.ranks[message.rank], self.ranks[waiting.rank]
        if sender.dead and self._random.random() < 0.5:
            return
        self._matched += 1
        self._require(
            message.array.shape == waiting.array.shape, receiver, waiting, "awaits another message"
        )
        fast = min(sender, receiver, key=lambda state: state.slowness)
        content: list[Array] = []

        def leave() -> None:
            content.append(message.array.copy())
            self._later(receiver, arrive)
            if not sender.dead:
                self._later(sender, lambda: self._over(sender, message.begin))

        def arrive() -> None:
            waiting.array[...] = content[0]
            self._over(receiver, waiting.begin)

        self._later(fast, leave)

    def _ends(self, state: _Rank, begin: Begin, step: Step) -> None:
        fire = state.arrays.end(begin.actor)
        exchanges = state.memory.exchanges[begin.actor]
        _, received = state.memory.arrays(fire)
        offers = self._offered[_firing(exchanges[0], fire)]
        for part, (exchange, array) in enumerate(zip(exchanges, received, strict=False)):
            givers = exchange.members[:1] if exchange.kind == "recv" else exchange.members
            needed = givers
            if exchange.kind == ROTATE:  # who is not the one before may not have come yet
                needed = (exchange.members[exchange.position - 1],)
            missing = [rank for rank in needed if rank not in offers]
            self._require(not missing, state, fire, f"ends without {missing}")
            expected = np.empty_like(array)
            sends = [offers.get(rank, offers[needed[0]])[part] for rank in givers]
            receive(exchange, sends, expected)
            self._require(np.array_equal(expected, array), state, fire, "receives wrong values")
        self._over(state, begin)
        self._later(state, lambda: self._completed(state, fire))

    def _meeting(self, state: _Rank, begin: Begin) -> tuple[Exchange, Fire]:
        return state.memory.exchanges[begin.actor][0], state.arrays.fire(begin.actor)

    def _neighbours(self, state: _Rank) -> Neighbour:
        """Registers of ranks on the same host, wherever their own firings have them."""

        def neighbour(fire: Fire, member: int, store: Store, part: int, like: Array) -> Array:
            exchange = state.memory.exchanges[fire.actor][0]
            other = self.ranks[exchange.members[member]]
            firing, sent, received = other.registers[exchange.key]
            word = Word.CAME if store is Store.SENT else Word.REDUCED
            self._require(
                other.words[exchange.key, word] > fire.firing == firing,
                state,
                fire,
                f"reads of rank {other.rank}, which is not there",
            )
            return (sent if store is Store.SENT else received)[part]

        return neighbour

    # What must never be.

    def _require(self, is_so: bool, state: _Rank, what: object, otherwise: str) -> None:
        if not is_so:
            raise FalseProgressError(
                f"{self._graph.name}: rank {state.rank} {otherwise} at {self._now:.1f}: {what}"
            )

    def _require_row(self, array: Array, state: _Rank, begin: Begin) -> None:
        self._require(array.flags.c_contiguous, state, begin, "sends bytes that lie apart")

    def _check_end(self, finished: bool) -> None:
        for state in self.ranks:
            waits = state.protocol.waits(), state.meetings.under_way()
            self._require(state.protocol.finished and state.meetings.idle, state, waits, "waits")
        left = [link for queues in (self._sent, self._awaited) for link, q in queues.items() if q]
        self._require(not left, self.ranks[0], left, "ends with messages under way")


def _firing(exchange: Exchange, fire: Fire) -> Firing:
    return exchange.members, exchange.key, fire.firing


CARRIED_OUT = {
    Do.SEND: SeededRun._sends,
    Do.RECEIVE: SeededRun._receives,
    Do.REDUCE: SeededRun._reduces,
    Do.TELL: SeededRun._tells,
    Do.HEAR: SeededRun._hears,
    Do.END: SeededRun._ends,
}
