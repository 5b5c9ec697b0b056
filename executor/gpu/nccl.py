"""NCCL through CuPy: collectives of flat tensors between GPUs, as a driver asks for them.

Every group of ranks has a communicator of its own on every lane where it meets. All ranks make,
warm up and use their communicators in one order, so that no two of them wait for each other.
"""

import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from millrace.executor.cuda.calls import Bucket, Collective, Operand
from millrace.executor.errors import ExecutorError
from millrace.executor.gpu.availability import require_nccl
from millrace.executor.gpu.device import ADDRESS, address_of
from millrace.executor.transport.mpi import World
from millrace.planner.errors import InfeasibleError

INIT_S_MAX = 180.0  # ranks come here within seconds of each other, unless one of them has died
POLL_S = 0.5
ABORT_S_MAX = 10.0  # kernels leave within milliseconds; a library that hangs too must not hide why
CTAS_MAX = 32  # NCCL's own limit where NCCL_MAX_CTAS is not set (NCCL 2.27 user guide)
IN_PROGRESS = 7  # ncclInProgress, NCCL 2.27 user guide
DTYPES = {
    "int32": "NCCL_INT32",
    "int64": "NCCL_INT64",
    "float16": "NCCL_FLOAT16",
    "float32": "NCCL_FLOAT32",
    "float64": "NCCL_FLOAT64",
    "bfloat16": "NCCL_BFLOAT16",
}
ITEM_BYTES = {"int32": 4, "int64": 8, "float16": 2, "float32": 4, "float64": 8, "bfloat16": 2}
REDUCTIONS = {"sum": "NCCL_SUM", "max": "NCCL_MAX"}
WARM_DTYPE = "float32"


class LaneGroup(NamedTuple):
    """Ranks that meet, in the order of the group, and the lane on which they do.

    Of a transfer it is (sender, receiver).
    """

    members: tuple[int, ...]
    lane: str


class DeviceCommunicator(Protocol):
    """Carries out the collectives of one rank, each in the order of a stream."""

    def issue(
        self, call: Collective | Bucket, group: LaneGroup, stream: int, actor: str = ""
    ) -> None:
        """Carry out one bound collective, or several at once; `actor` is named if it fails."""
        ...

    def warm_up(
        self, kinds: Mapping[LaneGroup, Collection[str]], scratch: int, stream: int
    ) -> None:
        """Carry out every kind of collective once, before any is captured.

        `scratch` is the address of `warm_up_bytes(kinds)` bytes of device memory.
        """
        ...

    def check(self) -> None:
        """Raise an ExecutorError if a collective has failed."""
        ...

    def close(self) -> None:
        """Give back what the groups hold."""
        ...


def exchange_ids(world: World, groups: Iterable[LaneGroup]) -> dict[LaneGroup, bytes]:
    """Agree on an id for every group: its first member makes it.

    All ranks of the world take part in one exchange, whatever groups they are in, so there is no
    order of groups that could hang.

    Parameters
    ----------
    world
        All ranks.
    groups
        At least those that this rank is in.

    Raises
    ------
    ExecutorError
        NCCL is missing, or the first member of a group does not list it.
    """
    nccl = require_nccl()
    wanted = sorted(set(groups))
    own_ids = {group: nccl.get_unique_id() for group in wanted if group.members[0] == world.rank}
    ids: dict[LaneGroup, bytes] = {}
    for rank_ids in world.communicator.allgather(own_ids):
        ids |= rank_ids
    for group in wanted:
        if group not in ids:
            raise ExecutorError(
                f"rank {group.members[0]} has no group {group.members} on lane `{group.lane}`",
                rank=world.rank,
            )
    return {group: ids[group] for group in wanted}


def channels_max(lanes: int, multiprocessors: int) -> int:
    """Blocks that a collective may take so that one of every lane fits on the device.

    A block of NCCL waits on its multiprocessor for blocks of other GPUs. If those of one lane fill
    the device here, and those of another lane fill the device there, both wait for ever for blocks
    that find no room. A block may need most of a multiprocessor's shared memory, so one block per
    multiprocessor is counted on, and of these 8 in 9: on Hopper, blocks come in clusters of four
    that must lie in one of the groups of at most 18 that its 132 multiprocessors form (NVIDIA H100
    white paper, 2022). Kernels that compute end by themselves and give their room back. Collectives
    of one lane are in one stream and follow each other, however many groups meet there. So::

        lanes * channels <= multiprocessors * 8 / 9

    with a power of two, since NCCL rounds the channels of transfers up to one (src/graph/paths.cc).

    Raises
    ------
    InfeasibleError
        There are more lanes than that.

    Examples
    --------
    >>> channels_max(6, 132)
    16
    """
    room = multiprocessors * 8 // 9
    if lanes > room:
        raise InfeasibleError(
            f"collectives on {lanes} lanes at once do not fit on {multiprocessors} multiprocessors "
            f"(at most {room}): use fewer mesh axes"
        )
    return min(CTAS_MAX, 1 << (room // max(lanes, 1)).bit_length() - 1)


def set_environment(world: World, lanes: int, multiprocessors: int) -> None:
    """Set what NCCL reads from the environment, before the first communicator is made.

    What the user has set stays. All ranks get the same values, since the members of a group must
    agree on their channels (NCCL takes its rings' and trees' channels, those of transfers and those
    of NVLink multicast within this limit: src/graph/connect.cc, paths.cc, src/transport/nvls.cc of
    2.27). Connections are made when a communicator is, not at the first call of each algorithm,
    which may be one of a captured step (`NCCL_RUNTIME_CONNECT`, since 2.22).

    `NCCL_LAUNCH_ORDER_IMPLICIT`, which lets collectives of all communicators begin in the order in
    which the host issues them, stays off: with it on, NCCL 2.28.9 crashes (SIGSEGV) where the first
    captured send to oneself ends, and without it does not (H100, driver 580.159, 2026-11-23).
    That no two collectives wait for each other's room is what `channels_max` sees to.

    Parameters
    ----------
    world
        All ranks; all of them call this.
    lanes
        Number of lanes on which this rank meets others.
    multiprocessors
        Number of multiprocessors of its GPU.
    """
    everyone = world.communicator.allgather((lanes, multiprocessors))
    most, fewest = max(count for count, _ in everyone), min(count for _, count in everyone)
    os.environ.setdefault("NCCL_MAX_CTAS", str(channels_max(most, fewest)))
    os.environ.setdefault("NCCL_RUNTIME_CONNECT", "0")


def warm_up_bytes(kinds: Mapping[LaneGroup, Collection[str]]) -> int:
    """Bytes of scratch for `DeviceCommunicator.warm_up`: one element to and from each member."""
    return 2 * ITEM_BYTES[WARM_DTYPE] * max((len(group.members) for group in kinds), default=1)


class NcclCommunicator:
    """The NCCL communicators of one rank.

    A thread asks them every half second whether something has failed; if so it aborts all of them,
    which ends their kernels on the device, and tells `failed`. NCCL notices peers that die only
    over a network; on one host the launcher ends all ranks when one dies. Peers that live and do
    not come it never notices: who waits for a step has a deadline, and calls `abandon`.

    Parameters
    ----------
    rank
        This rank.
    ids
        The groups that it is in, as `exchange_ids` returns them.
    use_device
        Makes the rank's GPU the one that the calling thread works on.
    failed
        Called once, from a thread, with the error that `check` raises from then on.
    timeout_s
        Seconds to wait for the other members of a group.

    Raises
    ------
    ExecutorError
        The other members of a group have not come, or NCCL refuses. A thread may still wait inside
        NCCL then: end the process with `os._exit`.
    """

    def __init__(
        self,
        rank: int,
        ids: Mapping[LaneGroup, bytes],
        *,
        use_device: Callable[[], None],
        failed: Callable[[ExecutorError], None],
        timeout_s: float = INIT_S_MAX,
    ) -> None:
        self.rank = rank
        self._nccl = require_nccl()
        self._failed = failed
        self._error: ExecutorError | None = None
        self._use_device = use_device
        self._communicators: dict[LaneGroup, Any] = {}
        self._last: dict[LaneGroup, str] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._begin(ids, timeout_s)
        self._watch = threading.Thread(target=self._watching, name="nccl watch", daemon=True)
        self._watch.start()

    def issue(
        self, call: Collective | Bucket, group: LaneGroup, stream: int, actor: str = ""
    ) -> None:
        """Carry out one bound collective, or several at once; `actor` is named if it fails."""
        communicator = self._communicators.get(group)
        if communicator is None:
            raise self._error or self._wrong(group, actor, "no communicator was made for it")
        self._last[group] = actor
        member = _GroupMember(self._nccl, communicator, group, self.rank, stream)
        try:
            if isinstance(call, Bucket):
                member.at_once(call)
            else:
                CALLS[call.kind](member, call)
        except self._nccl.NcclError as error:
            raise self._error or self._wrong(group, actor, str(error)) from error

    def warm_up(
        self, kinds: Mapping[LaneGroup, Collection[str]], scratch: int, stream: int
    ) -> None:
        """Carry out every kind of collective once: connections are made, and memory is taken, now.

        The two ends of a transfer name it alike: `send` or `recv`, each for its own part.
        """
        half = warm_up_bytes(kinds) // 2
        send, recv = Operand(ADDRESS, 0, scratch), Operand(ADDRESS, 0, scratch + half)
        for group in sorted(kinds):
            for kind in sorted(kinds[group]):
                self.issue(Collective(kind, send, recv, 1, WARM_DTYPE), group, stream, "warm-up")

    def check(self) -> None:
        """Raise the error that the thread has found, if it has."""
        if self._error is not None:
            raise self._error

    def last_issued(self) -> list[str]:
        """The collective that was issued last for every group, in words."""
        return [
            f"`{actor}` of ranks {group.members} on lane `{group.lane}`"
            for group, actor in sorted(self._last.items())
        ]

    def abandon(self, error: ExecutorError) -> None:
        """End collectives that may never end by themselves; `check` raises the error then."""
        self._error = self._error or error
        self._closed.set()
        abort = threading.Thread(target=self._abort, name="nccl abort", daemon=True)
        abort.start()
        abort.join(ABORT_S_MAX)

    def close(self) -> None:
        """End the thread and destroy the communicators; all work must be done."""
        self._closed.set()
        if threading.current_thread() is not self._watch:
            self._watch.join()
        with self._lock:
            for group in sorted(self._communicators):
                self._communicators[group].destroy()
            self._communicators.clear()

    def _begin(self, ids: Mapping[LaneGroup, bytes], timeout_s: float) -> None:
        """Make all communicators, each within the time; CuPy's binding can only block."""
        current: list[LaneGroup] = []
        raised: list[BaseException] = []
        joined = threading.Semaphore(0)

        def work() -> None:
            try:
                self._use_device()
                for group in sorted(ids):
                    current[:] = [group]
                    position = group.members.index(self.rank)
                    size = len(group.members)
                    self._communicators[group] = self._nccl.NcclCommunicator(
                        size, ids[group], position
                    )
                    joined.release()
            except BaseException as error:
                raised.append(error)
                joined.release()

        threading.Thread(target=work, name="nccl start", daemon=True).start()
        for _ in ids:
            if not joined.acquire(timeout=timeout_s):
                group = current[0]
                others = [member for member in group.members if member != self.rank]
                raise self._wrong(
                    group,
                    "",
                    f"ranks {others} did not all join within {timeout_s:g} s: one has died, or "
                    f"cannot be reached (NCCL_DEBUG=INFO shows the addresses; NCCL_SOCKET_IFNAME "
                    f"names the network to use)",
                )
            if raised:
                raise self._wrong(current[0] if current else None, "", str(raised[0]))

    def _watching(self) -> None:
        """Body of the thread."""
        self._use_device()
        while not self._closed.wait(POLL_S):
            with self._lock:
                error = next(
                    filter(None, map(self._async_error, sorted(self._communicators))), None
                )
                if error is None:
                    continue
            self._error = self._error or error
            self._abort()
            self._failed(self._error)
            return

    def _abort(self) -> None:
        """End the kernels of all communicators, which are gone then."""
        self._use_device()
        with self._lock:
            while self._communicators:
                self._communicators.popitem()[1].abort()

    def _async_error(self, group: LaneGroup) -> ExecutorError | None:
        """Error of what has gone wrong in a group; None if nothing has."""
        try:
            self._communicators[group].check_async_error()
        except Exception as error:
            # CuPy 14.2 has no name for "in progress" and says so with a KeyError.
            if error.args == (IN_PROGRESS,):
                return None
            return self._wrong(group, self._last.get(group, ""), str(error))
        return None

    def _wrong(self, group: LaneGroup | None, actor: str, cause: str) -> ExecutorError:
        where = "" if group is None else f" of ranks {group.members} on lane `{group.lane}`"
        return ExecutorError(f"NCCL{where}: {cause}", rank=self.rank, actor=actor or None)


class _GroupMember(NamedTuple):
    """One rank's part in a group, on a stream."""

    nccl: Any
    communicator: Any
    group: LaneGroup
    rank: int
    stream: int

    def dtype(self, call: Collective) -> int:
        if call.dtype not in DTYPES:
            raise ExecutorError(f"NCCL has no {call.dtype}: expected one of {', '.join(DTYPES)}")
        return int(getattr(self.nccl, DTYPES[call.dtype]))

    def reduction(self, call: Collective) -> int:
        return int(getattr(self.nccl, REDUCTIONS[call.reduction]))

    def at_once(self, bucket: Bucket) -> None:
        """Carry out several collectives as one launch: that of the end of the group."""
        self.nccl.groupStart()
        try:
            for call in bucket.collectives:
                CALLS[call.kind](self, call)
        finally:
            self.nccl.groupEnd()

    def exchange(
        self, call: Collective, sends: Iterable[tuple[int, int]], recvs: Iterable[tuple[int, int]]
    ) -> None:
        """Send and receive blocks at once: (address, position of the other member) each."""
        dtype = self.dtype(call)
        self.nccl.groupStart()
        try:
            for address, peer in sends:
                self.communicator.send(address, call.elements, dtype, peer, self.stream)
            for address, peer in recvs:
                self.communicator.recv(address, call.elements, dtype, peer, self.stream)
        finally:
            self.nccl.groupEnd()


def _all_reduce(member: _GroupMember, call: Collective) -> None:
    member.communicator.allReduce(
        address_of(call.send),
        address_of(call.recv),
        call.elements,
        member.dtype(call),
        member.reduction(call),
        member.stream,
    )


def _reduce_scatter(member: _GroupMember, call: Collective) -> None:
    member.communicator.reduceScatter(
        address_of(call.send),
        address_of(call.recv),
        call.elements,
        member.dtype(call),
        member.reduction(call),
        member.stream,
    )


def _all_gather(member: _GroupMember, call: Collective) -> None:
    member.communicator.allGather(
        address_of(call.send),
        address_of(call.recv),
        call.elements,
        member.dtype(call),
        member.stream,
    )


def _all_to_all(member: _GroupMember, call: Collective) -> None:
    block = call.elements * ITEM_BYTES[call.dtype]
    peers = range(len(member.group.members))
    send, recv = address_of(call.send), address_of(call.recv)
    member.exchange(
        call,
        [(send + peer * block, peer) for peer in peers],
        [(recv + peer * block, peer) for peer in peers],
    )


def _rotate(member: _GroupMember, call: Collective) -> None:
    count, position = len(member.group.members), member.group.members.index(member.rank)
    send, recv = address_of(call.send), address_of(call.recv)
    member.exchange(call, [(send, (position + 1) % count)], [(recv, (position - 1) % count)])


def _send(member: _GroupMember, call: Collective) -> None:
    member.communicator.send(
        address_of(call.send), call.elements, member.dtype(call), 1, member.stream
    )


def _recv(member: _GroupMember, call: Collective) -> None:
    member.communicator.recv(
        address_of(call.recv), call.elements, member.dtype(call), 0, member.stream
    )


CALLS: dict[str, Callable[[_GroupMember, Collective], None]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "rotate": _rotate,
    "send": _send,
    "recv": _recv,
}
