"""Transfers: times of copies inside a device, to and from its host, and between devices."""

from collections.abc import Callable, Mapping, Sequence

from millrace.executor.cuda.calls import Collective, CopyCall, Operand
from millrace.executor.gpu.device import ADDRESS, DeviceDriver
from millrace.executor.gpu.nccl import ITEM_BYTES, DeviceCommunicator, LaneGroup
from millrace.executor.gpu.probing.stopwatch import Stopwatch
from millrace.executor.probes.probe_graphs import group_sizes
from millrace.executor.probes.probe_rounds import Points
from millrace.planner.collectives import BOXING

COPY_BYTES_MAX = 256 * 2**20  # more than any L2
HOST_BYTES = (2**12, 2**18, 2**22, 2**26)
MESSAGE_BYTES = (2**12, 2**16, 2**20, 2**24, 2**27)
TURNS = {2**12: 64, 2**16: 64, 2**20: 32, 2**24: 8, 2**27: 2}
DTYPE = "float32"
LANE, LANE_BACK = "profile", "profile back"


def copy_bytes_per_s(watch: Stopwatch, arena: int, size_bytes: int, patience_ns: int) -> float:
    """Bytes read and written per second by a copy within the device's memory."""
    half = min(size_bytes // 2, COPY_BYTES_MAX) // 256 * 256
    copy = CopyCall(Operand(ADDRESS, 0, arena), Operand(ADDRESS, 0, arena + half), half)
    return 2 * half / watch.calls_ns(((copy,),), patience_ns) * 1e9


def host_points(
    device: DeviceDriver, watch: Stopwatch, arena: int, size_bytes: int, patience_ns: int
) -> list[tuple[int, int]]:
    """Points (bytes, nanoseconds) of copies from and to pinned memory, of the slower way."""
    sizes = [size for size in HOST_BYTES if size <= size_bytes]
    pinned, _ = device.allocate_host(sizes[-1])
    there, here = Operand(ADDRESS, 0, pinned), Operand(ADDRESS, 0, arena)
    return [
        (
            size,
            max(
                watch.calls_ns(((CopyCall(source, target, size),),), patience_ns)
                for source, target in ((there, here), (here, there))
            ),
        )
        for size in sizes
    ]


def groups_of(rank: int, ranks: int) -> dict[LaneGroup, set[str]]:
    """Groups that a rank meets in to be timed, and the kinds that are timed there.

    They are of every size that a mesh of so many ranks can have; the first two ranks also send to
    each other.
    """
    kinds_by_group: dict[LaneGroup, set[str]] = {}
    for size in group_sizes(ranks):
        first = rank // size * size
        kinds_by_group[LaneGroup(tuple(range(first, first + size)), LANE)] = set(BOXING)
    if rank < 2 <= ranks:
        for group in (LaneGroup((0, 1), LANE_BACK), LaneGroup((1, 0), LANE_BACK)):
            kinds_by_group[group] = {"send" if group.members[0] == rank else "recv"}
    return kinds_by_group


def collective_points(
    rank: int,
    kinds: Mapping[LaneGroup, set[str]],
    communicator: DeviceCommunicator,
    watch: Stopwatch,
    arena: int,
    barrier: Callable[[], None],
) -> Points:
    """Time every collective over groups of every size, and transfers; keys `kind/group_size`.

    Parameters
    ----------
    rank
        This rank.
    kinds
        Kinds by group, as `groups_of` returns them of it.
    communicator
        Carries them out; warmed up.
    watch
        Times them.
    arena
        Twice the largest message of device memory.
    barrier
        Waits for all ranks: called before every measurement by all of them alike.
    """
    points: Points = {}
    send = Operand(ADDRESS, 0, arena)
    recv = Operand(ADDRESS, 0, arena + MESSAGE_BYTES[-1])

    def timed(calls: Sequence[tuple[Collective, LaneGroup]], size_bytes: int) -> int:
        def issue() -> None:
            for call, group in calls:
                communicator.issue(call, group, watch.stream, f"profile {call.kind}")

        barrier()
        return watch.issued_ns(issue, TURNS[size_bytes])

    # From the smallest on every rank: one order of groups, in which no two of them hang.
    for group in sorted(
        (group for group in kinds if group.lane == LANE), key=lambda group: len(group.members)
    ):
        size = len(group.members)
        for kind in BOXING:
            for size_bytes in MESSAGE_BYTES:
                message_elements = size_bytes // ITEM_BYTES[DTYPE]
                elements = message_elements if kind == "all_reduce" else message_elements // size
                call = Collective(kind, send, recv, elements, DTYPE)
                taken_ns = timed(((call, group),), size_bytes)
                points.setdefault(f"{kind}/{size}", []).append((size_bytes, taken_ns))
    pairs = sorted(group for group in kinds if group.lane == LANE_BACK)
    for size_bytes in MESSAGE_BYTES if kinds else ():
        if not pairs:
            barrier()
            continue
        elements = size_bytes // ITEM_BYTES[DTYPE]
        # There and back: a rank's next message waits for the answer to the one before.
        calls = []
        for group in pairs:
            (kind,) = kinds[group]
            calls.append((Collective(kind, send, recv, elements, DTYPE), group))
        points.setdefault("send/2", []).append((size_bytes, max(1, timed(calls, size_bytes) // 2)))
    return points
