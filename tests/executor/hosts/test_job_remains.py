"""Remains of a job whose starter is killed while its ranks are starting."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep

from tests.executor.sources import ROOT

DEADLINE_S = 60.0

# Ranks that hear nobody, as those do that MPI is starting.
DEAF_RANK = "import signal, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))\n"
STARTER = f"""
import sys; sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from millrace.executor.hosts.rank_runs import run_ranks
run_ranks("deaf_rank", 2, Path(sys.argv[1]))
"""


def is_soon(condition: Callable[[], bool]) -> bool:
    deadline = monotonic() + DEADLINE_S
    while not (came_true := condition()) and monotonic() < deadline:
        sleep(0.02)
    return came_true


def deaf_ranks(starter: int) -> list[str]:
    mark = f"MILLRACE_JOB={starter}-".encode()
    ranks = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in path.read_bytes():
                ranks.append(path.parent.name)
        except OSError:
            continue
    return ranks


def test_ranks_that_hear_nobody_end_when_their_starter_is_killed(tmp_path: Path) -> None:
    """And neither a segment of MPI nor the job's folder stays."""
    (tmp_path / "deaf_rank.py").write_text(
        f"{DEAF_RANK}import pathlib, sys\n"
        "pathlib.Path(sys.argv[1], f'began.{time.time_ns()}').touch()\ntime.sleep(600)\n"
    )
    job = tmp_path / "job"
    job.mkdir()
    segment = Path(f"/dev/shm/mpich_test_{os.getpid()}")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", STARTER, str(job)], env=environment) as starter:
        assert is_soon(lambda: len(list(job.glob("began.*"))) == 2)
        segment.touch()
        assert len(deaf_ranks(starter.pid)) == 2
        starter.send_signal(signal.SIGKILL)
        starter.wait()
    assert is_soon(lambda: not deaf_ranks(starter.pid))
    assert is_soon(lambda: not segment.exists())
    assert is_soon(lambda: not job.exists())
