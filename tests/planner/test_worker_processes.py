"""Work in forked processes: the same answers and errors, and nobody left, however all ends."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep

import pytest

from millrace.planner.errors import ChildError, InfeasibleError
from millrace.planner.search.blocks import fork_join as module
from millrace.planner.worker_processes import map_in_processes
from tests.executor.sources import ROOT

DEADLINE_S = 60.0


def is_soon(condition: Callable[[], bool]) -> bool:
    """True if `condition` comes true; the deadline only ends a wait that would never end."""
    deadline = monotonic() + DEADLINE_S
    while not (holds := condition()) and monotonic() < deadline:
        sleep(0.02)
    return holds


def has_ended(process: int) -> bool:
    """True if the process is gone, or dead and not yet reaped by the process that adopted it."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize("processes", [1, 2, 9])
def test_answers_come_in_the_order_of_the_jobs(processes: int) -> None:
    large = 1_000_000  # more than a pipe holds

    def work(job: int) -> str:
        sleep(0.05 * (job == 0))
        return f"{job}" * large

    answers = list(map_in_processes(work, range(4), processes))
    assert answers == [f"{job}" * large for job in range(4)]


def test_what_a_job_raises_is_raised_here_as_it_is() -> None:
    def fails(job: int) -> int:
        if job == 1:
            raise InfeasibleError("no room")
        return job

    answers = map_in_processes(fails, range(3), 2)
    assert next(answers) == 0
    with pytest.raises(InfeasibleError, match="no room"):
        next(answers)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_ended_from_outside_is_told_and_takes_the_others_along(
    number: signal.Signals, tmp_path: Path
) -> None:
    def work(job: int) -> None:
        (tmp_path / f"{os.getpid()}").touch()
        if job == 1:
            os.kill(os.getpid(), number)
        sleep(DEADLINE_S)

    with pytest.raises(ChildError, match=f"one of 2 processes was ended by {number.name}"):
        list(map_in_processes(work, range(2), 2))
    assert is_soon(lambda: all(has_ended(int(path.name)) for path in tmp_path.iterdir()))


def test_where_no_more_processes_are_allowed_all_is_done_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused() -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "fork", refused)
    monkeypatch.setattr(module, "can_fork", lambda: True)
    assert list(map_in_processes(abs, [-1, -2], 2)) == [1, 2]
    assert module.run_both(lambda: 1, lambda: 2) == (1, 2)


def test_ctrl_c_in_a_child_changes_nothing() -> None:
    def work(job: int) -> int:
        os.kill(os.getpid(), signal.SIGINT)
        return job

    assert list(map_in_processes(work, range(3), 2)) == [0, 1, 2]


FAMILY = """
import os, sys
from time import sleep
sys.path.insert(0, sys.argv[1])
from millrace.planner.worker_processes import Child, map_in_processes

def told(line):
    os.write(1, f"{os.getpid()}\\n".encode())
    sleep(600)

def work(job):
    grandchild = Child(told)
    told(None)

list(map_in_processes(work, range(2), 2))
"""


def test_children_and_their_children_end_with_a_killed_parent() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FAMILY, str(ROOT)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        family = [int(parent.stdout.readline()) for _ in range(4)]
        parent.kill()
    assert is_soon(lambda: all(map(has_ended, family)))
