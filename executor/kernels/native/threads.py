"""Threads that OpenMP gives a function: their number, as it reads the environment."""

import os

from millrace.executor.processes import usable_cores


def thread_count() -> int:
    """Threads of a parallel region of this process, at most."""
    text = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(text) if text.isdecimal() and int(text) > 0 else usable_cores()
