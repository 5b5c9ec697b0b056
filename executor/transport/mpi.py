"""MPI: how the processes of a run find each other, and what they ask of it besides messages.

`mpi4py` is imported by `join_world` alone; importing it starts MPI.
"""

import os
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from socket import gethostname
from time import perf_counter_ns, sleep
from typing import Any

from millrace.executor.errors import ExecutorError
from millrace.executor.transport.doorbell import Doorbell

LIBRARY = "libmpi.so.12"  # of MPICH's ABI, which mpi4py's wheels are made for
# UCX moves one segment whenever it is asked whether messages are over, and 8 KiB of TCP by default:
# a chunk of `meeting_pieces.py` must fit in one, or who waits politely gets nothing moved.
SEGMENTS = {"UCX_TCP_TX_SEG_SIZE": "1m", "UCX_TCP_RX_SEG_SIZE": "1m"}
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

    def hosts(self) -> tuple[int, ...]:
        """Host of every rank, by the number of its first rank.

        Containers and namespaces count as hosts of their own, though one kernel runs them.
        """
        names: list[tuple[str, ...]] = self.communicator.allgather(_host_identity())
        return tuple(names.index(name) for name in names)

    def local_rank(self) -> int:
        """Number of this rank among those of its host, in the order of the ranks."""
        hosts: list[str] = self.communicator.allgather(gethostname())
        return hosts[: self.rank].count(hosts[self.rank])

    def doorbell(self, neighbours: Iterable[int]) -> Doorbell:
        """Doorbell of this rank, once every rank has one; `neighbours` are those of its host."""
        name = self.communicator.bcast(token_hex(8))
        bell = Doorbell(name, self.rank, [rank for rank in neighbours if rank != self.rank])
        self.barrier()
        return bell


def _host_identity() -> tuple[str, ...]:
    """Names that tell a host, or a container, from all others of a run."""
    identity = [gethostname()]
    with suppress(OSError):
        identity.append(Path("/proc/sys/kernel/random/boot_id").read_text())
    for namespace in ("net", "pid"):
        with suppress(OSError):
            identity.append(os.readlink(f"/proc/self/ns/{namespace}"))
    return tuple(identity)


def join_world() -> World:
    """World of this process, in which MPI is started.

    The names of MPI's shared-memory segments are removed as soon as every rank has them mapped, so
    that no way of dying leaves one behind.

    Raises
    ------
    ExecutorError
        The library that mpi4py binds is missing.
    """
    import mpi4py

    for name, setting in SEGMENTS.items():
        os.environ.setdefault(name, setting)
    mpi4py.rc.thread_level = "serialized"
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # the second from mpi4py 4.1 on
        if "libmpi" not in str(error):
            raise
        raise ExecutorError(
            f"mpi4py finds no {LIBRARY}, which comes with mpich: install it into the environment "
            f"of the interpreter (`{sys.executable} -m pip install --force-reinstall mpich`), for "
            f"`pip install --target` leaves out its `lib` folder; or name the folder in which "
            f"{LIBRARY} lies in LD_LIBRARY_PATH"
        ) from error

    world = World(MPI)
    world.barrier()
    for path in mapped_segments():
        with suppress(FileNotFoundError):
            path.unlink()
    return world


def mapped_segments() -> list[Path]:
    """Named shared-memory segments of MPICH that this process has mapped."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return []
    names = re.findall(r"(/dev/shm/mpich_shm_\w+)$", maps.read_text(), flags=re.MULTILINE)
    return [Path(name) for name in dict.fromkeys(names)]
