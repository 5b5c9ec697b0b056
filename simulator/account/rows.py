"""Rows of an account; every time is of one step, in the mean over ranks, in nanoseconds."""

from dataclasses import dataclass

STAGES, WORLD = "stages", "world"  # where transfers and the step's totals go, for a mesh axis


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeRow:
    """Time of one kind of op in one phase; `busy_ns` of all rows add up to a rank's busy time."""

    kind: str
    phase: str
    busy_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CommunicationRow:
    """Meetings of one kind along the same axes.

    Attributes
    ----------
    axes
        Of the mesh; `stages` of transfers between stages, `world` where every rank meets.
    message_bytes
        As collective libraries count them, of a step.
    duration_ns
        How long their data moves; meetings beside one another count each.
    exposed_ns
        How much of that nothing hides; of all rows it adds up to the exposed communication.
    """

    kind: str
    axes: tuple[str, ...]
    message_bytes: float
    duration_ns: float
    exposed_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTimeline:
    """Bytes of one rank of a stage over the simulated time.

    `bytes_by_kind` holds one value per time, which lasts up to the next; `limit_bytes` is the
    memory of the device.
    """

    stage: int
    rank: int
    times_ns: tuple[int, ...]
    bytes_by_kind: dict[str, tuple[int, ...]]
    limit_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRow:
    """The step of one stage: `busy_ns`, `exposed_ns` and `bubble_ns` add up to it.

    `host_ns` is the part of the bubble in which an op waits for nothing but its launch.
    `compute` and `communication` are of this stage alone; `memory_by_kind` is what a device of it
    has to have.
    """

    stage: int
    busy_ns: float
    exposed_ns: float
    bubble_ns: float
    host_ns: float
    compute: tuple[ComputeRow, ...]
    communication: tuple[CommunicationRow, ...]
    memory_by_kind: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """One steady step, from `begin_ns` of the simulated time; the largest rows come first."""

    begin_ns: int
    step_time_ns: int
    stages: tuple[StageRow, ...]
    compute: tuple[ComputeRow, ...]
    communication: tuple[CommunicationRow, ...]
    memory: tuple[MemoryTimeline, ...]
