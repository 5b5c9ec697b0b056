"""Remains of a job on a host, and a sweeper that removes them when its starter is killed.

A process that MPI is starting hears nobody: MPI holds the interpreter while it waits for the other
ranks, for ever if these have gone. So whoever starts ranks starts a sweeper too, this file run by
itself (it knows the standard library alone), which waits for that process to say that all is well,
or to die.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

TOKEN = "MILLRACE_JOB"  # the variable by which a job's processes are known
WELL = b"."
POLL_S = 0.02
END_S_MAX = 5.0
SHARED_MEMORY = Path("/dev/shm")


def named_segments() -> set[Path]:
    """Paths of MPICH's segments that have a name on this host."""
    return set(SHARED_MEMORY.glob("mpich_*"))


def remove_segments(before: set[Path]) -> None:
    """Remove what a job left that ended while MPI was starting.

    Ranks remove the names of their segments themselves as soon as all have them mapped. What is
    left is new, ours, and mapped by no process that still runs.

    Parameters
    ----------
    before
        Segments that were there when the job began.
    """
    fresh = {path for path in named_segments() - before if path.exists()}
    if not fresh:
        return
    mapped = ""
    for path in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            mapped += path.read_text()
    for path in fresh:
        with suppress(OSError):
            if path.stat().st_uid == os.getuid() and str(path) not in mapped:
                path.unlink()


def processes_of(token: str) -> list[int]:
    """Ids of the processes that carry a job's token in their environment.

    Parameters
    ----------
    token
        The token.
    """
    mark = f"{TOKEN}={token}".encode()
    pids = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark in path.read_bytes().split(b"\0"):
                pids.append(int(path.parent.name))
    return pids


def end_processes(token: str, wait_s: float) -> None:
    """End the processes that carry a job's token, and wait until they have gone.

    Parameters
    ----------
    token
        The token.
    wait_s
        The longest wait.
    """
    deadline = monotonic() + wait_s
    while left := processes_of(token):
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if monotonic() > deadline:
            return
        sleep(POLL_S)


class Sweeper:
    """Process that removes what is left of a job if this one is killed.

    Parameters
    ----------
    folder
        The job's folder.
    token
        The job's token.
    segments
        Segments of MPI that were there before it.
    """

    def __init__(self, folder: Path, token: str, segments: Iterable[Path]) -> None:
        command = [sys.executable, "-I", "-S", str(Path(__file__).absolute()), str(folder), token]
        self._process = subprocess.Popen(
            [*command, *map(str, segments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def close(self) -> None:
        """End it: there is nothing to sweep."""
        with suppress(OSError):
            self._process.communicate(WELL)


def main(folder: str, token: str, *segments: str) -> None:
    """Wait for the starter's word or its end; then remove what is left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if sys.stdin.buffer.read(len(WELL)) == WELL:
        return
    end_processes(token, END_S_MAX)
    remove_segments({Path(path) for path in segments})
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
