"""Profiles of this machine's GPUs: measured in processes of their own, once, and then kept."""

import os
import platform
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from executor.gpu.availability import gpu_versions, require_gpu
from executor.gpu.probing.timing import GpuTimings, measured_device
from executor.gpu.probing.worker import GpuOrder
from executor.measure import kept_profile
from executor.processes import run_ranks
from planner.cluster import Device

FORM = 2  # raise it when what is measured changes
SECONDS = 60.0


def cached_gpu_profile(
    ranks: int,
    *,
    needed_by: str,
    refresh: bool = False,
    seconds: float = SECONDS,
    progress: Callable[[str], None] | None = None,
) -> Device:
    """Return the profile of `ranks` GPUs of this machine, measured once and then kept.

    It lies beside those of `executor.measure.cached_profile` and is measured anew when the GPU, its
    driver, CuPy or the way of measuring change.

    Parameters
    ----------
    ranks
        Number of GPUs; all are measured at once, each in a process of its own.
    needed_by
        What asks for them, for the refusal.
    refresh
        Measure them in any case.
    seconds
        About how long kernels may be timed.
    progress
        Told when they are measured.

    Raises
    ------
    ExecutorError
        What running on a GPU needs is missing, or a process failed.
    InfeasibleError
        There are fewer GPUs.
    """
    require_gpu(ranks, needed_by)
    key = profile_key(ranks, needed_by)
    return kept_profile(
        key,
        lambda: _measured(ranks, f"measured by millrace profile: {key}", seconds),
        refresh=refresh,
        told=f"measuring this machine's GPUs with {ranks} ranks, once (some two minutes) …",
        progress=progress,
    )


def _measured(ranks: int, source: str, seconds: float) -> Device:
    """Measure GPUs in processes that end before this returns: this one never has a context."""
    with TemporaryDirectory(prefix="millrace-") as name:
        folder = Path(name)
        order = GpuOrder(parent=os.getpid(), seconds=seconds)
        (folder / "order.json").write_bytes(msgspec.json.encode(order))
        run_ranks("executor.gpu.probing.worker", ranks, folder)
        found = [
            msgspec.json.decode((folder / f"timings.{rank}.json").read_bytes(), type=GpuTimings)
            for rank in range(ranks)
        ]
    return measured_device(found, source)


def profile_key(ranks: int, needed_by: str) -> str:
    """Return all that a profile of so many GPUs of this machine holds for."""
    parts = {
        "form": FORM,
        "host": platform.node(),
        **gpu_versions(needed_by),
        "ranks": ranks,
    }
    return "; ".join(f"{name} {value}" for name, value in parts.items())
