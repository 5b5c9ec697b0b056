"""Shared memory: ranks of one host read each other's registers, and words, where they lie.

Every rank's arena lies in memory that all ranks of the host have mapped, behind a few *words* per
meeting: of where its data lies and what it has done. Words hold the number of the firing plus one,
so they only grow and need no reset. The parts of a meeting share them; its members run one program,
so where the first part lies tells where the others do.
"""

import mmap
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import prod

import numpy as np
from numpy.typing import NDArray

from millrace.executor.transport.communicator import RankArrays, meeting_keys
from millrace.executor.transport.mpi import World
from millrace.executor.transport.routes import Step, Store, Word
from millrace.models.arrays import Array
from millrace.planner.actors.graph import ActorGraph
from millrace.planner.actors.protocol import Fire

Words = NDArray[np.int64]

SEND_AT, RECV_AT = len(Word), len(Word) + 1  # where a rank's registers lie, behind what it has done
WORDS = 8  # of 8 bytes per meeting: one cache line
LINE_BYTES = 64


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


class MeetingWords:
    """Words of the members of meetings that are on one host, and their registers.

    Parameters
    ----------
    memory
        Arrays of the rank that says its own and hears the others'.
    shared
        The memory of the ranks of its host; None: it is there alone.
    numbers
        Number of every meeting, by its key.
    """

    def __init__(
        self, memory: RankArrays, shared: SharedMemory | None, numbers: Mapping[str, int]
    ) -> None:
        self._memory, self._fence = memory, threading.Lock()
        self._blocks = {} if shared is None else shared.blocks
        self._registers: dict[tuple[int, int, int, int], Array] = {}
        self._words = {
            actor: {
                position: shared.words[rank][numbers[exchange.key]]
                for position, rank in enumerate(exchange.members)
                if rank in shared.words
            }
            for actor, (exchange, *_) in memory.exchanges.items()
            if shared is not None
        }

    def show(self, actor: int, sent: Sequence[Array], received: Sequence[Array]) -> None:
        """Write down where the rank's registers of a meeting actor lie."""
        if self._blocks:
            base = self._blocks[self._memory.rank].ctypes.data
            words = self._words[actor][self._memory.exchanges[actor][0].position]
            for word, arrays in ((SEND_AT, sent), (RECV_AT, received)):
                if arrays:
                    words[word] = arrays[0].ctypes.data - base

    def say(self, actor: int, step: Step, firing: int) -> None:
        """Write the word of a step once all writes before it can be seen."""
        # A lock that is taken twice orders memory on every processor: release, then acquire.
        for _ in range(2):
            with self._fence:
                pass
        self._words[actor][self._memory.exchanges[actor][0].position][step.word] = firing + 1

    def are_said(self, actor: int, step: Step, firing: int) -> bool:
        """True once all whom a step hears have said its word for this firing."""
        words, word = self._words[actor], step.word
        return all(words[peer][word] > firing for peer in step.peers)

    def register(self, fire: Fire, member: int, store: Store, part: int, like: Array) -> Array:
        """Register of a member; parts lie as far apart there as they do here."""
        further = 0
        if part:
            arrays = self._memory.arrays(fire)[0 if store is Store.SENT else 1]
            further = arrays[part].ctypes.data - arrays[0].ctypes.data
        word = SEND_AT if store is Store.SENT else RECV_AT
        offset = int(self._words[fire.actor][member][word]) + further
        key = fire.actor, member, part, offset
        register = self._registers.get(key)
        if register is None:
            rank = self._memory.exchanges[fire.actor][0].members[member]
            bytes_there = self._blocks[rank][offset : offset + prod(like.shape) * like.itemsize]
            register = self._registers[key] = bytes_there.view(like.dtype).reshape(like.shape)
        return register
