"""Profiling of this machine's ops and collectives, on cores or GPUs: `millrace profile`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.output import Json, answer, say, working
from millrace.units import format_rate, format_seconds

if TYPE_CHECKING:
    from rich.console import Console

    from millrace.planner.cluster import Device


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("profile")(profile)


def profile(
    ranks: Annotated[
        int | None,
        typer.Option(min=1, help="Processes that share this machine; its cores, or its GPUs."),
    ] = None,
    device: Annotated[
        str, typer.Option(help="cpu: this machine's cores; gpu: its GPUs, one per rank.")
    ] = "cpu",
    seconds: Annotated[
        float | None,
        typer.Option(
            min=1.0,
            help="About how long to measure; by default 11 s on cores, and three times as long "
            "where timings do not agree; on GPUs until all kernels are timed: there those that "
            "matter most come first, and what was not reached is said.",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the device profile here.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure this machine's ops and collectives for `local:N`."""
    import millrace
    from millrace.files import check_writable

    check_writable(output)
    with working() as told:
        profiled = millrace.profile(ranks=ranks, device=device, seconds=seconds, progress=told)
    for note in profiled.notes:
        say(note)
    if output is not None:
        profiled.save(output)
        say(f"device profile written to {output}")
    answer(profiled.document, as_json, lambda console: _draw(profiled.device, console))


def _draw(device: "Device", console: "Console") -> None:
    from rich.table import Table

    console.print(device.name, markup=False)
    for precision, rate in sorted(device.flops_per_s.items()):
        console.print(f"fastest matmul, {precision}: {format_rate(rate, 'FLOP')}", markup=False)
    bandwidth = format_rate(device.memory_bandwidth_bytes_per_s, "B")
    console.print(f"memory bandwidth: {bandwidth}", markup=False)
    console.print(f"added to every firing: {format_seconds(device.launch_ns / 1e9)}", markup=False)
    if device.measured is not None:
        from millrace.api.profile_results import quality_text

        what = "GPU" if device.multiprocessors else "cores"
        console.print(quality_text(device.measured, what), markup=False)
    table = Table()
    for column in ("collective/ranks", "smallest message", "takes", "largest", "takes"):
        table.add_column(column, justify="left" if column.startswith("coll") else "right")
    for name, points in sorted(device.collectives.items()):
        (small, least), (large, most) = points[0], points[-1]
        cells = (f"{small:,} B", format_seconds(least / 1e9))
        table.add_row(name, *cells, f"{large:,} B", format_seconds(most / 1e9))
    console.print(table)
