"""Tests on a GPU, in as many processes as it takes: a test that ends or hangs one is named.

Run `python -m benchmarks.gpu_tests [--budget SECONDS] [--test-seconds N] FILE...` from the root of
the repository. Every test leaves its line. Where a process dies, breaks its context or hangs, the
test under way has failed, and a fresh process goes on behind it. The exit code is 1 if a test
failed, if none ran or if not all had their turn.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from subprocess import Popen

from benchmarks.gpu_lines import append, folded, lines_file, log_file, read
from benchmarks.gpu_plugin import BROKEN, DONE, TEST
from benchmarks.gpu_processes import (
    ended,
    in_words,
    size_of,
    started,
    tail,
    unwind_when_asked_to_end,
)

POLL_S = 0.1
TEST_S_MAX = 120.0  # the first one compiles for all, which takes a third of this on twelve cores
ENDED = (0, 1, 5)  # exit codes of pytest: all passed, some failed, none was left
PYTEST = (
    *("-m", "pytest", "-p", "benchmarks.gpu_plugin", "-m", "gpu", "-q", "-W", "default"),
    *("-p", "no:cacheprovider"),
)


def main() -> int:
    """Run the tests of some files."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("files", nargs="+")
    asked.add_argument("--budget", type=float, default=300.0, help="seconds for all tests")
    asked.add_argument("--test-seconds", type=float, default=TEST_S_MAX)
    options = asked.parse_args()
    unwind_when_asked_to_end()
    deadline = time.monotonic() + options.budget
    start = size_of(lines_file())
    with tempfile.TemporaryDirectory() as folder:
        why = run_all(options.files, deadline, options.test_seconds, Path(folder), start)
    found = [one for name, one in folded(read(lines_file(), start)).items() if "::" in name]
    failed = [one for one in found if one["ok"] is False]
    passed = sum(one["ok"] is True for one in found)
    for one in failed:
        print(f"FAILED {one['name']}: {one.get('error')}")
    print(f"{passed} passed, {len(failed)} failed, {len(found) - passed - len(failed)} skipped")
    if why:
        print(why)
    return int(bool(failed or why) or not found)


def run_all(
    files: Sequence[str], deadline: float, test_s: float, folder: Path, start: int
) -> str | None:
    """Run processes until every test has had its turn; return why one had none."""
    current, done = folder / "test", folder / "done"
    environment = {TEST: str(current), DONE: str(done)}
    while True:
        finished = list(folded(read(lines_file(), start)))
        done.write_text("\n".join(finished) + "\n")
        current.write_text("")
        said, before = size_of(log_file()), len(finished)
        process = started([sys.executable, *PYTEST, *files], environment)
        try:
            why = _watched(process, current, deadline, test_s)
        finally:
            ended(process)
        if why is None and process.returncode in ENDED:
            return None
        if why is None and process.returncode != BROKEN:
            why = f"the process ended: {in_words(process.returncode)}"
        name, _ = _under_way(current)
        known = folded(read(lines_file(), start))
        if time.monotonic() >= deadline:
            return "not all tests had their turn: no time was left"
        if name and name not in known:
            append(name, False, error=why, details=tail(said))
        elif len(known) == before:
            error = why or "the device's context was broken before the first test"
            append("tests.process", False, error=error, details=tail(said))
            return error


def _watched(process: Popen[bytes], current: Path, deadline: float, test_s: float) -> str | None:
    """Wait for a process; return why it has to end, None where it has ended by itself."""
    while process.poll() is None:
        if time.monotonic() > deadline:
            return "no time was left"
        name, began = _under_way(current)
        if name and time.time() - began > test_s:
            return f"not done after {test_s:.0f} s"
        time.sleep(POLL_S)
    return None


def _under_way(current: Path) -> tuple[str, float]:
    """The test under way and when it began; an empty name before the first."""
    name, _, began = current.read_text().strip().partition("\n")
    return (name, float(began)) if began else ("", 0.0)


if __name__ == "__main__":
    sys.exit(main())
