"""Public launch scripts, read as they are given: how many, why the others are not, and how fast.

Usage::

    python -m benchmarks.trainers.public_scripts FOLDER [--names FILE] [--save FILE]
    python -m benchmarks.trainers.public_scripts --hostile 500

FOLDER holds scripts of others, such as checkouts of their repositories; they are not part of this
one. Read is every script whose text has a launcher and a setting of a trainer, with the files
beside and below it that it names; FILE lists some of them, a path in a line. Refusals are counted
by their sentences without names and numbers. Hostile scripts are put together here, each run in a
process of its own that is measured: what was started, seconds and the most memory.
"""

import argparse
import json
import random
import re
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import perf_counter

from millrace.planner.errors import PlanError
from millrace.trainers.catalogue import read_settings
from millrace.trainers.scripts.launched import launches
from millrace.trainers.sources import source_of

SUFFIXES = (".sh", ".slurm", ".sbatch")
LAUNCHER = re.compile(r"torchrun|torch\.distributed|deepspeed|srun|mpirun|accelerate|python")
SETTING = re.compile(r"--num[-_]layers|--hidden[-_]size|--deepspeed|--per_device_train_batch_size")
NEIGHBOURS, NEIGHBOUR_BYTES_MAX = (*SUFFIXES, ".env", ".conf", ".json", ".yaml", ".yml"), 1_000_000
HARMS = (
    *("rm -rf / --no-preserve-root", "echo x > /etc/passwd", "kill -9 -1", "reboot"),
    *("exec 3<>/dev/tcp/127.0.0.1/22; cat <&3", "curl http://127.0.0.1/x | bash"),
    *("eval $(echo cm0gLXJmIC8= | base64 -d)", "python3 -c 'import os; os.remove(\"/\")'"),
    *("cat /etc/shadow /proc/self/environ", "ssh host 'rm -rf ~'", "find / -delete"),
)
WASTES = (
    *("while :; do :; done", "f() { f; }; f", ":(){ :|:& };:", "x=a; while :; do x=$x$x; done"),
    *("echo {1..1000000000}", "x=$(seq 1 1000000000)", "sleep 1000", "echo $((10**10**10))"),
    *("yes | sort", "cat /dev/zero > /tmp/x", "printf '%0999999999d' 1", "a=(); a[999999999]=1"),
    *("for i in {1..9999}; do for j in {1..9999}; do :; done; done", "read x; wait"),
    *("cat <<E > /tmp/x\n" + "x" * 3_000_000 + "\nE", "[[ " + "a" * 40 + "c =~ (a+)+b ]]"),
    *("bash $0", "srun bash $0", "trap 'bash $0' EXIT", "source $0", "awk 'BEGIN{while(1);}'"),
)
WRAPPED = (
    "{}",
    "( {} ) &",
    "srun bash -c {!r}",
    "f() {{ {}\n}}; f",
    "if true; then {}\nfi",
    "{} || {}",
)


def scripts(folder: Path, names: Path | None) -> Iterator[Path]:
    """Yield paths of scripts that start a training, or of those that a file names."""
    if names is not None:
        yield from (folder / line for line in names.read_text().splitlines() if line)
        return
    for path in sorted(folder.rglob("*")):
        if path.suffix in SUFFIXES and path.is_file():
            text = path.read_text(errors="replace")
            if LAUNCHER.search(text) and SETTING.search(text):
                yield path


def outcome(path: Path) -> str:
    """`read`, or the sentence of the refusal without names and numbers."""
    text = path.read_text(errors="replace")
    neighbours = [
        str(other)
        for other in sorted(path.parent.rglob("*"))
        if other != path and other.name in text and other.suffix in NEIGHBOURS and other.is_file()
        if other.stat().st_size < NEIGHBOUR_BYTES_MAX
    ]
    try:
        read_settings(source_of([str(path), *neighbours], {}), None, "--from")
    except PlanError as error:
        return re.sub(r"`[^`]*`|[-\w./$]*\d[\w.]*", "…", str(error))[:100]
    return "read"


def public(folder: Path, names: Path | None, save: Path | None) -> None:
    """Print how many scripts are read, by what the others are refused, and seconds."""
    counts, seconds, rows = Counter[str](), list[float](), dict[str, str]()
    for path in scripts(folder, names):
        began = perf_counter()
        rows[str(path.relative_to(folder))] = said = outcome(path)
        seconds.append(perf_counter() - began)
        counts[said] += 1
    print(f"{counts['read']} of {len(rows)} scripts are read")
    for said, count in counts.most_common(20):
        if said != "read":
            print(f"{count:5} {said}")
    if seconds:
        print(f"seconds of a script: median {median(seconds):.3f}, most {max(seconds):.2f}")
    if save is not None:
        save.write_text(json.dumps(rows, indent=1))


def hostile(count: int) -> None:
    """Print what hostile scripts started, their seconds and their memory."""
    rng, started, seconds, memory_bytes = random.Random(1), 0, list[float](), 0
    for _ in range(count):
        parts = [rng.choice(WRAPPED).format(part, part) for part in rng.sample(HARMS + WASTES, 3)]
        began = perf_counter()
        command = [sys.executable, "-m", __spec__.name, "--script"]
        done = subprocess.run(
            command, input="\n".join(parts), capture_output=True, text=True, check=True
        )
        seconds.append(perf_counter() - began)
        programs, peak_bytes = map(int, done.stdout.split())
        started += programs
        memory_bytes = max(memory_bytes, peak_bytes)
    print(
        f"{count} hostile scripts: {started} programs, median {median(seconds):.2f} s, most "
        f"{max(seconds):.2f} s with the interpreter's start, most memory {memory_bytes >> 20} MiB"
    )


def single(text: str) -> None:
    """Print the programs that a script comes to, and the most memory of this process."""
    try:
        programs = len(launches(source_of([f"{text}\n "], {})))
    except PlanError:
        programs = 0
    print(programs, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10)


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--names", type=Path)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--hostile", type=int, metavar="N")
    parser.add_argument("--script", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.script:
        single(sys.stdin.read())
    elif asked.hostile:
        hostile(asked.hostile)
    elif asked.folder is None:
        parser.error("name a folder of scripts, or --hostile N")
    else:
        public(asked.folder, asked.names, asked.save)


if __name__ == "__main__":
    main()
