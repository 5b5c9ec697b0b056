"""Meetings by MPI messages: for ranks on several hosts, or wherever memory cannot be shared.

One thread per rank owns MPI while a run lasts: it posts non-blocking calls in launch order and
tests them all. Waiting is polite, since ranks may be more than cores: a few tests in a row, then
sleeps that grow from 50 µs to 500 µs and end at once when a new call is posted.

MPI moves *blocks*: equal contiguous pieces, one per member. Where a tensor is cut along dim 0 its
memory is already a row of blocks; along another dim it is copied through a staging buffer.
"""

import threading
from collections.abc import Callable, Sequence
from math import prod
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import numpy as np

from millrace.executor.transport.communicator import (
    Done,
    Exchange,
    Failed,
    RankArrays,
    meeting_keys,
)
from millrace.executor.transport.mpi import World
from millrace.models.arrays import Array
from millrace.planner.actors.graph import ActorGraph
from millrace.planner.actors.protocol import Fire

Posted = tuple[int, Fire, Done]

SPINS = 20  # tests without a sleep, about 20 µs: messages between idle ranks arrive by then
SLEEP_S_MIN = 50e-6  # shorter sleeps take a tenth of a core per waiting rank
SLEEP_S_MAX = 500e-6


class StridedBlocks:
    """A tensor of `shape` seen as `parts` blocks along `dim`, staged where memory is not so.

    In the strided shape, `pre` dims lie before the cut dim and `post` dims after it.
    """

    def __init__(self, shape: tuple[int, ...], dim: int, parts: int, dtype: np.dtype[Any]) -> None:
        pre, post = prod(shape[:dim]), prod(shape[dim + 1 :])
        self._strided = (pre, parts, shape[dim] // parts, post)
        self._staging: Array | None = None
        if pre > 1 and parts > 1:
            self._staging = np.empty((parts, pre, shape[dim] // parts, post), dtype)

    def contiguous(self, view: Array) -> Array:
        """Buffer in block order of the size of `view`, without its values."""
        return view if self._staging is None else self._staging

    def packed(self, view: Array) -> Array:
        """Values of `view` in block order."""
        if self._staging is None:
            return view
        np.copyto(self._staging, view.reshape(self._strided).swapaxes(0, 1))
        return self._staging

    def unpack(self, view: Array) -> None:
        """Write the values of the buffer that `contiguous` gave into `view`."""
        if self._staging is not None:
            np.copyto(view.reshape(self._strided).swapaxes(0, 1), self._staging)


class _Both(NamedTuple):
    """Two requests as one."""

    first: Any
    second: Any

    def Test(self) -> bool:  # noqa: N802 - as MPI's requests have it
        """True if both are done; a request that is done stays so."""
        return bool(self.first.Test()) & bool(self.second.Test())


class _Moving(NamedTuple):
    """One part of a posted meeting: its request, and where the data goes when that is done."""

    request: Any
    blocks: StridedBlocks | None = None
    recv: Array | None = None

    def done(self) -> bool:
        """True if the data has moved; a request that is done stays so."""
        return self.request is None or bool(self.request.Test())


class _PostedMeeting(NamedTuple):
    """One posted meeting."""

    parts: tuple[_Moving, ...]
    fire: Fire
    done: Done


class MessageCommunicator:
    """Meetings of one rank by MPI messages.

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

    def __init__(self, graph: ActorGraph, memory: RankArrays, world: World) -> None:
        self._memory = memory
        self._groups = _make_groups(graph, world)
        self._transfers = world.communicator.Dup()
        self._tags = meeting_keys(graph)
        self._operations = {"sum": world.mpi.SUM, "max": world.mpi.MAX}
        self._blocks: dict[tuple[int, int], tuple[StridedBlocks | None, StridedBlocks | None]] = {}
        self._inbox: SimpleQueue[Posted | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, failed: Failed) -> None:
        """Serve meetings on the thread that owns MPI from now on."""
        self._thread = threading.Thread(
            target=self._serve, args=(failed,), name="mpi progress", daemon=True
        )
        self._thread.start()

    def post(self, rank: int, fire: Fire, done: Done) -> None:
        """Hand over one firing of a meeting actor."""
        self._inbox.put((rank, fire, done))

    def close(self) -> None:
        """End the thread; MPI belongs to the caller again."""
        self._inbox.put(None)
        if self._thread is not None:
            self._thread.join()

    def _serve(self, failed: Failed) -> None:
        active: list[_PostedMeeting] = []
        tests, posted = 0, None
        try:
            while True:
                try:
                    waits = tests > SPINS or not active
                    posted = self._inbox.get(waits, _pause(active, tests))
                except Empty:
                    tests = 0 if self._test(active) else tests + 1
                    continue
                if posted is None:
                    return
                active.append(self._begin(posted))
                tests = 0
        except BaseException as error:
            failed(self._memory.rank, posted[1] if posted else None, error)

    def _test(self, active: list[_PostedMeeting]) -> bool:
        """Finish the calls whose data has moved; True if there was one."""
        # Any test makes MPI go on with every request: parts are asked up to one that is not done.
        moved = [call for call in active if all(part.done() for part in call.parts)]
        for call in moved:
            active.remove(call)
            for _, blocks, recv in call.parts:
                if blocks is not None and recv is not None:
                    blocks.unpack(recv)
            call.done(call.fire)
        return bool(moved)

    def _begin(self, posted: Posted) -> _PostedMeeting:
        """Post a meeting to MPI: a call per part, at once."""
        _, fire, done = posted
        sends, recvs = self._memory.arrays(fire)
        parts = []
        for part, exchange in enumerate(self._memory.exchanges[fire.actor]):
            send = sends[part] if sends else None
            recv = recvs[part] if recvs else None
            parts.append(self._moving((fire.actor, part), exchange, send, recv))
        return _PostedMeeting(tuple(parts), fire, done)

    def _moving(
        self, part: tuple[int, int], exchange: Exchange, send: Array | None, recv: Array | None
    ) -> _Moving:
        """Post a part of a meeting, given as (actor, part), to MPI."""
        target = recv
        if len(exchange.members) == 1:
            if send is not None and recv is not None:
                np.copyto(recv, send)
            return _Moving(None)
        outgoing, incoming = self._staged(part, exchange, send, recv)
        if outgoing is not None and send is not None:
            send = outgoing.packed(send)
        if incoming is not None and recv is not None:
            target = incoming.contiguous(recv)
        request = CALLS[exchange.kind](self, exchange, send, target)
        return _Moving(request, incoming, recv)

    def _staged(
        self, part: tuple[int, int], exchange: Exchange, send: Array | None, recv: Array | None
    ) -> tuple[StridedBlocks | None, StridedBlocks | None]:
        """Blocks that a part (actor, part) sends and receives, made at its first firing."""
        if part not in self._blocks:
            count = len(exchange.members)
            self._blocks[part] = (
                _blocks(send, exchange.scatter_dim, count),
                _blocks(recv, exchange.gather_dim, count),
            )
        return self._blocks[part]

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
        return self._transfers.Isend(send, exchange.members[1], self._tags[exchange.key])

    def _recv(self, exchange: Exchange, send: Any, recv: Any) -> Any:
        return self._transfers.Irecv(recv, exchange.members[0], self._tags[exchange.key])

    def _rotate(self, exchange: Exchange, send: Any, recv: Any) -> Any:
        count, position = len(exchange.members), exchange.position
        tag = self._tags[exchange.key]
        return _Both(
            self._transfers.Irecv(recv, exchange.members[position - 1], tag),
            self._transfers.Isend(send, exchange.members[(position + 1) % count], tag),
        )


CALLS: dict[str, Callable[[MessageCommunicator, Exchange, Any, Any], Any]] = {
    "all_reduce": MessageCommunicator._all_reduce,
    "all_gather": MessageCommunicator._all_gather,
    "reduce_scatter": MessageCommunicator._reduce_scatter,
    "all_to_all": MessageCommunicator._all_to_all,
    "send": MessageCommunicator._send,
    "recv": MessageCommunicator._recv,
    "rotate": MessageCommunicator._rotate,
}


def _blocks(array: Array | None, dim: int | None, parts: int) -> StridedBlocks | None:
    if array is None or dim is None:
        return None
    return StridedBlocks(array.shape, dim, parts, array.dtype)


def _pause(active: Sequence[_PostedMeeting], tests: int) -> float | None:
    """Seconds to wait for a new call before the next test; None: until one comes."""
    if not active:
        return None
    return min(SLEEP_S_MIN * 1.5 ** min(max(tests - SPINS - 1, 0), 10), SLEEP_S_MAX)


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
