"""Beside: two pieces of work at once, the second in a forked process where there is a core for it.

What comes back is the same either way; where nothing can be forked the pieces run in turn.
"""

import os
import pickle
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")


def beside(first: Callable[[], A], second: Callable[[], B]) -> tuple[A, B]:
    """Return what both functions return; what `second` changes may be lost.

    Parameters
    ----------
    first : callable
        Runs here.
    second : callable
        Runs in a process of its own, which starts with all that is here; returns something that
        pickles. Where that process fails, for whatever reason, it runs here once more, so that
        errors are raised as if it always had.
    """
    if not _can_fork():
        return first(), second()
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # The process that is forked computes with arrays and ends; it needs no other thread.
        warnings.simplefilter("ignore", DeprecationWarning)
        process = os.fork()
    if not process:
        os.close(reading)
        _work(second, writing)
    os.close(writing)
    done = False
    try:
        mine = first()
        with os.fdopen(reading, "rb", closefd=False) as pipe:
            answer = pipe.read()
        done = True
    finally:
        os.close(reading)
        if not done:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    if not answer:
        return mine, second()
    found: B = pickle.loads(answer)
    return mine, found


def _work(function: Callable[[], object], writing: int) -> None:
    """The life of a forked process; it says nothing where it fails."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        answer = pickle.dumps(function(), pickle.HIGHEST_PROTOCOL)
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(answer)
        code = 0
    finally:
        # Nothing of the process that was copied is flushed or closed twice.
        os._exit(code)


def _can_fork() -> bool:
    """Whether another process would have a core, and none would copy the work of other threads."""
    if sys.platform != "linux" or threading.active_count() > 1:
        return False
    return len(os.sched_getaffinity(0)) > 1
