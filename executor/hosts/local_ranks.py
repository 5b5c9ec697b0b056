"""Ranks of this host: processes that are started, heard and ended.

Every rank inherits two sockets. One speaks PMI. On the other, its *line*, it says when it has done
its work; the kernel closes a line when the process at either end has gone, which ends a rank whose
starter has gone, and tells the starter which rank went first.
"""

import os
import select
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import IO, NamedTuple, Protocol

from millrace.executor.hosts.job_remains import (
    TOKEN,
    Sweeper,
    end_processes,
    named_segments,
    remove_segments,
)
from millrace.executor.hosts.rank_line import LINE, PLACE
from millrace.executor.supervision.rank_board import board_path, note_stopped
from millrace.planner.clusters import machine_cores

BLAS_THREADS = "OPENBLAS_NUM_THREADS"
# Idle threads of OpenBLAS (after 2^10 cycles) and OpenMP sleep: spinning, they take cores from each
# other and from other ranks. A short spin of OpenMP's spares the wake-up between two kernels.
SLEEPING = {
    "OMP_WAIT_POLICY": "passive",
    "GOMP_SPINCOUNT": "10000",
    "OPENBLAS_THREAD_TIMEOUT": "10",
}
# Ranks of one host meet in shared memory: without this UCX listens on its outer address too.
LOCAL = {"UCX_TLS": "self,posix,sysv", "UCX_NET_DEVICES": "lo"}
POLL_S = 0.02
LOOK_S = 0.25  # how often ranks are looked at, whether they are stopped
END_S_MAX = 5.0  # A killed process that waits for a disk may go on for so long.


class PmiLine(NamedTuple):
    """Line that a rank's MPI has sent to its PMI server."""

    rank: int
    line: str


class RankEnded(NamedTuple):
    """End of a rank's process.

    Attributes
    ----------
    rank
        The rank.
    code
        Exit code; the negated number of the signal that ended it; None where nobody knows.
    is_done
        True if it had said that its work was done.
    cause
        What is known besides; empty where nothing is.
    host
        The host, where it is lost with all its ranks.
    """

    rank: int
    code: int | None
    is_done: bool
    cause: str = ""
    host: str | None = None


Event = PmiLine | RankEnded


class RankProcesses(Protocol):
    """Processes of ranks, on this host or on several."""

    def serve(self, wait_s: float) -> list[Event]:
        """Events since the last call, which are waited for as long as there is none."""
        ...

    def reply(self, rank: int, line: str) -> None:
        """Send a line to a rank's MPI."""
        ...

    @property
    def running(self) -> bool:
        """True while there is a rank whose end was not told."""
        ...

    def end(self) -> None:
        """End what still runs, and wait until it has gone."""
        ...


class LocalRanks:
    """Ranks of this host.

    Parameters
    ----------
    module
        Module that every rank runs, `python -m mpi4py -m MODULE FOLDER`.
    folder
        The job's folder on this host.
    ranks
        Ranks of this host.
    size
        Number of ranks of the run.
    environment
        Variables of every rank besides those of PMI.
    output
        File that takes what ranks print.
    """

    def __init__(
        self,
        module: str,
        folder: Path,
        ranks: Sequence[int],
        size: int,
        environment: Mapping[str, str],
        output: Path,
    ) -> None:
        self._token, self._folder = environment[TOKEN], folder
        self._looked_s = monotonic()
        self._segments = named_segments()
        self._sweeper = Sweeper(folder, self._token, self._segments)
        self._lines: dict[int, socket.socket] = {}
        self._pmi: dict[int, socket.socket] = {}
        self._heard: dict[int, bytes] = dict.fromkeys(ranks, b"")
        self._done: set[int] = set()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._rank_by_file: dict[int, int] = {}
        self._poll = select.epoll()
        command = [sys.executable, "-P", "-m", "mpi4py", "-m", module, str(folder)]
        try:
            with output.open("ab") as sink:
                for place, rank in enumerate(ranks):
                    variables = {
                        **environment,
                        "PMI_RANK": str(rank),
                        "PMI_SIZE": str(size),
                        PLACE: f"{place}/{len(ranks)}",
                    }
                    self._start(rank, command, variables, sink)
        except BaseException:
            self.end()
            raise

    @property
    def running(self) -> bool:
        """True while there is a rank whose end was not told."""
        return bool(self._lines)

    def serve(self, wait_s: float) -> list[Event]:
        """Events since the last call, in their order."""
        if monotonic() - self._looked_s > LOOK_S:
            self._looked_s = monotonic()
            for rank, process in self._processes.items():
                board = board_path(self._folder, rank)
                note_stopped(board, process.pid, is_stopped(process.pid))
        events: list[Event] = []
        for file, _ in self._poll.poll(wait_s):
            rank = self._rank_by_file[file]
            if rank in self._lines and self._lines[rank].fileno() == file:
                events += self._hear_line(rank)
            elif rank in self._pmi:
                events += self._hear_pmi(rank)
        return events

    def reply(self, rank: int, line: str) -> None:
        """Send a line to a rank's MPI; nothing where that has gone."""
        if rank in self._pmi:
            with suppress(OSError):
                self._pmi[rank].sendall(f"{line}\n".encode())

    def end(self) -> None:
        """End what still runs, what ranks started included, and wait until it has gone."""
        for process in self._processes.values():
            with suppress(ProcessLookupError, PermissionError):
                process.kill()
        deadline = monotonic() + END_S_MAX
        for process in self._processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(deadline - monotonic(), 0.0))
        end_processes(self._token, max(deadline - monotonic(), 0.0))
        remove_segments(self._segments)
        for rank in (*self._lines, *self._pmi):
            self._forget(self._lines, rank)
            self._forget(self._pmi, rank)
        self._poll.close()
        self._sweeper.close()

    def _start(
        self, rank: int, command: Sequence[str], variables: Mapping[str, str], sink: IO[bytes]
    ) -> None:
        ends = []
        for sockets in (self._pmi, self._lines):
            sockets[rank], inherited = socket.socketpair()
            ends.append(inherited)
            self._poll.register(sockets[rank], select.EPOLLIN)
            self._rank_by_file[sockets[rank].fileno()] = rank
        files = [end.fileno() for end in ends]
        try:
            self._processes[rank] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env={**variables, "PMI_FD": str(files[0]), LINE: str(files[1])},
                pass_fds=files,
                start_new_session=True,
            )
        finally:
            for end in ends:
                end.close()

    def _hear_line(self, rank: int) -> list[Event]:
        with suppress(OSError):
            if self._lines[rank].recv(16):
                self._done.add(rank)
                return []
        self._forget(self._lines, rank)
        code: int | None = None
        with suppress(subprocess.TimeoutExpired):
            code = self._processes[rank].wait(END_S_MAX)
        return [RankEnded(rank, code, rank in self._done)]

    def _hear_pmi(self, rank: int) -> list[Event]:
        heard = b""
        with suppress(OSError):
            heard = self._pmi[rank].recv(65536)
        if not heard:
            self._forget(self._pmi, rank)
            return []
        *lines, self._heard[rank] = (self._heard[rank] + heard).split(b"\n")
        return [PmiLine(rank, line.decode(errors="replace")) for line in lines]

    def _forget(self, sockets: dict[int, socket.socket], rank: int) -> None:
        if (end := sockets.pop(rank, None)) is not None:
            with suppress(OSError, ValueError):
                self._poll.unregister(end)
            del self._rank_by_file[end.fileno()]
            end.close()


def is_stopped(pid: int) -> bool:
    """True if a process of this host is stopped, by a signal or by a debugger.

    Parameters
    ----------
    pid
        The process.
    """
    with suppress(OSError, IndexError):
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
        return state in (b"T", b"t")
    return False


def rank_environment(token: str, ranks: int) -> dict[str, str]:
    """Environment of the ranks of this host: our packages first, a share of the cores for BLAS.

    Parameters
    ----------
    token
        The job's, by which its processes are known.
    ranks
        Number of ranks on this host.
    """
    # A command that itself runs under MPI hands down variables that would confuse ours.
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PMI_", "PMIX_", "HYDI_"))
    }
    root = str(Path(__file__).absolute().parents[3])  # the folder that millrace/ lies in
    threads = str(max(1, machine_cores() // ranks))
    return {
        **SLEEPING,
        **inherited,
        "PYTHONPATH": os.pathsep.join(filter(None, (root, inherited.get("PYTHONPATH")))),
        "PYTHONSAFEPATH": "1",
        BLAS_THREADS: threads,
        "OMP_NUM_THREADS": threads,
        TOKEN: token,
    }
