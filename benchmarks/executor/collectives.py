"""All_reduce by the transport of a run, by MPI and by gloo, in one run.

Run `python -m benchmarks.executor.collectives [--ranks 2,4] [--rounds 7]` from the root of the
repository. Needs PyTorch for gloo; `--ways millrace,mpi` leaves it out.

Prints, for every number of ranks and every size, the median time of each way over all rounds (of
the slowest rank, several all_reduces in a row), and how many times faster than the best of the
others the transport is. MPI and gloo reduce in place, the transport from one register to another,
as a run does.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import msgspec
import typer

from benchmarks.executor.collective_rank import ANSWER, QUESTION, WAYS, CollectiveSizes
from millrace.executor.processes import run_ranks

SIZES_BYTES = (2**12, 2**16, 2**18, 2**20, 2**22, 2**24, 2**26)
BATCH_S = 0.15  # of all_reduces in a row that are timed together


def main(
    ranks: Annotated[str, typer.Option(help="Numbers of ranks.")] = "2,4",
    ways: Annotated[str, typer.Option(help="What is timed.")] = ",".join(WAYS),
    sizes: Annotated[str, typer.Option(help="Bytes of an all_reduce.")] = ",".join(
        map(str, SIZES_BYTES)
    ),
    rounds: Annotated[int, typer.Option(help="Rounds of all ways.")] = 5,
) -> None:
    """Time every way and print a table."""
    question = CollectiveSizes(
        sizes_bytes=tuple(map(int, sizes.split(","))),
        rounds=rounds,
        batch_s=BATCH_S,
        ways=tuple(ways.split(",")),
    )
    for count in map(int, ranks.split(",")):
        with TemporaryDirectory(prefix="millrace-collectives-") as name:
            folder = Path(name)
            (folder / QUESTION).write_bytes(msgspec.json.encode(question))
            run_ranks("benchmarks.executor.collective_rank", count, folder)
            answer = (folder / ANSWER).read_bytes()
        seconds = msgspec.json.decode(answer, type=dict[str, dict[int, float]])
        _print(count, question, seconds)


def _print(count: int, question: CollectiveSizes, seconds: dict[str, dict[int, float]]) -> None:
    print(f"all_reduce between {count} ranks, ms")
    print(f"{'KiB':>8}" + "".join(f"{way:>12}" for way in question.ways) + f"{'faster':>12}")
    for size_bytes in question.sizes_bytes:
        times_s = [seconds[way][size_bytes] for way in question.ways]
        line = f"{size_bytes // 2**10:>8,}" + "".join(f"{1e3 * time:>12.3f}" for time in times_s)
        if len(times_s) > 1:
            line += f"{min(times_s[1:]) / times_s[0]:>10.2f} ×"
        print(line, flush=True)


if __name__ == "__main__":
    typer.run(main)
