"""Boards: how far every actor of a rank has come, in a file that others read while it is written.

A board holds the rank's process id, the number of firings completed, whether it is done, and for
every actor how many firings have begun and how many have completed. Writing one takes two
assignments in mapped memory per firing.
"""

import mmap
import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

PID, BEATS, IS_DONE, IS_STOPPED = range(4)
HEADER = 8  # numbers of 8 bytes before those of the actors: one cache line


class RankBoard:
    """Writer of a rank's board.

    Parameters
    ----------
    path
        The file; without room for it (a full disk) the rank goes on, and nobody can read it.
    actors
        Number of the rank's actors.
    """

    def __init__(self, path: Path, actors: int) -> None:
        size = 8 * (HEADER + 2 * actors)
        self._memory: mmap.mmap | bytearray = bytearray(size)
        with suppress(OSError, ValueError):
            handle = os.open(path, os.O_RDWR | os.O_CREAT)
            try:
                os.posix_fallocate(handle, 0, size)  # a page without a place would end the process
                self._memory = mmap.mmap(handle, size)
            finally:
                os.close(handle)
        numbers = memoryview(self._memory).cast("q")
        self._header = numbers[:HEADER]
        self._begun = numbers[HEADER : HEADER + actors]
        self._completed = numbers[HEADER + actors :]
        self._header[PID] = os.getpid()

    def begin(self, actor: int) -> None:
        """Count a firing that begins, or a meeting that the rank has come to."""
        self._begun[actor] += 1

    def complete(self, actor: int) -> None:
        """Count a completed firing; the caller serialises calls."""
        self._completed[actor] += 1
        self._header[BEATS] += 1

    def beat(self) -> None:
        """Count progress that is of no single actor: a step of a GPU, a file that was read."""
        self._header[BEATS] += 1

    def done(self) -> None:
        """Say that this rank has nothing more to do."""
        self._header[IS_DONE] = 1


class RankStanding(NamedTuple):
    """Counts of a rank's board.

    Attributes
    ----------
    pid
        Process id on the rank's host.
    beats
        Firings completed since the run began.
    is_done
        True if the rank has nothing more to do.
    is_stopped
        True if its process is stopped, which whoever started it has noted.
    begun, completed
        Firings by actor.
    """

    pid: int
    beats: int
    is_done: bool
    is_stopped: bool
    begun: NDArray[np.int64]
    completed: NDArray[np.int64]


class BoardReader:
    """Reader of a rank's board, also before the rank has made it.

    Parameters
    ----------
    path
        The file.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._file = path, -1

    def beats(self) -> int | None:
        """Firings completed so far; None before there is a board."""
        header = self._read(8 * HEADER)
        return None if len(header) < HEADER or not header[PID] else int(header[BEATS])

    def standing(self) -> RankStanding | None:
        """Counts of the board; None before there is one."""
        numbers = self._read(1 << 30)
        if len(numbers) < HEADER or not numbers[PID]:
            return None
        begun, completed = np.split(numbers[HEADER:], 2)
        pid, beats, is_done, is_stopped = (int(number) for number in numbers[: IS_STOPPED + 1])
        return RankStanding(pid, beats, bool(is_done), bool(is_stopped), begun, completed)

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):
            os.close(self._file)

    def _read(self, size_bytes: int) -> NDArray[np.int64]:
        with suppress(OSError):
            if self._file < 0:
                self._file = os.open(self._path, os.O_RDONLY)
            size_bytes = min(size_bytes, os.fstat(self._file).st_size)
            return np.frombuffer(os.pread(self._file, size_bytes, 0), np.int64)
        return np.zeros(0, np.int64)


def board_path(folder: Path, rank: int) -> Path:
    """File in a job's folder that is a rank's board."""
    return folder / f"board.{rank}"


def note_stopped(path: Path, pid: int, is_stopped: bool) -> None:
    """Note on a rank's board whether its process is stopped, which it cannot say itself.

    Parameters
    ----------
    path
        The board, which is begun here where a rank is stopped before it has one.
    pid
        The process.
    is_stopped
        What is noted.
    """
    with suppress(OSError):
        handle = os.open(path, os.O_RDWR | (os.O_CREAT if is_stopped else 0))
        try:
            if os.fstat(handle).st_size < 8 * HEADER:
                os.pwrite(handle, pid.to_bytes(8, "little"), 8 * PID)
                os.ftruncate(handle, 8 * HEADER)
            os.pwrite(handle, int(is_stopped).to_bytes(8, "little"), 8 * IS_STOPPED)
        finally:
            os.close(handle)
