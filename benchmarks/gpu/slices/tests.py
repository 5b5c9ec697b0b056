"""Tests on a GPU, in as many processes as it takes: a test that ends or hangs one is named.

Run `python -m benchmarks.gpu.slices.tests [--budget SECONDS] [--test-seconds N] FILE...` from the
root of the repository. Every test leaves its line, and so does a file that cannot be imported.
Where a process dies, breaks its context or hangs, the test under way has failed, and a fresh
process goes on behind it. The exit code is 1 if a test failed, if none ran or if not all had their
turn.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from subprocess import Popen

from benchmarks.gpu.lines import append, folded, lines_file, log_file, read
from benchmarks.gpu.processes import (
    ended,
    in_words,
    printed,
    size_of,
    started,
    unwind_when_asked_to_end,
)
from benchmarks.gpu.slices.plugin import BROKEN, DONE, TEST

POLL_S = 0.1
TEST_S_MAX = 120.0  # the first one compiles for all, which takes a third of this on twelve cores
TRACED = 0.9  # of a test's time, after which the log gets what it is doing
ENDED = (0, 1, 5)  # exit codes of pytest: all passed, some failed, none was left
NO_TIME = "no time was left"
PROCESS = "tests.process"  # the line of one that ended while no test was under way
PYTEST = (
    *("-m", "pytest", "-p", "benchmarks.gpu.slices.plugin", "-m", "gpu", "-q", "-W", "default"),
    *("-p", "no:cacheprovider", "--continue-on-collection-errors"),
)


def main() -> int:
    """Run the tests of some files."""
    asked = argparse.ArgumentParser(prog="benchmarks.gpu.slices.tests", description=__doc__)
    asked.add_argument("files", nargs="+")
    asked.add_argument("--budget", type=float, default=300.0, help="seconds for all tests")
    asked.add_argument("--test-seconds", type=float, default=TEST_S_MAX)
    options = asked.parse_args()
    unwind_when_asked_to_end()
    deadline = time.monotonic() + options.budget
    start = size_of(lines_file())
    with tempfile.TemporaryDirectory() as folder:
        why = run_all(options.files, deadline, options.test_seconds, Path(folder), start)
    line_by_name = folded(read(lines_file(), start))
    lines = [line for name, line in line_by_name.items() if "::" in name or name == PROCESS]
    failed = [line for line in lines if line["ok"] is False]
    passed = sum(line["ok"] is True for line in lines)
    for line in failed:
        print(f"FAILED {line['name']}: {line.get('error')}")
    print(f"{passed} passed, {len(failed)} failed, {len(lines) - passed - len(failed)} skipped")
    if why:
        print(why)
    return int(bool(failed or why) or not lines)


def run_all(
    files: Sequence[str], deadline: float, test_s: float, folder: Path, start: int
) -> str | None:
    """Run processes until every test has had its turn; return why one had none."""
    current, done = folder / "test", folder / "done"
    environment = {TEST: str(current), DONE: str(done)}
    command = [sys.executable, *PYTEST, "-o", f"faulthandler_timeout={TRACED * test_s}", *files]
    while True:
        before = folded(read(lines_file(), start))
        done.write_text("\n".join(before) + "\n")
        current.write_text("")
        said = size_of(log_file())
        process = started(command, environment)
        try:
            why = _watched(process, current, deadline, test_s)
            last = why == NO_TIME
        except SystemExit as stop:
            why, last = str(stop.code), True
        finally:
            ended(process)
        if why is None and process.returncode in ENDED:
            return None
        why = why or f"the process ended: {in_words(process.returncode)}"
        name, _ = _under_way(current)
        line_by_name = folded(read(lines_file(), start))
        if name and name not in line_by_name:
            append(name, None if last else False, error=why, details=printed(said), late=last)
        elif process.returncode != BROKEN:
            where = f"behind {name}" if name else "before the first test"
            append(PROCESS, None if last else False, error=f"{why}, {where}", details=printed(said))
            if len(line_by_name) == len(before):
                return why
        if last:
            return f"not all tests had their turn: {why}"


def _watched(process: Popen[bytes], current: Path, deadline: float, test_s: float) -> str | None:
    """Wait for a process; return why it has to end, None where it has ended by itself."""
    while process.poll() is None:
        if time.monotonic() > deadline:
            return NO_TIME
        name, began = _under_way(current)
        if name and time.time() - began > test_s:
            return f"not done after {test_s:.0f} s"
        time.sleep(POLL_S)
    return None


def _under_way(current: Path) -> tuple[str, float]:
    """Test under way and the time when it began; an empty name before the first."""
    name, _, began = current.read_text().strip().partition("\n")
    return (name, float(began)) if began else ("", 0.0)


if __name__ == "__main__":
    sys.exit(main())
