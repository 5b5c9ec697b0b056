"""Step logs: what every actor of a rank has taken so far, at the end of each step.

A log is a ring of rows in a file of the job's folder: the step, when it ended, and nanoseconds by
actor. A reader that is far behind misses rows, and can tell.
"""

import os
from array import array
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

ROWS = 64
FRAME = 3  # numbers of a row beside those of actors: its step plus one in front and behind, its end


class StepLog:
    """Writer of a rank's log.

    Parameters
    ----------
    path
        The file; a run whose disk is full goes on without it.
    actors
        Number of the rank's actors.

    Attributes
    ----------
    spent_ns
        Nanoseconds of every actor since the run began, which the recorder adds to.
    """

    def __init__(self, path: Path, actors: int) -> None:
        self.spent_ns = array("q", bytes(8 * actors))
        self._row_bytes = 8 * (actors + FRAME)
        self._file = -1
        with suppress(OSError):
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT)

    def end_step(self, step: int, end_ns: int) -> None:
        """Write the row of a step that has ended."""
        mark = array("q", (step + 1,))
        row = b"".join((mark, array("q", (end_ns,)), self.spent_ns, mark))
        with suppress(OSError):
            os.pwrite(self._file, row, step % ROWS * self._row_bytes)

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):
            os.close(self._file)


class LoggedStep(NamedTuple):
    """Row of a log."""

    step: int
    end_ns: int
    spent_ns: NDArray[np.int64]


class StepLogReader:
    """Reader of a rank's log while it is written."""

    def __init__(self, path: Path, actors: int) -> None:
        self._path, self._file = path, -1
        self._row_bytes = 8 * (actors + FRAME)

    def read(self, step: int) -> LoggedStep | None:
        """Row of a step, or the later one that has taken its place; None before it is there."""
        with suppress(OSError):
            if self._file < 0:
                self._file = os.open(self._path, os.O_RDONLY)
            text = os.pread(self._file, self._row_bytes, step % ROWS * self._row_bytes)
            if len(text) == self._row_bytes:
                row = np.frombuffer(text, np.int64)
                if row[0] == row[-1] > step:
                    return LoggedStep(int(row[0]) - 1, int(row[1]), row[2:-1])
        return None

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):
            os.close(self._file)


def log_path(folder: Path, rank: int) -> Path:
    """File in a job's folder that a rank logs its steps in."""
    return folder / f"steps.{rank}"
