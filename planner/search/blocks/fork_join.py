"""Fork-join: two pieces of work at once, the second in a process where there is a core for it.

What comes back is the same either way; where nothing can be forked the pieces run in turn.
"""

import os
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

from millrace.planner.worker_processes import Child

A = TypeVar("A")
B = TypeVar("B")


def run_both(first: Callable[[], A], second: Callable[[], B]) -> tuple[A, B]:
    """Answers of both functions; what `second` changes may be lost.

    Parameters
    ----------
    first : callable
        Runs here.
    second : callable
        Runs in a process of its own, which starts with all that is here; returns something that
        pickles. Where that process fails, for whatever reason, it runs here once more, so that
        errors are raised as if it always had.
    """
    if not can_fork():
        return first(), second()
    try:
        child = Child(lambda line: line.send(second()))
    except OSError:  # no more processes are allowed
        return first(), second()
    try:
        first_answer = first()
        try:
            second_answer: B = child.answer()
        except EOFError:
            child.end()
            return first_answer, second()
        return first_answer, second_answer
    finally:
        child.end()


def can_fork() -> bool:
    """True if another process would have a core, and would copy no work of other threads."""
    if sys.platform != "linux" or threading.active_count() > 1:
        return False
    return len(os.sched_getaffinity(0)) > 1
