"""Registers, spills, shared memory and occupancy of every kernel that models launch.

Run `python -m benchmarks.gpu.kernels MODEL... [--arch sm_90 ...] [--batch N] [--precision P]
[--json]` from the root of the repository. A model is one of the zoo or of
`trained_models.py` (`gpt2-small`, `llama-1b`, `resnet-50`). Its training step on one device
is compiled, and every function that it launches is compiled for every architecture named; that
takes NVIDIA's compiler library and no GPU.

Where the device chooses among ways of computing one thing, the functions of all ways are listed. A
row is a function with the blocks that it is launched in: how many launches of a step are such,
`threads` of a block, `registers` of a thread, bytes of its `stack` (local memory, which lies in
device memory), the bytes of `spilled` values among what it stores and loads there, `shared` bytes
of a block and `dynamic` ones that its launch adds, how many blocks fit on a multiprocessor by
registers, by shared memory and by threads, and the share of the warps that it then holds. The exit
code is 1 where a function spills.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from math import prod

from rich.console import Console
from rich.table import Table

from benchmarks.gpu.kernel_resources import occupancy, resources_of, shared_bytes
from benchmarks.gpu.trained_models import DEVICE, benchmark_model, launches_of, planned
from millrace.executor.cuda.calls import Launch
from millrace.executor.cuda.compiling import Cubin, offline_cubin
from millrace.executor.errors import ExecutorError
from millrace.models.errors import ModelError
from millrace.planner.errors import InfeasibleError


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRow:
    """One function as it is launched, on one architecture; figures as the module says."""

    architecture: str
    source: str
    function: str
    launches: Mapping[str, int]
    threads: int
    registers: int
    stack_bytes: int
    spilled_bytes: int
    shared_bytes: int
    dynamic_bytes: int
    blocks_by_registers: int
    blocks_by_shared: int
    blocks_by_threads: int
    blocks: int
    warps_share: float


Launched = tuple[str, str, int, int]  # source, function, threads and dynamic bytes of a block


def launched(models: Iterable[str], batch: int, precision: str) -> dict[str, Counter[Launched]]:
    """Number of launches of each function, by its block, in a step of every model."""
    counts = {}
    for name in models:
        plan = planned(benchmark_model(name, precision), batch, DEVICE)
        counts[name] = Counter(map(_launched, launches_of(plan)))
    return counts


def _launched(launch: Launch) -> Launched:
    return launch.source, launch.function, prod(launch.block), launch.shared_bytes


def kernel_rows(
    counts: Mapping[str, Counter[Launched]], architectures: Iterable[str]
) -> list[KernelRow]:
    """Compile what models launch, and say what each function takes.

    Raises
    ------
    ExecutorError
        The compiler's library is missing, or an architecture is not known.
    """
    functions: dict[str, set[str]] = {}
    for source, function, *_ in set().union(*counts.values()):
        functions.setdefault(source, set()).add(function)
    wanted = [
        (source, architecture) for architecture in architectures for source in sorted(functions)
    ]
    with ThreadPoolExecutor() as pool:  # the compiler works outside Python's lock
        cubins = list(
            pool.map(lambda pair: offline_cubin(pair[0], functions[pair[0]], pair[1]), wanted)
        )
    return [
        row
        for (source, architecture), cubin in zip(wanted, cubins, strict=True)
        for row in _rows(source, architecture, cubin, counts)
    ]


def _rows(
    source: str, architecture: str, cubin: Cubin, counts: Mapping[str, Counter[Launched]]
) -> Iterable[KernelRow]:
    taken, spilled = resources_of(cubin.code), cubin.spilled_bytes()
    for key in sorted(set().union(*counts.values())):
        if key[0] != source:
            continue
        _, function, threads, dynamic_bytes = key
        symbol = cubin.symbols[function]
        resources = taken[symbol]
        fits = occupancy(resources, threads, architecture, dynamic_bytes)
        yield KernelRow(
            architecture=architecture,
            source=source,
            function=function,
            launches={
                name: count_by_launch[key]
                for name, count_by_launch in counts.items()
                if count_by_launch[key]
            },
            threads=threads,
            registers=resources.registers,
            stack_bytes=resources.stack_bytes,
            spilled_bytes=spilled[symbol],
            shared_bytes=shared_bytes(resources, architecture),
            dynamic_bytes=dynamic_bytes,
            blocks_by_registers=fits.by_registers,
            blocks_by_shared=fits.by_shared,
            blocks_by_threads=fits.by_threads,
            blocks=fits.blocks,
            warps_share=round(fits.warps_share, 4),
        )


def print_table(rows: Iterable[KernelRow], console: Console) -> None:
    """Print a table per architecture, functions by source."""
    by_architecture: dict[str, list[KernelRow]] = {}
    for row in rows:
        by_architecture.setdefault(row.architecture, []).append(row)
    for architecture, architecture_rows in by_architecture.items():
        table = Table(title=f"kernels on {architecture}", title_justify="left")
        table.add_column("function", overflow="fold")
        names = ("launches", "threads", "registers", "stack", "spilled", "shared", "dynamic")
        for name in (*names, "blocks by registers", "by shared", "by threads", "warps"):
            table.add_column(name, justify="right")
        for row in architecture_rows:
            fits = (row.blocks_by_registers, row.blocks_by_shared, row.blocks_by_threads)
            figures = (row.threads, row.registers, row.stack_bytes, row.spilled_bytes)
            table.add_row(
                f"{row.source}: {row.function}",
                " ".join(map(str, row.launches.values())),
                *map(str, (*figures, row.shared_bytes, row.dynamic_bytes, *fits)),
                f"{row.warps_share:.0%}",
            )
        console.print(table)


def main(arguments: list[str] | None = None) -> int:
    """Print the table, or one JSON document; return the exit code."""
    asked = argparse.ArgumentParser(prog="benchmarks.gpu.kernels", description=__doc__)
    asked.add_argument("models", nargs="+", metavar="MODEL")
    asked.add_argument("--arch", nargs="+", default=["sm_90"])
    asked.add_argument("--batch", type=int, default=8, help="samples of a step")
    asked.add_argument("--precision", default="bf16")
    asked.add_argument("--json", action="store_true")
    options = asked.parse_args(arguments)
    try:
        counts = launched(options.models, options.batch, options.precision)
        rows = kernel_rows(counts, options.arch)
    except (ExecutorError, ModelError, InfeasibleError) as error:
        print(f"benchmarks.gpu.kernels: {error}", file=sys.stderr)
        return 2
    spilling = [row for row in rows if row.spilled_bytes]
    if options.json:
        print(json.dumps({"rows": [asdict(row) for row in rows]}, indent=1))
    else:
        print_table(rows, Console(width=160))
        print(f"launches of a step of: {', '.join(options.models)}, in this order")
        print(f"{len(spilling)} of {len(rows)} rows spill")
    return int(bool(spilling))


if __name__ == "__main__":
    sys.exit(main())
