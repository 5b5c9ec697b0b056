"""Profile results: this machine's ops and collectives, measured (`millrace.profile`)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from millrace.api.clusters import Progress
from millrace.api.views import ResultView, ShownResult, TableView
from millrace.files import write_document
from millrace.planner.cluster import Device, MeasurementQuality
from millrace.planner.clusters import local_cluster, machine_cores, machine_memory_bytes
from millrace.planner.clusters.doubts import profile_doubt
from millrace.planner.errors import ClusterError
from millrace.units import format_percent, format_rate, format_seconds


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ProfileResult(ShownResult):
    """Device profile of this machine, as it was measured.

    Attributes
    ----------
    device : Device
        The document: tables of kernels and collectives, which `local:N` is planned with.
    notes : tuple of str
        Sentences on what the profile is in doubt of, what was not measured or could not be kept.
    """

    device: Device
    notes: tuple[str, ...] = ()

    @property
    def flops_per_s(self) -> Mapping[str, float]:
        """Operations per second of the fastest matrix product, by precision."""
        return self.device.flops_per_s

    @property
    def memory_bandwidth_bytes_per_s(self) -> float:
        """Bytes per second of the device's memory."""
        return self.device.memory_bandwidth_bytes_per_s

    @property
    def launch_s(self) -> float:
        """Seconds that are added to every firing."""
        return self.device.launch_ns / 1e9

    @property
    def document(self) -> dict[str, Any]:
        """Device profile as `millrace profile --json` has it."""
        document: dict[str, Any] = msgspec.to_builtins(self.device)
        return document

    def save(self, path: str | Path) -> None:
        """Write the device profile to a file, for `millrace.cluster(…, profile=)`.

        Parameters
        ----------
        path : str or Path
            The file.

        Raises
        ------
        FileError
            It cannot be written.
        """
        write_document(Path(path), self.device)

    @property
    def view(self) -> ResultView:
        """View in a terminal and in a notebook."""
        device = self.device
        figures = {
            f"fastest matmul, {precision}": format_rate(rate, "FLOP")
            for precision, rate in sorted(device.flops_per_s.items())
        }
        figures["memory bandwidth"] = format_rate(device.memory_bandwidth_bytes_per_s, "B")
        figures["added to every firing"] = format_seconds(self.launch_s)
        notes = self.notes
        if device.measured is not None:
            what = "GPU" if device.multiprocessors else "cores"
            notes = (quality_text(device.measured, what), *notes)
        rows = []
        for name, points in sorted(device.collectives.items()):
            (small, least), (large, most) = points[0], points[-1]
            least_s, most_s = format_seconds(least / 1e9), format_seconds(most / 1e9)
            rows.append((name, f"{small:,} B", least_s, f"{large:,} B", most_s))
        table = TableView(
            title="",
            columns=("collective/ranks", "smallest message", "takes", "largest", "takes"),
            numbers=(False, True, True, True, True),
            rows=tuple(rows),
        )
        return ResultView(
            title=device.name, figures=tuple(figures.items()), tables=(table,), notes=notes
        )


def quality_text(quality: MeasurementQuality, what: str = "cores") -> str:
    """Text on how sure a profile of cores, or a GPU, is: its rounds, and what others took.

    Parameters
    ----------
    quality : MeasurementQuality
        Its rounds, and what else the machine did.
    what : str
        Cores, or GPU.
    """
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


def profile(
    *,
    ranks: int | None = None,
    device: str = "cpu",
    seconds: float | None = None,
    progress: Progress | None = None,
) -> ProfileResult:
    """Profile of this machine, measured now and kept for `local:N`.

    Parameters
    ----------
    ranks : int, optional
        Processes that share this machine; by default as many as it has cores, or GPUs.
    device : str
        cpu: this machine's cores; gpu: its GPUs, one per rank.
    seconds : float, optional
        About how long to measure; by default 11 s on cores, and on GPUs until all kernels are
        timed.
    progress : callable, optional
        Called with a sentence on what is measured.

    Raises
    ------
    ClusterError
        The device is neither cpu nor gpu.
    InfeasibleError
        This machine cannot hold so many processes, or has fewer GPUs.
    ExecutorError
        It could not be measured.
    """
    if device not in MEASURED:
        raise ClusterError(f"--device {device}: expected one of {', '.join(MEASURED)}")
    missed: list[str] = []
    tell = progress or (lambda text: None)
    measured_device = MEASURED[device](ranks, seconds, tell, missed.append)
    notes = filter(None, (profile_doubt(measured_device), *missed))
    return ProfileResult(device=measured_device, notes=tuple(notes))


def _cpus(ranks: int | None, seconds: float | None, tell: Progress, missed: Progress) -> Device:
    """Measured device: one of so many processes on this machine's cores."""
    from millrace.profiling.local_profile import local_profile

    cores = machine_cores()
    count = cores if ranks is None else ranks
    local_cluster(count, cores, machine_memory_bytes())  # refuses what the machine cannot hold
    tell(f"measuring this machine with {count} ranks")
    return local_profile(count, refresh=True, seconds=seconds, unkept=missed)


def _gpus(ranks: int | None, seconds: float | None, tell: Progress, missed: Progress) -> Device:
    """Measured device: one of so many GPUs, each in a process of its own: this one touches none."""
    from millrace.executor.gpu.availability import gpus_found, require_gpu
    from millrace.executor.gpu.probing.measuring import cached_gpu_profile

    needed_by = "--device gpu"
    count = max(1, gpus_found(needed_by)) if ranks is None else ranks
    require_gpu(count, needed_by)
    long = "some two minutes" if seconds is None else f"kernels for {seconds:g} s"
    tell(f"measuring {count} of this machine's GPUs ({long})")
    return cached_gpu_profile(
        count, needed_by=needed_by, refresh=True, seconds=seconds, missed=missed
    )


MEASURED: dict[str, Callable[[int | None, float | None, Progress, Progress], Device]] = {
    "cpu": _cpus,
    "gpu": _gpus,
}
"""What `device` measures, of so many ranks (None: as many as there are cores or GPUs), and for so
many seconds (None: as long as each does by itself)."""
