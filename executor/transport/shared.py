"""Meetings in shared memory: ranks of one host read each other's registers where they lie.

Every rank's arena lies in memory that all ranks of the host have mapped, behind a few *words* per
meeting. A member that comes to a meeting writes where its data lies, then that it has come
(`CAME`); once all have come, each reads from all others what it receives, writes that it has done
so (`READ`), and is through when all that read from it have. A large all_reduce has a middle part:
each member first reduces its own piece (`REDUCED`), then copies the others' pieces. Words hold the
number of the firing plus one, so they only grow and need no reset. The parts of a bucket share
these rounds; its members run one program, so where the first part lies tells where the others do.

No message carries data and nobody spins for long: after each part a rank rings the others'
doorbells. One thread per rank carries out its meetings.
"""

import mmap
import os
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from time import perf_counter_ns
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from millrace.executor.transport.communicator import (
    Done,
    Exchange,
    Failed,
    RankArrays,
    meeting_keys,
    receive,
)
from millrace.executor.transport.mpi import World
from millrace.executor.transport.reductions import reduce_into
from millrace.models.arrays import Array
from millrace.planner.actors.graph import ActorGraph
from millrace.planner.actors.protocol import Fire

Words = NDArray[np.int64]

CAME, REDUCED, READ, SEND_AT, RECV_AT = range(5)
WORDS = 8  # of 8 bytes per meeting: one cache line
LINE_BYTES = 64

PIECES_BYTES_MIN = 2**16  # below, one more round costs more than it saves
SPIN_NS = 50_000  # about what waking a sleeping thread takes
RECHECK_S = 0.01  # rings are not lost in practice; this bounds the harm if one is


class SharedMemory:
    """The arenas and words of the ranks of this host, mapped by this one.

    Attributes
    ----------
    hosts
        Host of every rank of the run, by any number: ranks of one number have these mapped.
    blocks
        Arena of every rank of this host as bytes.
    words
        `words[rank][meeting]`: the words of one rank's part in a meeting, by its number.
    """

    def __init__(self, maps: Mapping[int, mmap.mmap], meetings: int, hosts: Sequence[int]) -> None:
        first = meetings * LINE_BYTES
        self.hosts = tuple(hosts)
        segments = {rank: np.frombuffer(segment, np.uint8) for rank, segment in maps.items()}
        self.words: dict[int, Words] = {
            rank: block[:first].view(np.int64).reshape(meetings, WORDS)
            for rank, block in segments.items()
        }
        self.blocks = {rank: block[first:] for rank, block in segments.items()}


def share_memory(graph: ActorGraph, world: World) -> SharedMemory | None:
    """Make this rank's memory and map that of all others of its host; None on no Linux.

    Ranks of a host that cannot map each other's are taken for hosts of their own. Segments have no
    name: the others open them through this process, so nothing is left behind however it ends.
    Every rank must call this at the same point.
    """
    meetings = max(1, len(meeting_keys(graph)))
    program = graph.programs[graph.program_of(world.rank)]
    size = meetings * LINE_BYTES + max(program.memory_bytes, LINE_BYTES)
    segment = -1
    if hasattr(os, "memfd_create"):
        segment = os.memfd_create(f"millrace rank {world.rank}")
        os.ftruncate(segment, size)
    hosts = world.hosts()
    offers = world.communicator.allgather((os.getpid(), segment, size))
    maps: dict[int, mmap.mmap] = {}
    with suppress(OSError):
        for rank, (pid, number, length) in enumerate(offers):
            if hosts[rank] == hosts[world.rank]:
                opened = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR)
                maps[rank] = mmap.mmap(opened, length)
                os.close(opened)
    has_mapped = world.communicator.allgather(len(maps) == hosts.count(hosts[world.rank]))
    strangers = {host for host, mapped in zip(hosts, has_mapped, strict=True) if not mapped}
    hosts = tuple(rank if host in strangers else host for rank, host in enumerate(hosts))
    if segment >= 0:
        os.close(segment)
    if world.rank not in maps:
        return None
    maps = {rank: maps[rank] for rank in maps if hosts[rank] == hosts[world.rank]}
    return SharedMemory(maps, meetings, hosts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _MeetingWords:
    """One rank's place in one meeting: its own words, the others', and all in the group's order.

    `exchange` is that of its first part; `readers` are those who read what this rank sends.
    """

    exchange: Exchange
    words: Words
    others: list[Words]
    readers: list[Words]
    members: list[Words]

    def all_others(self, word: int, firing: int) -> bool:
        """True once every other member has written `word` for this firing."""
        return all(words[word] > firing for words in self.others)

    def all_readers(self, firing: int) -> bool:
        """True once nobody reads this member's registers for this firing any more."""
        return all(words[READ] > firing for words in self.readers)


_THROUGH = object()


class _Reducing(NamedTuple):
    """A part of an all_reduce in pieces; its results lie so much `further` than the first's."""

    exchange: Exchange
    sends: Sequence[Array]
    recv: Array
    further: int


class _MeetingUnderWay(NamedTuple):
    """A meeting under way: what is still to be done, a part at a time."""

    parts: Iterator[None]
    fire: Fire
    done: Done


class SharedCommunicator:
    """Meetings of one rank through shared memory.

    Parameters
    ----------
    graph
        The actor graph.
    memory
        The rank's arrays, laid out in its block of `shared`.
    world
        The ranks of this run; all must make their communicators at the same point.
    shared
        The memory of all ranks.
    """

    def __init__(
        self, graph: ActorGraph, memory: RankArrays, world: World, shared: SharedMemory
    ) -> None:
        self._memory, self._shared = memory, shared
        self._base = shared.blocks[memory.rank].ctypes.data
        numbers = meeting_keys(graph)
        self._seats = {
            actor: _MeetingWords(
                exchange=exchange,
                words=shared.words[memory.rank][numbers[exchange.key]],
                others=[shared.words[rank][numbers[exchange.key]] for rank in exchange.others],
                readers=[shared.words[rank][numbers[exchange.key]] for rank in exchange.readers],
                members=[shared.words[rank][numbers[exchange.key]] for rank in exchange.members],
            )
            for actor, (exchange, *_) in memory.exchanges.items()
        }
        self._bell = world.doorbell(shared.words)
        self._inbox: deque[tuple[Fire, Done] | None] = deque()
        self._views: dict[tuple[int, int, tuple[int, ...], str], Array] = {}
        self._fence = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self, failed: Failed) -> None:
        """Serve meetings on a thread."""
        self._thread = threading.Thread(
            target=self._serve, args=(failed,), name="meetings", daemon=True
        )
        self._thread.start()

    def post(self, rank: int, fire: Fire, done: Done) -> None:
        """Hand over one firing of a meeting actor."""
        seat = self._seats[fire.actor]
        sends, recvs = self._memory.arrays(fire)
        for word, arrays in ((SEND_AT, sends), (RECV_AT, recvs)):
            if arrays:
                seat.words[word] = arrays[0].ctypes.data - self._base
        # Before the others are told: by their rings the thread must see what has been posted.
        self._inbox.append((fire, done))
        self._tell(seat, CAME, fire.firing)
        # Who comes last has this one's bell rung; who only sends waits for those who read.
        if recvs and seat.all_others(CAME, fire.firing):
            self._bell.ring((self._memory.rank,))

    def close(self) -> None:
        """End the thread."""
        self._inbox.append(None)
        self._bell.ring((self._memory.rank,))
        if self._thread is not None:
            self._thread.join()
        self._bell.close()

    def _serve(self, failed: Failed) -> None:
        active: list[_MeetingUnderWay] = []
        wait_s: float | None = None
        moved_ns = 0
        fire: Fire | None = None
        try:
            while True:
                self._bell.wait(wait_s)
                while self._inbox:
                    posted = self._inbox.popleft()
                    if posted is None:
                        return
                    fire, done = posted
                    active.append(_MeetingUnderWay(self._parts(fire), fire, done))
                    moved_ns = perf_counter_ns()
                for call in tuple(active):
                    fire = call.fire
                    if next(call.parts, _THROUGH) is _THROUGH:
                        active.remove(call)
                        call.done(call.fire)
                if not active:
                    wait_s = None
                elif perf_counter_ns() - moved_ns < SPIN_NS:
                    os.sched_yield()
                    wait_s = 0.0
                else:
                    wait_s = RECHECK_S
        except BaseException as error:
            failed(self._memory.rank, fire, error)

    def _parts(self, fire: Fire) -> Iterator[None]:
        """Carry out a meeting; yields whenever others are waited for."""
        seat, exchanges = self._seats[fire.actor], self._memory.exchanges[fire.actor]
        sent, received = self._memory.arrays(fire)
        while not seat.all_others(CAME, fire.firing):
            yield
        in_pieces: list[_Reducing] = []
        for part, (exchange, recv) in enumerate(zip(exchanges, received, strict=bool(received))):
            like = sent[part] if sent else recv
            givers = len(exchange.members) if sent else 1
            further = _distance(sent, part)
            sends = [
                self._view(seat, position, SEND_AT, like, further) for position in range(givers)
            ]
            if exchange.kind == "all_reduce" and recv.nbytes >= PIECES_BYTES_MIN:
                in_pieces.append(_Reducing(exchange, sends, recv, _distance(received, part)))
            else:
                receive(exchange, sends, recv)
        if in_pieces:
            yield from self._reduce_in_pieces(seat, fire.firing, in_pieces)
        self._tell(seat, READ, fire.firing)
        while not seat.all_readers(fire.firing):
            yield

    def _reduce_in_pieces(
        self, seat: _MeetingWords, firing: int, parts: Sequence[_Reducing]
    ) -> Iterator[None]:
        """Reduce one piece of every tensor here, and take the other pieces from the others."""
        own_position = seat.exchange.position
        for exchange, sends, recv, _ in parts:
            own_piece = _bounds(recv.size, len(sends))[own_position]
            terms = [send.reshape(-1)[own_piece] for send in sends]
            reduce_into(recv.reshape(-1)[own_piece], terms, exchange.reduction)
        self._tell(seat, REDUCED, firing)
        while not seat.all_others(REDUCED, firing):
            yield
        for _, sends, recv, further in parts:
            for position, piece in enumerate(_bounds(recv.size, len(sends))):
                if position != own_position:
                    result = self._view(seat, position, RECV_AT, recv, further)
                    np.copyto(recv.reshape(-1)[piece], result.reshape(-1)[piece])

    def _tell(self, seat: _MeetingWords, word: int, firing: int) -> None:
        """Write a word once all writes before it can be seen, and wake the others."""
        # A lock that is taken twice orders memory on every processor: release, then acquire.
        for _ in range(2):
            with self._fence:
                pass
        seat.words[word] = firing + 1
        self._bell.ring(seat.exchange.others)

    def _view(
        self, seat: _MeetingWords, position: int, word: int, like: Array, further: int
    ) -> Array:
        """View of what a member sends or receives, in the shape of this rank's own part.

        It lies so many bytes `further` than the meeting's first part.
        """
        member = seat.exchange.members[position]
        offset = int(seat.members[position][word]) + further
        key = member, offset, like.shape, like.dtype.str
        view = self._views.get(key)
        if view is None:
            size_bytes = prod(like.shape) * like.itemsize
            bytes_there = self._shared.blocks[member][offset : offset + size_bytes]
            view = self._views[key] = bytes_there.view(like.dtype).reshape(like.shape)
        return view


def _distance(arrays: Sequence[Array], part: int) -> int:
    """Bytes from the first of a meeting's arrays to that of a part, the same on every member."""
    return arrays[part].ctypes.data - arrays[0].ctypes.data if part else 0


def _bounds(size: int, parts: int) -> list[slice]:
    """Slices that cut `size` elements into `parts` pieces of nearly equal length."""
    ends = [size * index // parts for index in range(parts + 1)]
    return [slice(start, end) for start, end in pairwise(ends)]
