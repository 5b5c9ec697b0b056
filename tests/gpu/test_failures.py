"""Runs on a GPU that fail: one sentence, an exit code, and nothing left."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep

import pytest

from millrace.executor.backend import WORKERS, Backend
from millrace.executor.errors import ExecutorError
from millrace.executor.hosts.job_remains import TOKEN
from millrace.executor.launch import execute
from tests.executor.gpu.plans import planned
from tests.executor.sources import ROOT
from tests.gpu.commands import environment, middling_plan, millrace, used_bytes, written
from tests.gpu.conftest import EMULATED

PATIENCE_S = 60
LEFT_BYTES = 3 * 2**30  # a context takes half a GiB, the plan more than what is left then


@pytest.fixture(autouse=True)
def _nothing_left(gpu: None) -> Iterator[None]:
    """No process and no memory of a device outlives a run."""
    if EMULATED:
        pytest.skip("the emulated device has its own: tests/executor/gpu/test_failures.py")
    before = used_bytes()
    yield
    assert is_soon(lambda: used_bytes() <= before), "memory of the device is still held"


def is_soon(condition: Callable[[], bool]) -> bool:
    deadline = monotonic() + PATIENCE_S
    while not (holds := condition()) and monotonic() < deadline:
        sleep(0.1)
    return holds


def ranks_of(parent: int) -> list[int]:
    """Processes that a command has started, launchers included."""
    pids = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if f"{TOKEN}={parent}-".encode() in (path / "environ").read_bytes():
                pids.append(int(path.name))
        except OSError:
            continue
    return pids


def workers_of(parent: int) -> list[int]:
    """Ranks among the processes that a command has started."""
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in ranks_of(parent)}
    return [
        pid for pid, command in commands.items() if b"millrace.executor.gpu.gpu_worker" in command
    ]


def test_a_plan_too_large_for_what_is_free_is_answered_with_no(tmp_path: Path) -> None:
    import cupy

    runtime = cupy.cuda.runtime
    free, _ = runtime.memGetInfo()
    address = runtime.malloc(free - LEFT_BYTES)
    try:
        plan = written(middling_plan(), tmp_path)
        done = millrace("run", plan, "--backend", "cupy", "--steps", 2)
    finally:
        runtime.free(address)
    assert done.returncode == 1, done.stderr[-2000:]
    last = done.stderr.strip().splitlines()[-1]
    assert "rank 0 needs" in last
    assert "GiB short" in last
    assert "Traceback" not in done.stderr


def test_a_rank_that_is_killed_ends_the_run(tmp_path: Path) -> None:
    plan = written(planned("gpt", "fp32")[0], tmp_path)
    command = [sys.executable, "-m", "millrace", "run", str(plan), "--backend", "cupy"]
    process = subprocess.Popen(
        [*command, "--steps", "1000000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment(),
    )
    assert process.stderr is not None
    line = process.stderr.readline()
    while line and "loss" not in line:
        line = process.stderr.readline()
    (worker,) = workers_of(process.pid)
    os.kill(worker, signal.SIGKILL)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 3, said[-2000:]
    assert "rank 0" in said
    assert is_soon(lambda: not ranks_of(process.pid))


def test_a_kernel_that_reads_where_nothing_is_names_rank_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(WORKERS, "cupy", "tests.gpu.faulty_worker")
    with pytest.raises(ExecutorError) as failed:
        execute(planned("gpt", "fp32")[0], steps=3, backend=Backend(name="cupy"))
    said = str(failed.value)
    assert said.startswith("rank 0")
    assert "GPU 0" in said
    assert "--eager" in said
    assert "CUDA_LAUNCH_BLOCKING=1" in said
    assert not ranks_of(os.getpid())
