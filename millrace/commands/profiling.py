"""`millrace profile`: measure this machine's ops and collectives, on its cores or its GPUs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from millrace.output import Json, answer, say, working
from millrace.planner.errors import ClusterError
from millrace.units import format_percent, format_rate, format_seconds

if TYPE_CHECKING:
    from rich.console import Console

    from millrace.planner.cluster import Device, MeasurementQuality


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
    from millrace.files import check_writable, write_document
    from millrace.planner.clusters.doubts import profile_doubt

    check_writable(output)
    if device not in MEASURED:
        raise ClusterError(f"--device {device}: expected one of {', '.join(MEASURED)}")
    measured_device = MEASURED[device](ranks, seconds)
    if (warning := profile_doubt(measured_device)) is not None:
        say(warning)
    if output is not None:
        write_document(output, measured_device)
        say(f"device profile written to {output}")
    answer(
        msgspec.to_builtins(measured_device),
        as_json,
        lambda console: _draw(measured_device, console),
    )


def _cpus(ranks: int | None, seconds: float | None) -> "Device":
    """Measured device: one of so many processes on this machine's cores."""
    from millrace.planner.clusters import local_cluster, machine_cores, machine_memory_bytes
    from millrace.profiling.local_profile import local_profile

    cores = machine_cores()
    count = cores if ranks is None else ranks
    local_cluster(count, cores, machine_memory_bytes())  # refuses what the machine cannot hold
    with working(f"measuring this machine with {count} ranks"):
        return local_profile(count, refresh=True, seconds=seconds, unkept=say)


def _gpus(ranks: int | None, seconds: float | None) -> "Device":
    """Measured device: one of so many GPUs, each in a process of its own: this one touches none."""
    from millrace.executor.gpu.availability import gpus_found, require_gpu
    from millrace.executor.gpu.probing.measuring import cached_gpu_profile

    needed_by = "--device gpu"
    count = max(1, gpus_found(needed_by)) if ranks is None else ranks
    require_gpu(count, needed_by)
    long = "some two minutes" if seconds is None else f"kernels for {seconds:g} s"
    with working(f"measuring {count} of this machine's GPUs ({long})"):
        return cached_gpu_profile(
            count, needed_by=needed_by, refresh=True, seconds=seconds, missed=say
        )


MEASURED = {"cpu": _cpus, "gpu": _gpus}
"""What `--device` measures, of so many ranks (None: as many as there are cores or GPUs), and for so
many seconds (None: as long as each does by itself)."""


def quality_text(quality: "MeasurementQuality", what: str = "cores") -> str:
    """Text on how sure a profile of cores, or a GPU, is: its rounds, and what others took."""
    parts = [f"{quality.rounds} round{'s' * (quality.rounds > 1)}"]
    if quality.spread is not None and quality.spread_max is not None:
        parts[0] += (
            f" that differed by {format_percent(quality.spread)}, {quality.spread_max_of} by "
            f"{format_percent(quality.spread_max)}"
        )
    if quality.others is None:
        parts.append("nothing is known of other programs")
    else:
        parts.append(f"other programs took {format_percent(quality.others)} of the {what}")
    if quality.steal:
        parts.append(f"the host {format_percent(quality.steal)}")
    if quality.frequency is not None:
        parts.append(f"{what} ran at {format_percent(quality.frequency)} of their frequency")
    return f"measured in {', '.join(parts)}"


def _draw(device: "Device", console: "Console") -> None:
    from rich.table import Table

    console.print(device.name, markup=False)
    for precision, rate in sorted(device.flops_per_s.items()):
        console.print(f"fastest matmul, {precision}: {format_rate(rate, 'FLOP')}", markup=False)
    bandwidth = format_rate(device.memory_bandwidth_bytes_per_s, "B")
    console.print(f"memory bandwidth: {bandwidth}", markup=False)
    console.print(f"added to every firing: {format_seconds(device.launch_ns / 1e9)}", markup=False)
    if device.measured is not None:
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
