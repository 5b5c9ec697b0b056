"""GPU timing: a GPU measured as a device that costs can read.

Every kernel is timed as a step has it: many calls captured as one graph, so that what a launch adds
inside a graph is in every duration, and nothing of the host is.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from operator import and_
from statistics import fmean, median
from time import monotonic
from typing import NamedTuple

import msgspec

from millrace.executor.cuda.binding import leaves
from millrace.executor.cuda.calls import Call, Launch
from millrace.executor.errors import ExecutorError
from millrace.executor.gpu.device import DeviceDriver
from millrace.executor.gpu.nccl import DeviceCommunicator, LaneGroup
from millrace.executor.gpu.probing.probe_arena import (
    CaseArena,
    TimedCase,
    arena_bytes,
    build_timed_case,
)
from millrace.executor.gpu.probing.stopwatch import IDLE_FUNCTION, Stopwatch
from millrace.executor.gpu.probing.transfers import (
    MESSAGE_BYTES,
    collective_points,
    copy_bytes_per_s,
    host_points,
)
from millrace.executor.probes.machine_load import MachineLoad
from millrace.executor.probes.median_over_ranks import merged
from millrace.executor.probes.probe_rounds import ROUNDS_MIN, Points, spreads
from millrace.executor.probes.probe_sizes import GPU_SCALES, Scales
from millrace.executor.probes.profiled_kernels import DTYPES, LAYERS, MULTIPLIED, KernelCase, cases
from millrace.executor.probes.timed_ranks import quality_of
from millrace.planner.cluster import Device
from millrace.planner.costs import ATTENTION

ARENA_BYTES_MIN = 2**20
FREE_SHARE = 0.9  # share of free memory that is used: libraries take their own
HOST_TABLE = "host/1"
PRECISIONS = ("bf16", "", "fp32", "fp16", "tf32")  # precisions of tables, most runs' first
LATER = 2  # how much later fewer models' layers come: after what is of all models in float32
LAYER_KINDS = frozenset(probe.kind for probe in LAYERS)
SHOWN = 8  # most names of tables that are told
# About so many kernels, spread over all, are timed in further rounds once all were timed: what
# changes meanwhile (clocks, other programs) is in how far these differ.
CHECKED, ROUNDS = 24, ROUNDS_MIN


class CollectiveProbes(NamedTuple):
    """Groups and communicator to time a rank's collectives; `barrier` waits for all ranks."""

    rank: int
    kinds: dict[LaneGroup, set[str]]
    communicator: DeviceCommunicator
    barrier: Callable[[], None]


class GpuTimings(msgspec.Struct, frozen=True, kw_only=True):
    """Timings of one rank on its GPU."""

    name: str
    memory_bytes: int
    multiprocessors: int
    launch_ns: int
    memory_bandwidth_bytes_per_s: float
    kernels: Points
    collectives: Points
    missed: tuple[str, ...] = ()  # tables of the cases that the limit left out, one each
    kernel_bytes: Points = {}  # of attention: bytes for the nanoseconds of `kernels`
    rounds: int = 1  # times that the checked kernels were timed
    spreads: dict[str, list[float]] = {}  # how far these times differed, by table
    load: MachineLoad | None = None  # others on this GPU
    frequency: float | None = None  # share of its highest clock at which it ran


def time_gpu(
    device: DeviceDriver,
    *,
    multiprocessors: int = 0,
    seconds: float = 60.0,
    scales: Scales = GPU_SCALES,
    precisions: Sequence[str] = tuple(DTYPES),
    meetings: CollectiveProbes | None = None,
    limit_s: float | None = None,
    clock: Callable[[], float] = monotonic,
) -> GpuTimings:
    """Time the kernels of every precision, copies, and collectives where there are `meetings`.

    Parameters
    ----------
    device, multiprocessors
        The GPU, and how many it has; 0: not known.
    seconds
        Time, about, for which kernels are timed; compiling them the first time comes on top.
    scales, precisions
        Sizes of the kernels, and in which of fp32, tf32, bf16 and fp16.
    meetings
        Groups that collectives are timed with; None: they are not.
    limit_s, clock
        Seconds of the clock from the first kernel after which none is begun; None: all are
        timed. What matters most comes first (`by_weight`), what was not reached is priced by rates.

    Raises
    ------
    ExecutorError
        A kernel does not compile or fails, or the GPU has not enough free memory for any.
    """
    everything = [
        build_timed_case(case) for precision in precisions for case in cases(scales, precision)
    ]
    device.load(_functions(call for timed_case in everything for call in timed_case.calls.of(0)))
    room = round(device.free_bytes() * FREE_SHARE)
    fitting = _fitting(everything, room, device)
    least = ARENA_BYTES_MIN if meetings is None else 2 * MESSAGE_BYTES[-1]
    arena = CaseArena(device, min(room, max(least, arena_bytes(fitting))))
    watch = Stopwatch(device, arena.base)
    patience_ns = round(seconds / len(everything) * 1e9)
    waiting = deque(sorted(fitting, key=lambda timed_case: by_weight(timed_case.case)))
    timed: list[tuple[TimedCase, list[int]]] = []
    begun_s = clock()

    def in_time() -> bool:
        return limit_s is None or clock() - begun_s < limit_s

    def took_ns(timed_case: TimedCase) -> int:
        return watch.calls_ns(arena.place(timed_case), patience_ns)

    while waiting and (not timed or in_time()):
        timed_case = waiting.popleft()
        timed.append((timed_case, [took_ns(timed_case)]))
    rounds, checked = 1, timed[:: max(1, len(timed) // CHECKED)]
    while rounds < ROUNDS and in_time():
        for timed_case, durations_ns in checked:
            durations_ns.append(took_ns(timed_case))
        rounds += 1
    barrier = _alone if meetings is None else meetings.barrier
    barrier()  # ranks copy at once, as in a run
    bandwidth = copy_bytes_per_s(watch, arena.base, arena.size_bytes, patience_ns)
    barrier()
    host = host_points(device, watch, arena.base, arena.size_bytes, patience_ns)
    collectives: Points = {HOST_TABLE: host}
    if meetings is not None:
        collectives |= collective_points(
            meetings.rank, meetings.kinds, meetings.communicator, watch, arena.base, barrier
        )
    return GpuTimings(
        name=device.name,
        memory_bytes=device.total_bytes,
        multiprocessors=multiprocessors,
        launch_ns=watch.launch_ns,
        memory_bandwidth_bytes_per_s=bandwidth,
        kernels=_points((each, round(median(durations_ns))) for each, durations_ns in timed),
        collectives=collectives,
        missed=tuple(timed_case.case.table for timed_case in waiting),
        kernel_bytes=_points(
            (timed_case, timed_case.case.moved_bytes)
            for timed_case, _ in timed
            if timed_case.case.context.kind in ATTENTION
        ),
        rounds=rounds,
        spreads=spreads(_rounds(checked)) if rounds > 1 else {},
    )


def _points(values: Iterable[tuple[TimedCase, int]]) -> Points:
    """Points (work, value) of cases, by table."""
    points: Points = {}
    for timed_case, value in values:
        points.setdefault(timed_case.case.table, []).append((timed_case.case.work, value))
    return points


def _rounds(checked: Sequence[tuple[TimedCase, list[int]]]) -> list[Points]:
    """Points of every round of the checked cases."""
    times = len(checked[0][1])
    return [
        _points((timed_case, durations_ns[index]) for timed_case, durations_ns in checked)
        for index in range(times)
    ]


def _fitting(everything: Sequence[TimedCase], room: int, device: DeviceDriver) -> list[TimedCase]:
    """Cases for which there is room; raises an ExecutorError where it is for none."""
    fitting = [
        timed_case
        for timed_case in everything
        if timed_case.shared_bytes + timed_case.copy_bytes <= room
    ]
    if not fitting:
        raise ExecutorError(
            f"{device.name} has {device.free_bytes() / 2**30:.2f} GiB free, which no kernel fits "
            f"that is to be timed: end what else runs on it"
        )
    return fitting


def by_weight(case: KernelCase) -> tuple[int, bool]:
    """Sort key by which the cases that most of a step's time goes to come first.

    Products of every precision come before all else: peaks are read from them.
    """
    kind = case.context.kind
    precision = PRECISIONS.index(case.table.partition("@")[2])
    if kind == MULTIPLIED[0]:
        return precision - len(PRECISIONS), False
    return precision + LATER * (kind in LAYER_KINDS), kind not in ATTENTION


def not_reached(timings: Sequence[GpuTimings]) -> str:
    """Cases that no rank has reached within the limit, in words; empty where all were.

    Examples
    --------
    >>> not_reached([])
    ''
    """
    if not (missed := _missed(timings)):
        return ""
    kinds = [name for name in missed if not _is_of_products(name)]
    shown = ", ".join(kinds[:SHOWN]) + (f" and {len(kinds) - SHOWN} more" * (len(kinds) > SHOWN))
    priced = f", so by rates are priced: {shown}" if kinds else ""
    return f"{missed.total()} kernels were not reached{priced}"


def _missed(timings: Sequence[GpuTimings]) -> Counter[str]:
    """Cases that no rank has reached, by table."""
    return (
        reduce(and_, (Counter(rank_timings.missed) for rank_timings in timings))
        if timings
        else Counter()
    )


def _is_of_products(table: str) -> bool:
    return table.startswith(f"{MULTIPLIED[0]}@")


def measured_device(timings: Sequence[GpuTimings], source: str) -> Device:
    """Device that all ranks' GPUs are taken for.

    A kind of which a case was not reached has no table, for a few small cases say nothing of large
    ones; products keep what they have, since peaks are read from it.

    Raises
    ------
    ExecutorError
        The GPUs are of different kinds.
    """
    first = timings[0]
    if names := {rank_timings.name for rank_timings in timings} - {first.name}:
        raise ExecutorError(
            f"the GPUs of this machine differ ({first.name}, {', '.join(sorted(names))}), and one "
            f"profile is of one kind: list those of one kind in CUDA_VISIBLE_DEVICES"
        )
    cut_off = {name for name in _missed(timings) if not _is_of_products(name)}
    measured = merged([rank_timings.kernels for rank_timings in timings])
    kernels = {name: points for name, points in measured.items() if name not in cut_off}
    kernel_bytes = merged([rank_timings.kernel_bytes for rank_timings in timings])
    return Device(
        name=first.name,
        memory_bytes=min(rank_timings.memory_bytes for rank_timings in timings),
        flops_per_s=_peaks(kernels),
        memory_bandwidth_bytes_per_s=fmean(t.memory_bandwidth_bytes_per_s for t in timings),
        matmul_efficiency=1.0,
        memory_efficiency=1.0,
        launch_ns=round(fmean(rank_timings.launch_ns for rank_timings in timings)),
        source=source,
        kernels=kernels,
        kernel_bytes={name: points for name, points in kernel_bytes.items() if name in kernels},
        collectives=merged([rank_timings.collectives for rank_timings in timings]),
        multiprocessors=first.multiprocessors,
        measured=quality_of(timings),
    )


def _peaks(kernels: dict[str, tuple[tuple[int, int], ...]]) -> dict[str, float]:
    """FLOPs per second of the fastest matrix product that was timed in every precision."""
    return {
        name.partition("@")[2]: max(flops * 1e9 / duration_ns for flops, duration_ns in points)
        for name, points in kernels.items()
        if _is_of_products(name)
    }


def _alone() -> None:
    """Wait for no other rank."""


def _functions(calls: Iterable[Call]) -> dict[str, set[str]]:
    """Functions that may be launched, by source."""
    source, name = IDLE_FUNCTION
    functions_by_source: dict[str, set[str]] = {source: {name}}
    for call in leaves(*calls):
        if isinstance(call, Launch):
            functions_by_source.setdefault(call.source, set()).add(call.function)
    return functions_by_source
