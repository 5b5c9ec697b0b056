"""Measuring of this machine's GPUs: in processes of their own, once; the profile is kept."""

import platform
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from millrace.executor.gpu.availability import gpu_versions, require_gpu
from millrace.executor.gpu.probing.gpu_timing import GpuTimings, measured_device, not_reached
from millrace.executor.gpu.probing.probe_worker import TUNING_SHARE, GpuOrder
from millrace.executor.hosts.rank_runs import run_ranks
from millrace.executor.measure import kept_profile
from millrace.planner.cluster import Device

FORM = 3  # raise it when what is measured changes
SECONDS = 60.0


def cached_gpu_profile(
    ranks: int,
    *,
    needed_by: str,
    refresh: bool = False,
    seconds: float | None = None,
    progress: Callable[[str], None] | None = None,
    missed: Callable[[str], None] | None = None,
) -> Device:
    """Profile of `ranks` GPUs of this machine, measured once and then kept.

    It lies beside those of `millrace.executor.measure.cached_profile` and is measured anew when the
    GPU, its driver, CuPy or the way of measuring change.

    Parameters
    ----------
    ranks
        Number of GPUs; all are measured at once, each in a process of its own.
    needed_by
        Option that asks for them, for the refusal.
    refresh
        Measure them in any case.
    seconds
        Time after which no further kernel is begun, tuning included; compiling them the
        first time, copies and collectives come on top. None: all are timed, for a minute and half
        a minute of tuning.
    progress
        Told when they are measured.
    missed
        Told what was not reached in the time; what was measured is kept all the same.

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
        lambda: _measured(ranks, f"measured by millrace profile: {key}", seconds, missed),
        refresh=refresh,
        told=f"measuring this machine's GPUs with {ranks} ranks, once (some two minutes) …",
        progress=progress,
        unkept=missed,
    )


def _measured(
    ranks: int, source: str, seconds: float | None, missed: Callable[[str], None] | None
) -> Device:
    """Measure GPUs in processes that end before this returns: this one never has a context."""
    timed_s = SECONDS if seconds is None else seconds / (1 + TUNING_SHARE)
    with TemporaryDirectory(prefix="millrace-") as name:
        folder = Path(name)
        order = GpuOrder(seconds=timed_s, limit_s=seconds)
        (folder / "order.json").write_bytes(msgspec.json.encode(order))
        run_ranks("millrace.executor.gpu.probing.probe_worker", ranks, folder)
        timings = [
            msgspec.json.decode((folder / f"timings.{rank}.json").read_bytes(), type=GpuTimings)
            for rank in range(ranks)
        ]
    if left := not_reached(timings):
        left = f"in {seconds:g} s {left}"
        source += f"; {left}"
        if missed is not None:
            missed(left)
    return measured_device(timings, source)


def profile_key(ranks: int, needed_by: str) -> str:
    """All that a profile of so many GPUs of this machine holds for."""
    parts = {
        "form": FORM,
        "host": platform.node(),
        **gpu_versions(needed_by),
        "ranks": ranks,
    }
    return "; ".join(f"{name} {value}" for name, value in parts.items())
