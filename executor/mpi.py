"""MPI: meetings between processes, and the little that a rank asks of MPI besides.

One thread per rank owns MPI while a run lasts: it posts non-blocking calls in launch order and
tests them all. Waiting is polite, since ranks may be more than cores: as long as a member is absent
the thread sleeps, for 50 µs to 500 µs or until it is rung up (`doorbell.py`); once all are there it
tests without a pause, for a while.

`mpi4py` is imported by `join_world` alone; importing it starts MPI.
"""

import re
import threading
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from os import sched_yield
from pathlib import Path
from secrets import token_hex
from socket import gethostname
from time import perf_counter_ns, sleep
from typing import Any

import numpy as np
from numpy.typing import NDArray

from executor.communicator import Done, Exchange, Failed
from executor.doorbell import Doorbell
from executor.errors import ExecutorError
from executor.rank import RankMemory
from planner.actors.graph import ActorGraph
from planner.actors.protocol import Fire

Array = NDArray[Any]
Posted = tuple[int, Fire, Done]

SPIN_NS = 2_000_000  # a message of 4 MiB moves in this time
SLEEP_S_MIN = 50e-6  # shorter sleeps take a tenth of a core per waiting rank
SLEEP_S_MAX = 500e-6


class World:
    """All ranks of a run, seen from this one."""

    def __init__(self, mpi: Any) -> None:
        self.mpi = mpi
        self.communicator = mpi.COMM_WORLD
        self.rank: int = self.communicator.Get_rank()
        self.size: int = self.communicator.Get_size()

    def barrier(self) -> None:
        """Wait politely until every rank has come here."""
        request, wait_s = self.communicator.Ibarrier(), SLEEP_S_MIN
        while not request.Test():
            sleep(wait_s)
            wait_s = min(2 * wait_s, SLEEP_S_MAX)

    def origin_ns(self) -> int:
        """Agree on the origin of the clock: one reading for all ranks of a host.

        `perf_counter_ns` counts from the start of the host. Ranks of other hosts take their own
        reading right after a barrier.
        """
        self.barrier()
        readings: list[tuple[str, int]] = self.communicator.allgather(
            (gethostname(), perf_counter_ns())
        )
        return min(reading for host, reading in readings if host == gethostname())

    def doorbell(self) -> Doorbell:
        """Return this rank's doorbell, once every rank has one."""
        names = self.communicator.allgather((gethostname(), token_hex(8)))
        neighbours = [rank for rank, (host, _) in enumerate(names) if host == gethostname()]
        bell = Doorbell(names[0][1], self.rank, neighbours)
        self.barrier()
        return bell


def join_world() -> World:
    """Start MPI in this process and return the world.

    The names of MPI's shared-memory segments are removed as soon as every rank has them mapped, so
    that no way of dying leaves one behind.
    """
    import mpi4py

    mpi4py.rc.thread_level = "serialized"
    from mpi4py import MPI

    world = World(MPI)
    world.barrier()
    for path in mapped_segments():
        with suppress(FileNotFoundError):
            path.unlink()
    return world


def mapped_segments() -> list[Path]:
    """Return the named shared-memory segments of MPICH that this process has mapped."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return []
    found = re.findall(r"(/dev/shm/mpich_shm_\w+)$", maps.read_text(), flags=re.MULTILINE)
    return [Path(name) for name in dict.fromkeys(found)]


@dataclass(slots=True, kw_only=True)
class _Call:
    """One posted meeting: its request, and where the data goes when that is done."""

    request: Any
    exchange: Exchange
    recv: Array | None
    fire: Fire
    done: Done
    absent: int  # members that have not rung


class MpiCommunicator:
    """Meetings of one rank over MPI.

    Every rank must make its communicator at the same point: groups are created in one order that
    is the same on all ranks. Transfers travel on a duplicate of the world with a tag per key.

    Parameters
    ----------
    graph
        The actor graph.
    memory
        The rank's arrays and exchanges.
    world
        The ranks of this run; MPI rank r is rank r of the graph.
    """

    def __init__(self, graph: ActorGraph, memory: RankMemory, world: World) -> None:
        if world.size != graph.ranks:
            raise ExecutorError(f"{graph.ranks} ranks are planned, but {world.size} were started")
        self._memory = memory
        self._groups = _make_groups(graph, world)
        self._transfers = world.communicator.Dup()
        self._keys = _keys(graph)
        self._operations = {"sum": world.mpi.SUM, "max": world.mpi.MAX}
        self._bell = world.doorbell()
        self._inbox: deque[Posted | None] = deque()
        self._active: dict[tuple[int, int], _Call] = {}
        self._early: Counter[tuple[int, int]] = Counter()  # rings for calls still to be posted
        self._thread: threading.Thread | None = None

    def start(self, failed: Failed) -> None:
        """Serve meetings on the thread that owns MPI from now on."""
        self._thread = threading.Thread(
            target=self._serve, args=(failed,), name="mpi progress", daemon=True
        )
        self._thread.start()

    def post(self, rank: int, fire: Fire, done: Done) -> None:
        """Hand over one firing of a meeting actor."""
        self._inbox.append((rank, fire, done))
        self._bell.post()

    def close(self) -> None:
        """End the thread; MPI belongs to the caller again."""
        self._inbox.append(None)
        self._bell.post()
        if self._thread is not None:
            self._thread.join()
        self._bell.close()

    def _serve(self, failed: Failed) -> None:
        active, inbox, posted = self._active, self._inbox, None
        idle_ns, wait_s = perf_counter_ns(), None
        try:
            while True:
                for ring in self._bell.heard(wait_s):
                    self._heard(ring)
                while inbox:
                    posted = inbox.popleft()
                    if posted is None:
                        return
                    self._begin(posted)
                    idle_ns = perf_counter_ns()
                if self._test():
                    idle_ns = perf_counter_ns()
                if not active:
                    wait_s = None
                    continue
                waited_ns = perf_counter_ns() - idle_ns
                if waited_ns < SPIN_NS and any(call.absent <= 0 for call in active.values()):
                    wait_s = 0.0
                    sched_yield()
                else:
                    wait_s = min(max(waited_ns * 0.25e-9, SLEEP_S_MIN), SLEEP_S_MAX)
        except BaseException as error:
            failed(self._memory.rank, posted[1] if posted else None, error)

    def _heard(self, ring: tuple[int, int]) -> None:
        """Take note that a member has come to a meeting."""
        call = self._active.get(ring)
        if call is None:
            self._early[ring] += 1
        else:
            call.absent -= 1

    def _test(self) -> bool:
        """Finish the calls whose data has moved; True if there was one."""
        moved = [
            ring
            for ring, call in self._active.items()
            if call.request is None or call.request.Test()
        ]
        for ring in moved:
            call = self._active.pop(ring)
            if call.recv is not None:
                call.exchange.deliver(call.recv)
            call.done(call.fire)
        return bool(moved)

    def _begin(self, posted: Posted) -> None:
        """Post a call to MPI and tell the other members."""
        _, fire, done = posted
        sends, recvs = self._memory.arrays(fire)
        exchange = self._memory.exchanges[fire.actor]
        send = exchange.outgoing(sends[0]) if sends else None
        recv = recvs[0] if recvs else None
        target = None if recv is None else exchange.incoming(recv)
        request = None
        if len(exchange.members) > 1:
            if exchange.kind not in CALLS:
                raise ExecutorError(f"`{exchange.name}`: the MPI transport has no {exchange.kind}")
            request = CALLS[exchange.kind](self, exchange, send, target)
        elif send is not None and target is not None:
            np.copyto(target, send)
        ring = self._keys[exchange.key], fire.firing
        others = [member for member in exchange.members if member != self._memory.rank]
        self._active[ring] = _Call(
            request=request,
            exchange=exchange,
            recv=recv,
            fire=fire,
            done=done,
            absent=len(others) - self._early.pop(ring, 0),
        )
        self._bell.ring(others, *ring)

    def _all_reduce(self, exchange: Exchange, send: Any, recv: Any) -> Any:
        operation = self._operations[exchange.reduction]
        return self._groups[exchange.members].Iallreduce(send, recv, operation)

    def _all_gather(self, exchange: Exchange, send: Any, recv: Any) -> Any:
        return self._groups[exchange.members].Iallgather(send, recv)

    def _reduce_scatter(self, exchange: Exchange, send: Any, recv: Any) -> Any:
        operation = self._operations[exchange.reduction]
        return self._groups[exchange.members].Ireduce_scatter_block(send, recv, operation)

    def _all_to_all(self, exchange: Exchange, send: Any, recv: Any) -> Any:
        return self._groups[exchange.members].Ialltoall(send, recv)

    def _send(self, exchange: Exchange, send: Any, recv: Any) -> Any:
        return self._transfers.Isend(send, exchange.members[1], self._keys[exchange.key])

    def _recv(self, exchange: Exchange, send: Any, recv: Any) -> Any:
        return self._transfers.Irecv(recv, exchange.members[0], self._keys[exchange.key])


CALLS: dict[str, Callable[[MpiCommunicator, Exchange, Any, Any], Any]] = {
    "all_reduce": MpiCommunicator._all_reduce,
    "all_gather": MpiCommunicator._all_gather,
    "reduce_scatter": MpiCommunicator._reduce_scatter,
    "all_to_all": MpiCommunicator._all_to_all,
    "send": MpiCommunicator._send,
    "recv": MpiCommunicator._recv,
}


def _make_groups(graph: ActorGraph, world: World) -> dict[tuple[int, ...], Any]:
    """Create the communicators of this rank's groups, in one order on all ranks."""
    groups = {
        graph.members(rank, actor.meeting)
        for program in graph.programs
        for actor in program.actors
        if actor.meeting is not None and actor.meeting.peer is None
        for rank in program.ranks
    }
    everyone = world.communicator.Get_group()
    return {
        members: world.communicator.Create_group(everyone.Incl(members), tag)
        for tag, members in enumerate(sorted(groups))
        if len(members) > 1 and world.rank in members
    }


def _keys(graph: ActorGraph) -> dict[str, int]:
    """A number for every meeting key, the same on all ranks."""
    keys = {
        actor.meeting.key
        for program in graph.programs
        for actor in program.actors
        if actor.meeting is not None
    }
    return {key: number for number, key in enumerate(sorted(keys))}
