"""Times of commands as people wait for them, beside the time of Python alone.

Run `python -m benchmarks.commands [--runs N] [--wrong]` from the root of the repository. A line has
the median over N runs (5 by default), each a process of its own: seconds, those of the processor,
and the bar that they should stay under: those of the processor, or of a search those on the wall.
`--wrong` runs every line of `tests/millrace/wrong_lines.py` once instead, and prints the slowest.
The exit code is 1 where a time is above its bar.
"""

import os
import resource
import shlex
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import NamedTuple

import typer

from tests.millrace.wrong_lines import WRONG, words_of, write_files

MILLRACE = ("-m", "millrace")
LISTED = 10  # wrong lines that are printed
WRONG_BAR_S = 1.0
# Command line, and seconds of the processor that it should stay under; of a search, seconds.
COMMANDS: tuple[tuple[str, float | None], ...] = (
    ("--version", 0.3),
    ("--help", 0.3),
    ("plan --help", 0.3),
    ("run --help", 0.3),
    ("models gpt2-small", None),
    ("models", None),
    ("clusters", None),
    ("show plan.json", None),
    ("simulate plan.json", None),
    ("plan gpt2-small --cluster local:2 --global-batch 8", 3.0),
)


class Times(NamedTuple):
    """Seconds that a process took, and those of the processor."""

    wall_s: float
    cpu_s: float


def times_of(words: list[str], folder: Path) -> Times:
    """Times of Python with these arguments, run in a folder; what it prints is not shown."""
    root = str(Path(__file__).parents[1])
    before, began_s = resource.getrusage(resource.RUSAGE_CHILDREN), perf_counter()
    subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": root, "PYTHONDONTWRITEBYTECODE": ""},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    wall_s, after = perf_counter() - began_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Times(wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def typical(words: list[str], folder: Path, runs: int) -> Times:
    """Median times of so many runs, after one that writes what Python keeps of its modules."""
    times_of(words, folder)
    several = [times_of(words, folder) for _ in range(runs)]
    return Times(median(run.wall_s for run in several), median(run.cpu_s for run in several))


def right_lines(folder: Path, runs: int) -> int:
    """Print the times of `COMMANDS`; the number of those above their bar."""
    above = 0
    print("   wall    CPU    bar")
    rows = [("python -c pass", ["-c", "pass"], None)]
    rows += [(f"millrace {line}", [*MILLRACE, *shlex.split(line)], bar) for line, bar in COMMANDS]
    for name, words, bar_s in rows:
        times = typical(words, folder, runs)
        is_search = " plan " in f" {name} " and "--help" not in name
        above += bar_s is not None and (times.wall_s if is_search else times.cpu_s) > bar_s
        bar = "" if bar_s is None else f"{bar_s:.1f} s"
        print(f"{times.wall_s:5.2f} s{times.cpu_s:5.2f} s{bar:>7}  {name}", flush=True)
    return above


def wrong_lines(folder: Path) -> int:
    """Print the slowest of the wrong lines; the number of those above their bar."""
    lines = [line for line, _, _ in WRONG if "{nul}" not in line]  # no process takes a zero byte
    typical([*MILLRACE, "show", "plan.json"], folder, 1)
    rows = [(times_of([*MILLRACE, *words_of(line)], folder), line) for line in lines]
    rows.sort(key=lambda row: -row[0].cpu_s)
    print(f"the slowest of {len(rows)} wrong lines, bar {WRONG_BAR_S:.1f} s of the processor")
    print("   wall    CPU")
    for times, line in rows[:LISTED]:
        print(f"{times.wall_s:5.2f} s{times.cpu_s:5.2f} s  millrace {line}")
    return sum(times.cpu_s > WRONG_BAR_S for times, _ in rows)


def main(runs: int = 5, wrong: bool = False) -> None:
    """Measure and print."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_files(folder)
        above = wrong_lines(folder) if wrong else right_lines(folder, runs)
    raise SystemExit(above > 0)


if __name__ == "__main__":
    typer.run(main)
