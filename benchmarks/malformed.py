"""Malformed input: faults that files and command lines bring out which nobody means.

Run `python -m benchmarks.malformed [-n INPUTS] [--seed S] [--workers W] [--keep FOLDER]
[--only KIND[:NUMBER]]` from the root of the repository.

Every kind of input file is changed (`benchmarks/mutations.py`) as a seed draws and given to who
reads it (`benchmarks/malformed_kinds.py`). An input is accepted or refused: with exit code 1 or 2
and one sentence. A *fault* is everything else: an error that is none of ours, another exit code, a
traceback, characters that steer a terminal, a document that is no JSON, more than half a minute,
more than half a GiB of memory, a process that died. The table has the inputs of each kind; faults
follow, equal ones once, with the number of an input that shows it. `--keep` writes those inputs,
`--only` tries one kind, or one input. With any fault the command ends with 1.

Equal seeds draw equal inputs, whatever the number of workers.
"""

import argparse
import io
import json
import multiprocessing
import os
import re
import resource
import signal
import sys
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection, wait
from pathlib import Path
from random import Random
from time import perf_counter
from typing import NoReturn

from benchmarks.malformed_kinds import Asked, Kind, kinds
from millrace.cli import exit_code_of, run

INPUTS = 10_000
SECONDS_MAX = 30.0
MEMORY_BYTES_MAX = 512 * 2**20
ADDRESSES_BYTES = 4 * 2**30  # more than a worker has when it begins: what it may come to ask for
ACCEPTED, REFUSED = (0,), (1, 2)
STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
CONTEXT = multiprocessing.get_context("fork")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Outcome of one input; `fault` is empty where it was accepted or refused."""

    kind: str
    number: int
    accepted: bool = False
    fault: str = ""
    seconds: float = 0.0
    memory_bytes: int = 0


class LateError(BaseException):
    """No answer in time; nothing in between takes it for an error of its own."""


@cache
def table() -> dict[str, Kind]:
    """Kinds by their names."""
    return {kind.name: kind for kind in kinds()}


@cache
def sound(kind: str) -> dict[str, bytes]:
    """Content of a kind's folder, as bytes by file name."""
    return table()[kind].sound()


def drawn(kind: str, number: int, seed: int) -> tuple[dict[str, bytes], Random]:
    """Folder of one input, and the generator that goes on drawing."""
    draw = Random(f"{seed}/{kind}/{number}")
    row, content = table()[kind], dict(sound(kind))
    content[row.file] = draw.choice(row.mutations)(content[row.file], draw)
    return content, draw


def written(content: dict[str, bytes], folder: Path) -> None:
    """Write a folder's content to its place."""
    for name, file_bytes in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(file_bytes)


def tried(kind: str, number: int, seed: int) -> Result:
    """Give one input to who reads it."""
    content, draw = drawn(kind, number, seed)
    with tempfile.TemporaryDirectory(prefix="malformed-") as name:
        folder = Path(name)
        written(content, folder)
        os.chdir(folder)
        asked = draw.choice(table()[kind].ask(folder))
        before = _memory("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
        began = perf_counter()
        signal.setitimer(signal.ITIMER_REAL, SECONDS_MAX)
        try:
            code, fault = answer(asked)
        except LateError:
            code, fault = -1, f"no answer in {SECONDS_MAX:g} s"
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            os.chdir("/")
        seconds, grown = perf_counter() - began, _memory("VmHWM") - before
    if not fault and grown > MEMORY_BYTES_MAX:
        fault = f"more than {MEMORY_BYTES_MAX >> 20} MiB"
    return Result(
        kind=kind,
        number=number,
        accepted=code in ACCEPTED,
        fault=fault,
        seconds=seconds,
        memory_bytes=grown,
    )


def _memory(name: str) -> int:
    """Figure of this process's memory, in bytes."""
    text = Path("/proc/self/status").read_text()
    return int(text.partition(f"{name}:")[2].split()[0]) * 1024


def answer(asked: Asked) -> tuple[int, str]:
    """Exit code of a command line or function, and what is wrong with its answer."""
    if callable(asked):
        try:
            asked()
        except Exception as error:
            code = exit_code_of(error)
            if code in REFUSED and str(error):
                return code, ""
            return -1, f"{type(error).__name__}: {error}"
        return 0, ""
    sys.argv = ["millrace", *asked]
    out, err = io.StringIO(), io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = run(asked)
    except Exception as error:
        return -1, f"{type(error).__name__}: {error}"
    except SystemExit as error:
        return -1, f"SystemExit: {error}"
    return code, _wrong(code, out.getvalue(), err.getvalue(), "--json" in asked)


def _wrong(code: int, out: str, err: str, as_json: bool) -> str:
    """Fault in what a command said, in a line; empty where there is none."""
    sentence = err.strip().rpartition("\n")[2]
    if "a bug in Millrace" in sentence:
        return sentence.removeprefix("millrace: a bug in Millrace: ")
    if "Traceback (most recent call last)" in err:
        return "a traceback"
    if code not in (*ACCEPTED, *REFUSED):
        return f"exit code {code}: {sentence}"
    if code in REFUSED and not sentence.startswith("millrace: "):
        return f"no sentence: {sentence}"
    if match := STEERING.search(out + err):
        return f"steers a terminal with {match[0]!r}"
    if as_json and "--help" not in out:
        with suppress(ValueError):
            json.loads(out)
            return ""
        return "" if "Usage:" in out else "no JSON document"
    return ""


def work(tasks: Sequence[tuple[str, int]], seed: int, to: Connection) -> None:
    """Try inputs one after the other in this process, and tell what became of each."""
    warnings.simplefilter("error")
    signal.signal(signal.SIGALRM, _late)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (limit + ADDRESSES_BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for kind, number in tasks:
        try:
            to.send(tried(kind, number, seed))
        except Exception as error:  # of the benchmark itself
            to.send(f"{kind}:{number}: {type(error).__name__}: {error}")
            return
    to.send(None)


def _late(number: int, frame: object) -> NoReturn:
    raise LateError


def results(tasks: Sequence[tuple[str, int]], seed: int, workers: int) -> Iterator[Result]:
    """Yield what becomes of every input, tried in so many processes; one that dies is a fault."""
    left = [list(tasks[worker::workers]) for worker in range(workers)]
    running: dict[Connection, tuple[multiprocessing.process.BaseProcess, int]] = {}

    def start(worker: int) -> None:
        ours, theirs = CONTEXT.Pipe(duplex=False)
        process = CONTEXT.Process(target=work, args=(left[worker], seed, theirs), daemon=True)
        process.start()
        theirs.close()
        running[ours] = process, worker

    for worker in range(workers):
        start(worker)
    while running:
        ready = wait(list(running), timeout=2 * SECONDS_MAX)
        if not ready:  # in native code, where no alarm is heard
            for process, _ in running.values():
                process.kill()
            continue
        for receiver in ready:
            assert isinstance(receiver, Connection)
            process, worker = running[receiver]
            try:
                said = receiver.recv()
            except EOFError:
                del running[receiver]
                process.join()
                kind, number = left[worker].pop(0)
                fault = f"the process died with {process.exitcode}"
                yield Result(kind=kind, number=number, fault=fault)
                if left[worker]:
                    start(worker)
                continue
            if isinstance(said, str):
                raise RuntimeError(said)
            if said is None:
                del running[receiver]
                process.join()
            elif isinstance(said, Result):
                left[worker].pop(0)
                yield said


def drawn_tasks(inputs: int, only: str | None) -> list[tuple[str, int]]:
    """Kinds and numbers of the inputs that are asked for, kinds in turn."""
    names = list(table())
    if only is not None:
        name, _, number = only.partition(":")
        if name not in names:
            raise SystemExit(f"--only {only}: there is no kind `{name}`; known: {', '.join(names)}")
        if number:
            return [(name, int(number))]
        names = [name]
    return [(names[index % len(names)], index // len(names)) for index in range(inputs)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Try inputs and print what became of them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.malformed")
    parser.add_argument("-n", "--inputs", type=int, default=INPUTS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--keep", type=Path, help="folder in which faulty inputs are written")
    parser.add_argument("--only", metavar="KIND[:NUMBER]")
    given = parser.parse_args(arguments)
    tasks = drawn_tasks(given.inputs, given.only)
    for name in {name for name, _ in tasks}:  # made once, before the workers part
        sound(name)
    began = perf_counter()
    outcomes = list(results(tasks, given.seed, given.workers))
    print(f"{len(outcomes)} inputs of seed {given.seed} in {perf_counter() - began:.0f} s")
    _print_table(outcomes)
    faults = _print_faults(outcomes)
    if given.keep is not None:
        for fault in faults:
            content, _ = drawn(fault.kind, fault.number, given.seed)
            written(content, given.keep / f"{fault.kind}-{fault.number}")
    return 1 if faults else 0


def _print_table(outcomes: Sequence[Result]) -> None:
    print(f"{'kind':<24}{'inputs':>8}{'refused':>9}{'accepted':>10}{'faults':>8}{'s':>8}{'MiB':>7}")
    for name in table():
        rows = [outcome for outcome in outcomes if outcome.kind == name]
        if not rows:
            continue
        faults = sum(bool(outcome.fault) for outcome in rows)
        accepted = sum(outcome.accepted and not outcome.fault for outcome in rows)
        refused = len(rows) - faults - accepted
        worst_s = max(outcome.seconds for outcome in rows)
        most = max(outcome.memory_bytes for outcome in rows) >> 20
        print(
            f"{name:<24}{len(rows):>8}{refused:>9}{accepted:>10}{faults:>8}{worst_s:>8.1f}{most:>7}"
        )


def _print_faults(outcomes: Sequence[Result]) -> list[Result]:
    """Print faults, those alike in one line; return the first of each."""
    alike: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for outcome in sorted(outcomes, key=lambda outcome: (outcome.kind, outcome.number)):
        if outcome.fault:
            alike[outcome.kind, re.sub(r"[0-9]+|`[^`]*`", "…", outcome.fault)[:60]].append(outcome)
    for (kind, _), rows in alike.items():
        print(f"{len(rows):>6} {kind}:{rows[0].number}  {rows[0].fault[:200]!r}")
    return [rows[0] for rows in alike.values()]


if __name__ == "__main__":
    sys.exit(main())
