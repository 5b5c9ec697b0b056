"""The rehearsal of `benchmarks/gpu.sh`: whatever fails, hangs or is killed, no line is lost.

Failures are planted in small tests and parts; the emulated device stands for the GPU. The whole of
it, every slice and a machine that has only what is carried, is `benchmarks/gpu/rehearse.sh`.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import lines as gpu_lines
from benchmarks.gpu.lines import Line, folded, read
from benchmarks.gpu.results import EMULATED, by_device
from tests.executor.cuda.emulation.machine import COMPILER
from tests.executor.sources import ROOT

HANGS_S = 120  # deadlines that only end a hang: nothing here is waited for so long
TRIALS = 4

# What a CUDA error does: every call that follows in its context fails too.
CUPY = """
from types import SimpleNamespace

broken = False

def synchronize():
    if broken:
        raise RuntimeError("cudaErrorIllegalAddress: an illegal memory access was encountered")

cuda = SimpleNamespace(runtime=SimpleNamespace(deviceSynchronize=synchronize))
"""
CULPRITS = {
    "hangs": ("time.sleep(600)", "not done after 8 s"),
    "aborts": ("os.abort()", "the process ended: SIGABRT"),
    "faults": ("os.kill(os.getpid(), signal.SIGSEGV)", "the process ended: SIGSEGV"),
    "breaks": ("cupy.broken = True", "it broke the device's context: cudaErrorIllegalAddress"),
    "fails": ("assert 1 == 2", "assert 1 == 2"),
}
TESTS = """
import os, signal, time
import cupy, pytest
pytestmark = pytest.mark.gpu

@pytest.fixture(autouse=True)
def process(request):
    with open(os.environ["PROCESSES"], "a") as file:
        file.write(f"{request.node.nodeid} {os.getpid()}\\n")

def test_before(): pass
def test_culprit(): CULPRIT
def test_behind(): pass
"""

# Every line of an item is in the ledger once it is written.
PART = """
import os, signal, sys, time
from benchmarks.gpu.lines import append
from benchmarks.gpu.processes import run_apart, run_here, unwind_when_asked_to_end

def found(name):
    if name == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for at in range(15):
        append(f"{name}.{at}", True, figures={"much": "x" * 5000})
        with open(os.environ["LEDGER"], "a") as ledger:
            ledger.write(f"{name}.{at}\\n")
        time.sleep(600 if name == "endless" and at == 10 else 0.02)
    return {}

if sys.argv[1] == "--item":
    sys.exit(run_here(sys.argv[2], lambda: found(sys.argv[2])))
unwind_when_asked_to_end()
for name in sys.argv[1:]:
    run_apart(name, 100, "planted_part")
"""
RUNNER = """
import sys
from benchmarks.gpu.slices.parts import SlicePart, arguments, main, tests, trained
slices = {"1": (SLICE)}
sys.exit(main(arguments(slices), slices))
"""
ITEMS = 'SlicePart("items", "planted_part", ("swift", "stubborn"), 30),'
ENDLESS = 'SlicePart("endless", "planted_part", ("swift", "endless"), 60),'
SHORT = 'SlicePart("short", "planted_part", ("endless",), 1),'  # three times as long emulated
PASSING = 'SlicePart("tests", "benchmarks.gpu.slices.tests", ("{folder}/test_passing.py",), 30),'
NO_GPU = gpu.missing_gpu() is not None


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Environment of processes: a test's modules before ours, and where lines and the ledger go."""
    return {
        **os.environ,
        "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}",
        "OUT": str(folder),
        "LEDGER": str(folder / "ledger"),
        **more,
    }


def plant(folder: Path) -> None:
    """Lay into a folder what planted tests need."""
    folder.mkdir(exist_ok=True)
    (folder / "cupy.py").write_text(CUPY)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = gpu")


def lines_of_tests(folder: Path, *arguments: str) -> tuple[int, dict[str, Line]]:
    """Run the tests in a folder; return the exit code and what their lines come to."""
    more = {
        gpu_lines.FILE: str(folder / "tests.jsonl"),
        gpu_lines.LOG: str(folder / "tests.log"),
        "PROCESSES": str(folder / "processes"),
    }
    command = [sys.executable, "-m", "benchmarks.gpu.slices.tests", "--budget", "60", *arguments]
    files = [str(path) for path in sorted(folder.glob("test_*.py"))]
    done = subprocess.run(
        [*command, *files],
        env=environment(folder, **more),
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    return done.returncode, folded(read(folder / "tests.jsonl"))


def test_a_culprit_is_named_and_those_behind_it_run(tmp_path: Path) -> None:
    """A file of tests for every culprit, and one that cannot be imported, in one run."""
    plant(tmp_path)
    for name, (text, _) in CULPRITS.items():
        (tmp_path / f"test_{name}.py").write_text(TESTS.replace("CULPRIT", text))
    (tmp_path / "test_imports.py").write_text("import no_such_module")
    code, lines = lines_of_tests(tmp_path, "--test-seconds", "8")
    assert code == 1
    ran = (tmp_path / "processes").read_text().splitlines()
    processes = dict(line.rsplit(" ", 1) for line in ran)
    for name, (_, said) in CULPRITS.items():
        culprit = lines[f"test_{name}.py::test_culprit"]
        assert culprit["ok"] is False, name
        assert culprit["error"].startswith(said), name
        before, behind = (f"test_{name}.py::test_{neighbour}" for neighbour in ("before", "behind"))
        assert lines[before]["ok"], name
        assert lines[behind]["ok"], name
        assert (processes[before] == processes[behind]) is (name == "fails"), name
        if name in ("hangs", "aborts", "faults"):
            assert "test_culprit" in culprit["details"], f"{name}: where it was"
    missing = lines["test_imports.py::collection"]
    assert missing["ok"] is False
    assert missing["error"] == "ModuleNotFoundError: No module named 'no_such_module'"


def budgets_s() -> Iterator[int]:
    """Seconds, twice as many in every turn: to a busy machine it takes more to come to the test."""
    return iter((4, 8, 16, 32, 64))


def test_the_test_under_way_when_time_runs_out_is_named(tmp_path: Path) -> None:
    for seconds in budgets_s():
        folder = tmp_path / str(seconds)
        plant(folder)
        (folder / "test_late.py").write_text(TESTS.replace("CULPRIT", "time.sleep(600)"))
        code, lines = lines_of_tests(folder, "--budget", str(seconds))
        assert code == 1
        if "test_late.py::test_culprit" in lines:
            break
    assert lines["test_late.py::test_before"]["ok"]
    late = lines["test_late.py::test_culprit"]
    assert (late["ok"], late["late"], late["error"]) == (None, True, "no time was left")
    assert "test_late.py::test_behind" not in lines


def started_slice(folder: Path, parts: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a slice of planted parts."""
    plant(folder)
    (folder / "planted_part.py").write_text(PART)
    (folder / "test_passing.py").write_text(TESTS.replace("CULPRIT", "pass"))
    (folder / "runner.py").write_text(RUNNER.replace("SLICE", parts))
    return subprocess.Popen(
        [sys.executable, folder / "runner.py", "1", "--emulated", *arguments],
        env=environment(folder, PROCESSES=str(folder / "processes")),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def processes_of(folder: Path) -> list[str]:
    """Command lines of all processes that a slice has started and that have not ended."""
    mark = f"{gpu_lines.FILE}={folder / 'slice-1.jsonl'}".encode()
    commands = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (path / "environ").read_bytes().split(b"\0"):
                commands.append((path / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return commands


def until(holds: Callable[[], bool], seconds: float) -> bool:
    """Wait until something holds, but not for ever."""
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.05)
    return holds()


def summary(folder: Path) -> dict[str, Any]:
    """The document of a folder, as it was written and as its lines give it."""
    text = (folder / f"gpu-{EMULATED}.json").read_text()
    return dict(json.loads(text, parse_constant=pytest.fail))


def by_name(document: Mapping[str, Any], field: str) -> dict[str, Any]:
    return {entry["name"]: entry for entry in document[field]}


def test_a_slice_that_is_asked_to_end_says_so_and_leaves_nothing_behind(tmp_path: Path) -> None:
    process = started_slice(tmp_path, ENDLESS + ITEMS)
    lines = tmp_path / "slice-1.jsonl"
    assert until(lambda: "endless.10" in folded(read(lines)), HANGS_S)
    process.terminate()
    said, _ = process.communicate(timeout=HANGS_S)
    assert process.returncode == 1, said
    assert until(lambda: not processes_of(tmp_path), HANGS_S), processes_of(tmp_path)
    outcomes = folded(read(lines))
    for name in ("endless", "part.endless", "slice"):
        assert (outcomes[name]["ok"], outcomes[name]["error"]) == (False, "stopped by SIGTERM")
    assert "swift.14" in outcomes
    assert "part.items" not in outcomes
    document = summary(tmp_path)
    assert by_name(document, "parts")["endless"]["error"] == "stopped by SIGTERM"
    assert "slice" in by_name(document, "failures")


def test_a_slice_whose_time_runs_out_says_so_of_every_part(tmp_path: Path) -> None:
    for seconds in budgets_s():
        folder = tmp_path / str(seconds)
        process = started_slice(folder, ENDLESS + ITEMS, "--seconds", str(2 * seconds))
        said, _ = process.communicate(timeout=2 * HANGS_S)
        assert process.returncode == 1, said
        assert until(lambda slice_folder=folder: not processes_of(slice_folder), HANGS_S), (
            processes_of(folder)
        )
        outcomes = folded(read(folder / "slice-1.jsonl"))
        if "endless.10" in outcomes:
            break
    assert outcomes["swift"]["ok"]
    parts = by_name(summary(folder), "parts")
    assert parts["endless"]["error"].startswith("not done after ")
    assert parts["items"]["error"] == "no time was left"


def test_a_part_past_its_limit_is_ended_before_the_next_begins(tmp_path: Path) -> None:
    process = started_slice(tmp_path, SHORT + PASSING)
    assert until(lambda: "part.tests" in folded(read(tmp_path / "slice-1.jsonl")), HANGS_S)
    assert not [command for command in processes_of(tmp_path) if "planted_part" in command]
    said, _ = process.communicate(timeout=HANGS_S)
    assert process.returncode == 1, said
    parts = by_name(summary(tmp_path), "parts")
    assert parts["short"]["error"] == "not done after 3 s"
    assert parts["tests"]["ok"]


def test_a_slice_killed_at_any_moment_keeps_every_line(tmp_path: Path) -> None:
    """Kill slices by SIGTERM and SIGKILL in turn, some milliseconds after so many lines."""
    undisturbed = tmp_path / "whole"
    said, _ = (process := started_slice(undisturbed, ITEMS + PASSING)).communicate(timeout=HANGS_S)
    assert process.returncode == 0, said
    assert_nothing_is_lost(undisturbed, 0)
    lines, seeded = lines_of(undisturbed), random.Random(TRIALS)
    moments = [(lines * trial // TRIALS, seeded.uniform(0, 0.05)) for trial in range(TRIALS)]

    def killed(trial: int) -> tuple[Path, int]:
        folder, (count, later_s) = tmp_path / str(trial), moments[trial]
        process = started_slice(folder, ITEMS + PASSING)
        assert until(lambda: lines_of(folder) > count, HANGS_S)
        time.sleep(later_s)  # any time will do
        process.send_signal((signal.SIGTERM, signal.SIGKILL)[trial % 2])
        process.communicate(timeout=HANGS_S)
        until(lambda: not processes_of(folder), HANGS_S)
        return folder, process.returncode

    with ThreadPoolExecutor(4) as pool:
        for folder, code in pool.map(killed, range(TRIALS)):
            assert_nothing_is_lost(folder, code)


def lines_of(folder: Path) -> int:
    path = folder / "slice-1.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def assert_nothing_is_lost(folder: Path, code: int) -> None:
    """Assert that lines hold all that items wrote and that the summary says how the slice ended."""
    assert not processes_of(folder)
    ledger = folder / "ledger"
    written = set(ledger.read_text().split()) if ledger.exists() else set()
    outcomes = folded(read(folder / "slice-1.jsonl"))
    assert written <= set(outcomes), folder
    (document,) = by_device(folder)
    assert document["device"] == EMULATED
    if code == 1:
        assert "slice" in by_name(summary(folder), "failures"), folder
    else:
        assert code in (0, -signal.SIGKILL), folder


def commanded(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `benchmarks/gpu.sh`, with an interpreter that installs nothing."""
    python = folder / "python"
    python.write_text(f'#!/bin/sh\n[ "$2" = pip ] || exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return subprocess.run(
        ["bash", "benchmarks/gpu.sh", *arguments],
        env=environment(folder, PYTHON=str(python)),
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


def test_a_missing_wheel_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "msgspec.py").write_text("raise ImportError(\"No module named 'msgspec'\")")
    done = commanded(tmp_path, "1", "--emulated")
    assert done.returncode == 3
    assert done.stderr.startswith("benchmarks/gpu.sh: No module named 'msgspec': run `bash ")
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "slice-1.jsonl").exists()


@pytest.mark.skipif(not NO_GPU, reason="there is a GPU")
def test_without_a_gpu_nothing_is_run(tmp_path: Path) -> None:
    done = commanded(tmp_path, "1")
    assert done.returncode == 3
    assert done.stderr.startswith("benchmarks/gpu.sh: --backend cupy needs")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("arguments", [(), ("1", "--seconds", "x")])
def test_wrong_arguments_are_told_with_the_usage(tmp_path: Path, arguments: tuple[str]) -> None:
    done = commanded(tmp_path, *arguments)
    assert done.returncode == 2
    usage, error = done.stderr.splitlines()
    assert usage == "usage: benchmarks/gpu.sh [-h] [--seconds SECONDS] [--emulated] {1,2,3}"
    assert error.startswith("benchmarks/gpu.sh: error: ")


@pytest.mark.skipif(COMPILER is None, reason="needs g++")
def test_facts_tests_and_a_model_run_emulated(tmp_path: Path) -> None:
    """Parts of a slice as they are, but for PyTorch and most tests."""
    parts = (
        'SlicePart("facts", "benchmarks.gpu.slices.facts", (), 90, ("--emulated",)),'
        'tests("libraries", 90, "products"), trained("gpt2-small", 450, "", "--ours"),'
    )
    process = started_slice(tmp_path, parts)
    said, _ = process.communicate(timeout=5 * HANGS_S)
    assert process.returncode == 0, said
    document = summary(tmp_path)
    assert {part["name"]: part["ok"] for part in document["parts"]} == dict.fromkeys(
        ("facts", "libraries", "gpt2-small"), True
    )
    assert document["tests"]["tests/gpu/test_products.py"]["passed"] > 100
    assert document["failures"] == []
    (row,) = document["rows"]
    assert (row["model"], row["bit_equal"], row["ok"]) == ("gpt2-small", True, True)
    assert f"{EMULATED}:" in said
