"""Processes of a run: the cores and memory of this machine that they take."""

import os
import re
import resource
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from millrace.planner.clusters import machine_cores
from millrace.planner.errors import InfeasibleError

# A rank takes so much besides its arena: Python, NumPy, mpi4py and MPICH's own segments, measured
# as the resident size of a worker with an empty arena (November 2026: 75 MB).
PROCESS_BYTES = 80_000_000


def usable_cores() -> int:
    """Number of cores that this process may use."""
    return machine_cores()


def cores_of(rank: int, ranks: int, cores: Sequence[int]) -> set[int]:
    """Cores that a rank is bound to: its even share of the job's, all where shares are not even.

    Threads of a rank that may run anywhere are moved to a core where another computes, and wait
    there while one is idle.

    Parameters
    ----------
    rank, ranks
        The rank and how many there are.
    cores
        Cores of the job, in their order.

    Examples
    --------
    >>> cores_of(3, 4, [0, 1])
    {1}
    >>> cores_of(1, 2, [0, 1, 2, 3])
    {2, 3}
    >>> cores_of(2, 3, [0, 1])
    {0, 1}
    """
    if ranks % len(cores) == 0:
        return {cores[rank % len(cores)]}
    if len(cores) % ranks:
        return set(cores)
    share = len(cores) // ranks
    return set(cores[rank * share : (rank + 1) * share])


def bind_to_cores(rank: int, ranks: int) -> None:
    """Bind this process, and the threads that it starts, to its share of the job's cores.

    Parameters
    ----------
    rank, ranks
        This rank and how many there are, one per process.
    """
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores_of(rank, ranks, sorted(os.sched_getaffinity(0))))


def check_capacity(arena_bytes: Sequence[int]) -> None:
    """Refuse ranks that this machine cannot hold.

    Parameters
    ----------
    arena_bytes
        Bytes of each rank's arena.

    Raises
    ------
    InfeasibleError
        There is not enough memory, or there are too many processes; says by how much.
    """
    ranks = len(arena_bytes)
    needed = sum(arena_bytes) + ranks * PROCESS_BYTES
    available = available_memory_bytes()
    if needed > available:
        raise InfeasibleError(
            f"{ranks} ranks need {needed / 2**30:.1f} GiB of memory on this machine, and "
            f"{available / 2**30:.1f} GiB are available ({(needed - available) / 2**30:.1f} GiB "
            f"short): use fewer ranks, fewer steps or a smaller model"
        )
    allowed = _processes_allowed()
    if ranks > allowed:
        raise InfeasibleError(
            f"{ranks} ranks are {ranks} processes, and this machine allows {allowed} more: use "
            f"fewer ranks"
        )


def available_memory_bytes() -> int:
    """Bytes of memory that new processes may take without swapping."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        match = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo.read_text(), flags=re.MULTILINE)
        if match:
            available = int(match[1]) * 1024
            return min(available, _control_group("memory.max", "memory.current", available))
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _processes_allowed() -> int:
    """Number of processes that may still be started (each rank has about five threads)."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    limit = soft if soft != resource.RLIM_INFINITY else 1 << 22
    return min(limit, _control_group("pids.max", "pids.current", limit)) // 5


def _control_group(limit: str, used: str, default: int) -> int:
    """Amount that the container's control group leaves; `default` where it sets no limit."""
    root = Path("/sys/fs/cgroup")
    with suppress(OSError, ValueError):
        return int((root / limit).read_text()) - int((root / used).read_text())
    return default
