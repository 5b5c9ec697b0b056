"""Recheck of a kept profile: three seconds in which this machine may contradict it.

A few kernels of different kinds and the collectives between all ranks are timed again. While other
programs are busy nothing is known, and the profile stays.
"""

from collections.abc import Mapping, Sequence
from statistics import median

from millrace.executor.errors import ExecutorError
from millrace.executor.probes.machine_load import load_now
from millrace.executor.probes.median_over_ranks import merged
from millrace.executor.probes.probe_timing import ProbeRequest, Timings
from millrace.executor.probes.timed_ranks import timed_ranks
from millrace.planner.cluster import TAKEN_MAX, Device
from millrace.planner.errors import InfeasibleError

TABLES = ("matmul", "gelu", "layer_norm", "attention/64", "adamw")
KERNEL_NS, LIMIT_S = 5_000_000, 1.5
WATCHED_S = 0.2
CROWDED = 2  # Ranks a core, beyond which starting them takes long, and steps are mostly waiting.
# Eight checks in half a minute of a virtual machine without other programs had kernels at 1.00 to
# 1.28 times the profile, and collectives at 0.67 to 1.83 times (two cores, 2026-11): neighbours on
# its host come and go.
KERNELS_MARGIN, COLLECTIVES_MARGIN = 0.3, 1.0

Tables = Mapping[str, Sequence[tuple[int, int]]]


def contradiction(ranks: int, cores: int, device: Device) -> str:
    """Clause that says why a profile no longer holds; empty where it does, or none can tell.

    Parameters
    ----------
    ranks, cores
        Number of processes, and of cores that they share.
    device
        The profile.

    """
    quality = device.measured
    load = load_now(WATCHED_S)
    if load is not None and load.is_busy:
        return ""
    if load is not None and quality is not None and quality.taken > TAKEN_MAX:
        return "the kept profile was taken while the machine was busy"
    if ranks > CROWDED * cores:
        return ""
    order = ProbeRequest(
        cores=min(ranks, cores), kernel_ns=KERNEL_NS, limit_s=LIMIT_S, tables=TABLES
    )
    try:
        rank_timings = timed_ranks(ranks, order)
    except (ExecutorError, InfeasibleError, OSError):  # who runs the plan will be told
        return ""
    load = rank_timings[0].load
    if load is not None and load.is_busy:
        return ""
    return difference(device, rank_timings)


def difference(device: Device, rank_timings: Sequence[Timings]) -> str:
    """Clause that says by how much a profile is off what ranks have timed; empty within margins.

    Parameters
    ----------
    device
        The profile, whose own spread widens the margins.
    rank_timings
        Timings of every rank, of some of its kernels and collectives.
    """
    quality = device.measured
    spread = 0.0 if quality is None else quality.spread or 0.0
    launch_ns = round(median(timings.launch_ns for timings in rank_timings if timings.kernels))
    kernels = merged([timings.kernels for timings in rank_timings])
    now = {
        table: [(work, duration_ns + launch_ns) for work, duration_ns in points]
        for table, points in kernels.items()
    }
    collectives = merged([timings.collectives for timings in rank_timings])
    for name, today, before, margin in (
        ("kernels", now, device.kernels, KERNELS_MARGIN),
        ("collectives", collectives, device.collectives, COLLECTIVES_MARGIN),
    ):
        ratio = _ratio(today, before)
        if ratio is not None and max(ratio, 1 / ratio) > 1 + spread + margin:
            return f"{name} take {ratio:.2f} times as long as in the kept profile"
    return ""


def _ratio(today: Tables, before: Tables) -> float | None:
    """Median of today's durations over those before, of points that both have."""
    ratios = [
        duration_ns / dict(before[table])[work]
        for table, points in today.items()
        if table in before
        for work, duration_ns in points
        if work in dict(before[table])
    ]
    return median(ratios) if ratios else None
