"""Runs of test files on private copies of the working tree, with a mutant in it or without.

A test file runs in a process of its own, always: what it reaches and how long it takes, noted once
without a mutant (by coverage.py, which sees no other processes), then hold for it with any mutant.
A mutant is shown only to the files that reach its statement, and to those that start processes.

Copies hold what git lists, links as links. `PYTHONPATH` names the copy, so that processes of the
tests import it too. Bytecode is made once for a copy, is checked by the content of its source and
is not written again. Hypothesis draws the same examples every time and keeps none.
"""

import ast
import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu_processes import ended

from benchmarks.mutants_places import Mutant, mutated

FACTOR, SPARE_S = 3.0, 30.0  # a file may take so many times its own time, and so much more
UNMUTATED_S_MAX = 600.0
DATA_BYTES_MAX = 8 << 30  # private memory of a process: a mutant may ask for any amount
PYTEST = (
    *("-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider"),
    *("--hypothesis-profile", "ci"),  # no deadline, no examples kept, the same ones every time
)
MARK = "MILLRACE_MUTANT"  # in the environment of all that a run starts, whatever its session
PASSED, FAILED, INTERRUPTED = 0, 1, 2  # exit codes of pytest; 2 where a file cannot be imported
ASKED_S = 5.0  # from being asked to end to being killed
TAIL = 2000


class RunError(Exception):
    """Tests that say nothing: none was found, or they fail without a mutant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmutated:
    """Run of a test file on the code as it is: its seconds and the lines that it runs, by path."""

    tests: str
    seconds: float
    lines: dict[str, frozenset[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MutantOutcome:
    """Outcome of a mutant: `by` is the test file that killed it, or the last that did not."""

    killed: bool
    by: str
    late: bool
    files: int
    seconds: float


def listed(root: Path) -> list[str]:
    """Files of a working tree: those that git tracks or would, and that are there."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    told = subprocess.run(command, cwd=root, capture_output=True, check=True).stdout.decode()
    return sorted(name for name in set(told.split("\0")) if name and os.path.lexists(root / name))


def digest_of(root: Path, files: Iterable[str]) -> str:
    """Digest of the Python files of a working tree, those of benchmarks aside."""
    digest = hashlib.sha256()
    for name in files:
        aside = "benchmarks" in Path(name).parts
        if name.endswith(".py") and not aside and (root / name).is_file():
            digest.update(f"{name}\0".encode() + (root / name).read_bytes() + b"\0")
    return digest.hexdigest()[:16]


class TreeCopy:
    """A private copy of a working tree, and the runs on it."""

    def __init__(self, root: Path, files: Sequence[str], folder: Path) -> None:
        self.tree, self._folder = folder / "tree", folder
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False
        for name in files:
            target = self.tree / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target, follow_symlinks=False)
        compiling = ("-m", "compileall", "-q", "--invalidation-mode", "checked-hash", ".")
        subprocess.run([sys.executable, *compiling], cwd=self.tree, check=False)

    def unmutated(self, tests: str, paths: Sequence[str]) -> Unmutated:
        """Run a test file as it is, and note the lines of some files that it runs.

        Raises
        ------
        RunError
            It does not pass.
        """
        from coverage import CoverageData

        data = self._folder / "coverage"
        include = ",".join(str((self.tree / path).resolve()) for path in paths)
        options = ("--data-file", str(data), "--include", include, "--rcfile", os.devnull)
        code, seconds = self._run(("-m", "coverage", "run", *options, *PYTEST, tests))
        if code != PASSED:
            how = f"late, after {seconds:.0f} s" if code is None else f"exit code {code}"
            raise RunError(f"{tests} does not pass without a mutant ({how}):\n{self._tail()}")
        noted = CoverageData(str(data))
        noted.read()
        lines = {
            path: frozenset(noted.lines(str((self.tree / path).resolve())) or ()) for path in paths
        }
        data.unlink(missing_ok=True)
        return Unmutated(tests=tests, seconds=seconds, lines=lines)

    def outcome(self, mutant: Mutant, files: Sequence[Unmutated]) -> MutantOutcome:
        """Show a mutant to test files in turn, until one of them fails or is late.

        Raises
        ------
        RunError
            A file ended in a way that is no verdict.
        """
        source = self.tree / mutant.path
        original = source.read_bytes()
        began, by, count = time.monotonic(), "", 0
        source.write_bytes(mutated(mutant, original.decode()).encode())
        try:
            for count, file in enumerate(files, 1):
                by = file.tests
                code, _ = self._run((*PYTEST, by), FACTOR * file.seconds + SPARE_S)
                killed = code is None or code < 0 or code in (FAILED, INTERRUPTED)
                if not killed and code != PASSED:
                    raise RunError(f"{by} ended with exit code {code}:\n{self._tail()}")
                if killed:
                    seconds = time.monotonic() - began
                    late = code is None
                    return MutantOutcome(
                        killed=True, by=by, late=late, files=count, seconds=seconds
                    )
        finally:
            source.write_bytes(original)
        seconds = time.monotonic() - began
        return MutantOutcome(killed=False, by=by, late=False, files=count, seconds=seconds)

    def _run(
        self, arguments: Sequence[str], limit_s: float = UNMUTATED_S_MAX
    ) -> tuple[int | None, float]:
        """Exit code (None where it was late) and seconds of a run; nothing of it is left."""
        scratch = self._folder / "scratch"
        scratch.mkdir()
        mark = f"{os.getpid()}-{time.monotonic_ns()}"
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.tree),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": str(scratch),
            "XDG_CACHE_HOME": str(scratch / "cache"),
            "HYPOTHESIS_STORAGE_DIRECTORY": str(self._folder / "hypothesis"),
            MARK: mark,
        }
        began = time.monotonic()
        with (self._folder / "output").open("wb") as sink:
            self._process = process = subprocess.Popen(
                [sys.executable, "-B", *arguments],
                cwd=self.tree,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
                preexec_fn=_limit_memory,
            )
            try:
                code: int | None = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                seconds = time.monotonic() - began
                _end(process, mark)
                shutil.rmtree(scratch, ignore_errors=True)
        if self._stopped:
            raise RunError("stopped")
        return code, seconds

    def stop(self) -> None:
        """End the run under way, if any, and the thread that waits for it."""
        self._stopped = True
        if self._process is not None:
            ended(self._process, ASKED_S)

    def _tail(self) -> str:
        return (self._folder / "output").read_text(errors="replace")[-TAIL:]


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES_MAX, DATA_BYTES_MAX))


def _end(process: subprocess.Popen[bytes], mark: str) -> None:
    """End a run and all that it started: ranks are in sessions of their own, but keep the mark.

    Asked first, what waits for ranks ends them and removes their shared memory.
    """
    ended(process, ASKED_S)
    wanted = f"{MARK}={mark}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if wanted in path.read_bytes().split(b"\0"):
                os.kill(int(path.parent.name), signal.SIGKILL)


def reaching(mutant: Mutant, files: Iterable[Unmutated], statement: range) -> list[Unmutated]:
    """Test files that run some line of the mutant's statement."""
    return [file for file in files if not file.lines[mutant.path].isdisjoint(statement)]


def statement_of(source: str, line: int) -> range:
    """Lines of the innermost statement around a line; of a compound one its head."""
    statement = range(line, line + 1)
    for node in ast.walk(ast.parse(source)):  # outer ones first
        if isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
            first = node.pattern.lineno if isinstance(node, ast.match_case) else node.lineno
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if body else node.end_lineno
            if first <= line <= max(first, last):
                statement = range(first, max(first, last) + 1)
    return statement


def written(file: Unmutated) -> str:
    """JSON line of a test file's run."""
    lines = {path: sorted(numbers) for path, numbers in file.lines.items()}
    return json.dumps({"unmutated": file.tests, "seconds": round(file.seconds, 2), "lines": lines})


def read(line: dict[str, object]) -> Unmutated:
    """Run of a test file, from its line of JSON."""
    lines = {path: frozenset(numbers) for path, numbers in line["lines"].items()}
    return Unmutated(tests=line["unmutated"], seconds=line["seconds"], lines=lines)
