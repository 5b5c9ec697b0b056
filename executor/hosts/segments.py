"""Segments of MPI in shared memory, and what is left of them where a rank dies while MPI starts."""

import os
from contextlib import suppress
from pathlib import Path

FOLDER = Path("/dev/shm")


def named_segments() -> set[Path]:
    """Paths of MPICH's segments that have a name on this host."""
    return set(FOLDER.glob("mpich_*"))


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
