"""`millrace profile`: measure this machine's ops and collectives."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from millrace.output import Json, answer, say, working
from millrace.units import format_rate, format_seconds
from planner.cluster import Device


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("profile")(profile)


def profile(
    ranks: Annotated[
        int | None, typer.Option(min=1, help="Processes that share this machine; its cores.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the device profile here.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure this machine anew, for `--cluster local:N` with as many ranks."""
    from executor.measure import cached_profile
    from millrace.files import check_writable, write_document
    from planner.clusters import local_cluster, machine_cores, machine_memory_bytes

    check_writable(output)
    cores = machine_cores()
    count = cores if ranks is None else ranks
    local_cluster(count, cores, machine_memory_bytes())  # refuses what the machine cannot hold
    with working(f"measuring this machine with {count} ranks"):
        device = cached_profile(count, refresh=True)
    if output is not None:
        write_document(output, device)
        say(f"device profile written to {output}")
    answer(msgspec.to_builtins(device), as_json, lambda console: _draw(device, console))


def _draw(device: Device, console: Console) -> None:
    console.print(device.name, markup=False)
    for precision, rate in sorted(device.flops_per_s.items()):
        console.print(f"fastest matmul, {precision}: {format_rate(rate, 'FLOP')}", markup=False)
    bandwidth = format_rate(device.memory_bandwidth_bytes_per_s, "B")
    console.print(f"memory bandwidth: {bandwidth}", markup=False)
    console.print(f"added to every firing: {format_seconds(device.launch_ns / 1e9)}", markup=False)
    table = Table()
    for column in ("collective/ranks", "smallest message", "takes", "largest", "takes"):
        table.add_column(column, justify="left" if column.startswith("coll") else "right")
    for name, points in sorted(device.collectives.items()):
        (small, least), (large, most) = points[0], points[-1]
        cells = (f"{small:,} B", format_seconds(least / 1e9))
        table.add_row(name, *cells, f"{large:,} B", format_seconds(most / 1e9))
    console.print(table)
