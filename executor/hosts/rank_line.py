"""Line of a rank: the socket that joins it to the process that has started it."""

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from millrace.planner.worker_processes import end_with

LINE, PLACE = "MILLRACE_LINE", "MILLRACE_PLACE"
DONE = b"."  # A rank says this when it has done its work.


def open_line(folder: Path) -> Callable[[], None]:
    """Function that says on this rank's line that its work is done.

    The kernel closes the line at the other side when the process that has started this one ends,
    which ends this one too, and removes the job's folder.

    Parameters
    ----------
    folder
        The job's folder.
    """
    line = int(os.environ[LINE])
    end_with(line, lambda: shutil.rmtree(folder, ignore_errors=True))

    def done() -> None:
        with suppress(OSError):
            os.write(line, DONE)

    return done


def place_on_host() -> tuple[int, int]:
    """Number of this rank among those of its host, and how many these are."""
    place, _, ranks = os.environ[PLACE].partition("/")
    return int(place), int(ranks)
