"""Memory over time: what a rank's registers hold, from when each slot is taken and given back.

A version of a register is there from the start of the first firing that makes it until the last
reader's last firing is over. What is there before the first step stays: variables, and the state of
the optimizer. Ops that fire on their own show it exactly. Where whole parts of chunks fire, the
plan's peak is taken for what a stage keeps all the time; activations follow the microbatches whose
forward has begun and whose backward is not over, in proportion to the chunk's blocks; and the area
that sections share counts while a part runs.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from millrace.planner.actors.graph import HOST, TEMPORARY, Port, Program
from millrace.planner.cluster import Cluster
from millrace.planner.plan import Plan
from millrace.simulator.account.rows import MemoryTimeline
from millrace.simulator.simulated_rank import Instance

POINTS = 4000  # of a course at most; of what lies between, the largest sum is shown

ACTIVATION = "activation"
BESIDE = ("context", "resident", "workspace", "slack")  # what a device holds besides registers

Ns = NDArray[np.int64]
Changes = dict[str, list[tuple[Ns, Ns]]]  # by kind: times, and the bytes that come or go


def course_of_ops(
    instance: Instance, cluster: Cluster, beside: Mapping[str, int]
) -> MemoryTimeline:
    """Course of the memory of a rank's registers; `beside` holds what the device has besides."""
    return course_of_firings(
        instance.program, instance.rank, cluster, (instance.starts, instance.ends), beside
    )


def course_of_firings(
    program: Program,
    rank: int,
    cluster: Cluster,
    firings_ns: tuple[Sequence[Sequence[int]], Sequence[Sequence[int]]],
    beside: Mapping[str, int],
    points: int = POINTS,
) -> MemoryTimeline:
    """Course of the memory of a rank's registers, from firings that were simulated or measured.

    Parameters
    ----------
    program, rank, cluster
        What the rank runs, its number, and where.
    firings_ns
        Starts and ends of each actor's firings, in nanoseconds. Firings of an actor follow one
        another without a gap; those of all actors begin with the same step.
    beside
        Bytes by kind that the device has besides registers.
    points
        Points of the course at most.
    """
    makers: dict[int, tuple[int, Port]] = {}
    readers: dict[int, list[tuple[int, Port]]] = {}
    for index, actor in enumerate(program.actors):
        makers.update({port.register: (index, port) for port in actor.outputs})
        for port in actor.inputs:
            readers.setdefault(port.register, []).append((index, port))
    starts, ends = ([np.asarray(row, np.int64) for row in rows] for rows in firings_ns)
    until = max((int(row[-1]) for row in ends if len(row)), default=0)
    fixed = dict(beside)
    changes: Changes = {}
    for index, register in enumerate(program.registers):
        kind = register.memory_kind
        if kind == HOST or not register.slot_bytes:
            continue
        if index not in makers or register.initial:
            fixed[kind] = fixed.get(kind, 0) + register.slots * register.slot_bytes
            continue
        maker, out_port = makers[index]
        taken = starts[maker][:: out_port.hold]
        freed = ends[maker][out_port.hold - 1 :: out_port.hold]
        taken = taken[: len(freed)]
        for reader, in_port in readers.get(index, ()):
            over = ends[reader][in_port.hold - 1 :: in_port.hold][: len(freed)]
            freed = np.maximum(freed, np.append(over, np.full(len(freed) - len(over), until)))
        size = np.full(len(taken), register.slot_bytes)
        changes.setdefault(kind, []).extend([(taken, size), (freed, -size)])
    return _course(program, rank, cluster, fixed, changes, points)


def course_of_parts(instance: Instance, plan: Plan, by_kind: Mapping[str, int]) -> MemoryTimeline:
    """Course of a rank's memory by its microbatches; `by_kind` is its peak, in bytes by kind."""
    begun: dict[str, list[Ns]] = {}
    over: dict[str, list[Ns]] = {}
    changes: Changes = {}
    for actor, starts, ends in zip(
        instance.program.actors, instance.starts, instance.ends, strict=True
    ):
        if actor.meeting is None and actor.name.startswith("chunk "):
            chunk, _, part = actor.name.partition(": ")
            come, gone = np.asarray(starts, np.int64), np.asarray(ends, np.int64)
            if part.split(" ")[0] == "F":
                begun.setdefault(chunk, []).append(come)
            else:
                over.setdefault(chunk, []).append(gone)
            area = np.full(len(come), by_kind.get(TEMPORARY, 0))
            changes.setdefault(TEMPORARY, []).extend([(come, area), (gone, -area)])
    for chunk, rows in begun.items():
        weight = len(plan.chunks[int(chunk.removeprefix("chunk "))].blocks)
        first = np.minimum.reduce(rows)
        last = np.maximum.reduce(over[chunk])
        size = np.full(len(first), weight)
        changes.setdefault(ACTIVATION, []).extend([(first, size), (last, -size)])
    fixed = {kind: n for kind, n in by_kind.items() if kind not in (ACTIVATION, TEMPORARY)}
    course = _course(instance.program, instance.rank, plan.cluster, fixed, changes)
    return _scaled_to(course, ACTIVATION, by_kind.get(ACTIVATION, 0))


def _scaled_to(course: MemoryTimeline, kind: str, peak_bytes: int) -> MemoryTimeline:
    rows = dict(course.bytes_by_kind)
    most = max(rows.get(kind, (0,)), default=0)
    if most:
        rows[kind] = tuple(peak_bytes * size // most for size in rows[kind])
    return MemoryTimeline(
        stage=course.stage,
        rank=course.rank,
        times_ns=course.times_ns,
        bytes_by_kind=rows,
        limit_bytes=course.limit_bytes,
    )


def _course(
    program: Program,
    rank: int,
    cluster: Cluster,
    fixed: Mapping[str, int],
    changes: Changes,
    points_max: int = POINTS,
) -> MemoryTimeline:
    """Course of fixed bytes and changes; bytes taken at a time count after those given back."""
    time_rows: list[Ns] = [np.zeros(1, np.int64)]
    time_rows.extend(times for rows in changes.values() for times, _ in rows)
    times = np.unique(np.concatenate(time_rows))
    rows = {kind: np.full(len(times), size, np.int64) for kind, size in fixed.items()}
    for kind, kind_changes in changes.items():
        delta = np.zeros(len(times), np.int64)
        for when, sizes in kind_changes:
            np.add.at(delta, np.searchsorted(times, when), sizes)
        rows[kind] = rows.get(kind, np.zeros(len(times), np.int64)) + np.cumsum(delta)
    total = sum(rows.values(), np.zeros(len(times), np.int64))
    points = _decimated_indices(times, total, points_max)
    return MemoryTimeline(
        stage=program.stage,
        rank=rank,
        times_ns=tuple(times[points].tolist()),
        bytes_by_kind={kind: tuple(row[points].tolist()) for kind, row in sorted(rows.items())},
        limit_bytes=cluster.device_of(rank).memory_bytes,
    )


def _decimated_indices(times: Ns, total: Ns, points_max: int) -> Ns:
    """Indices of the points that stay: of equal stretches of time, the one with the largest sum."""
    if len(times) <= points_max:
        return np.arange(len(times))
    stretch = (times - times[0]) * points_max // (times[-1] - times[0] + 1)
    order = np.lexsort((-total, stretch))
    _, first = np.unique(stretch[order], return_index=True)
    return np.sort(order[first])


def window_of(course: MemoryTimeline, begin_ns: int, end_ns: int) -> MemoryTimeline:
    """Window of a course, its times counted from the window's begin.

    Parameters
    ----------
    course : MemoryTimeline
        Bytes by kind; each value lasts up to the next time.
    begin_ns, end_ns : int
        Nanoseconds of simulated time, the end left out. The last value from before the begin comes
        first, at time 0.
    """
    times = np.asarray(course.times_ns)
    first = max(int(np.searchsorted(times, begin_ns, "right")) - 1, 0)
    last = int(np.searchsorted(times, end_ns, "left"))
    window_times = np.maximum(times[first:last], begin_ns) - begin_ns
    return MemoryTimeline(
        stage=course.stage,
        rank=course.rank,
        times_ns=tuple(window_times.tolist()),
        bytes_by_kind={kind: row[first:last] for kind, row in course.bytes_by_kind.items()},
        limit_bytes=course.limit_bytes,
    )


def peak_bytes(course: MemoryTimeline) -> int:
    """Most bytes that are held at any time."""
    return max(map(sum, zip(*course.bytes_by_kind.values(), strict=True)), default=0)


def courses(
    instances: Iterable[Instance], plan: Plan, kinds: Sequence[Mapping[str, int]], ops: bool
) -> tuple[MemoryTimeline, ...]:
    """Courses of the first simulated rank of every stage, in the order of the stages."""
    course_of_stage: dict[int, MemoryTimeline] = {}
    for instance in instances:
        stage = instance.program.stage
        if stage not in course_of_stage:
            beside = {kind: n for kind, n in kinds[stage].items() if kind in BESIDE}
            course_of_stage[stage] = (
                course_of_ops(instance, plan.cluster, beside)
                if ops
                else course_of_parts(instance, plan, kinds[stage])
            )
    return tuple(course_of_stage[stage] for stage in sorted(course_of_stage))
