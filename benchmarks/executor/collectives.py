"""All_reduce by the transport of a run, by MPI and by gloo; between hosts, beside raw sockets.

Run `python -m benchmarks.executor.collectives [--ranks 2,4] [--rounds 5]` from the root of the
repository. Needs PyTorch for gloo; `--ways millrace,mpi` leaves it out. `--ranks ""` leaves out
what ranks of one host do, `--rates ""` what hosts do, for which the rights of root are needed.

Prints, for every number of ranks on this host and every size, the median time of each way over all
rounds (of the slowest rank, several all_reduces in a row), and how many times faster than the best
of the others the transport is. MPI and gloo reduce in place, the transport from one register to
another, as a run does.

Then, for two hosts made of namespaces, with a rank each and with two: what TCP connections carry
between them both ways at once, and the share of it that an all_reduce carries. Every host must send
and receive as many bytes as the tensor has.
"""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import msgspec
import typer

from benchmarks.executor.collective_rank import ANSWER, QUESTION, WAYS, CollectiveSizes
from benchmarks.executor.namespaces import NetworkHosts, network_hosts
from benchmarks.executor.raw_link import both_ways_bytes_per_s
from millrace.executor.hosts.rank_runs import run_ranks

SIZES_BYTES = (2**12, 2**16, 2**18, 2**20, 2**22, 2**24, 2**26)
NETWORK_SIZES_BYTES = (2**12, 2**18, 2**22, 2**26)
# Ranks of one machine's namespaces would share memory.
NETWORK = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0"}
BATCH_S = 0.15  # of all_reduces in a row that are timed together


def main(
    ranks: Annotated[str, typer.Option(help="Numbers of ranks.")] = "2,4",
    ways: Annotated[str, typer.Option(help="What is timed.")] = ",".join(WAYS),
    sizes: Annotated[str, typer.Option(help="Bytes of an all_reduce.")] = ",".join(
        map(str, SIZES_BYTES)
    ),
    rates: Annotated[str, typer.Option(help="Gbit/s of the links between hosts.")] = "10,1",
    rounds: Annotated[int, typer.Option(help="Rounds of all ways.")] = 5,
) -> None:
    """Time every way and print tables."""
    question = CollectiveSizes(
        sizes_bytes=tuple(map(int, _numbers(sizes))),
        rounds=rounds,
        batch_s=BATCH_S,
        ways=tuple(ways.split(",")),
    )
    for count in _numbers(ranks):
        with TemporaryDirectory(prefix="millrace-collectives-") as name:
            folder = Path(name)
            (folder / QUESTION).write_bytes(msgspec.json.encode(question))
            run_ranks("benchmarks.executor.collective_rank", count, folder)
            answer = (folder / ANSWER).read_bytes()
        seconds = msgspec.json.decode(answer, type=dict[str, dict[int, float]])
        _print(count, question, seconds)
    for rate_gbit in _numbers(rates):
        for ranks_per_host in (1, 2):
            _print_between_hosts(rate_gbit, ranks_per_host, rounds)


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",") if word]


def _print_between_hosts(rate_gbit: int, ranks_per_host: int, rounds: int) -> None:
    """Time all_reduces between two hosts and print their share of what sockets carry."""
    question = CollectiveSizes(
        sizes_bytes=NETWORK_SIZES_BYTES, rounds=rounds, batch_s=BATCH_S, ways=("millrace", "mpi")
    )
    with (
        TemporaryDirectory(prefix="millrace-collectives-") as name,
        network_hosts(2, rate_gbit=rate_gbit) as hosts,
    ):
        raw = both_ways_bytes_per_s(*hosts)
        folder = Path(name)
        (folder / QUESTION).write_bytes(msgspec.json.encode(question))
        _run_on_hosts(hosts, ranks_per_host, folder)
        seconds = msgspec.json.decode(
            (folder / ANSWER).read_bytes(), type=dict[str, dict[int, float]]
        )
    print(
        f"two hosts of {ranks_per_host}, {rate_gbit} Gbit/s each way: sockets carry "
        f"{raw * 8e-9:.2f} both ways at once"
    )
    print(f"{'KiB':>8}" + "".join(f"{way + ' ms':>12}{'share':>8}" for way in question.ways))
    for size_bytes in question.sizes_bytes:
        line = f"{size_bytes // 2**10:>8,}"
        for way in question.ways:
            time_s = seconds[way][size_bytes]
            line += f"{1e3 * time_s:>12.3f}{size_bytes / time_s / raw:>7.0%} "
        print(line, flush=True)


def _run_on_hosts(hosts: NetworkHosts, ranks_per_host: int, folder: Path) -> None:
    """Run the ranks that answer a folder's question, as MPI's own launcher starts them."""
    launcher = ["-launcher", "ssh", "-launcher-exec", str(hosts.launcher)]
    places = ",".join(f"{host.address}:{ranks_per_host}" for host in hosts)
    where = ["-localhost", hosts.address, "-hosts", places, "-n", str(len(hosts) * ranks_per_host)]
    rank = ["-P", "-m", "mpi4py", "-m", "benchmarks.executor.collective_rank", str(folder)]
    mpiexec = str(Path(sys.executable).parent / "mpiexec")
    subprocess.run(
        [mpiexec, *launcher, *where, sys.executable, *rank, "by-mpiexec"],
        env={**os.environ, **NETWORK, "PYTHONPATH": str(Path.cwd())},
        check=True,
    )


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
