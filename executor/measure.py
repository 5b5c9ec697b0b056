"""Measure of this machine as a device of `local:N`, in the processes that a run would use."""

import os
import platform
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from statistics import fmean
from time import time

import msgspec
import numpy as np

from millrace.executor.errors import ExecutorError
from millrace.executor.kernels.native.c_library import native_version
from millrace.executor.kernels.onednn.dnnl_library import dnnl_path
from millrace.executor.probes.machine_load import wait_for_quiet
from millrace.executor.probes.median_over_ranks import merged
from millrace.executor.probes.probe_rounds import ROUNDS_MIN
from millrace.executor.probes.probe_timing import ProbeRequest, Timings
from millrace.executor.probes.recheck import contradiction
from millrace.executor.probes.timed_ranks import quality_of, timed_ranks
from millrace.executor.processes import check_capacity, usable_cores
from millrace.executor.user_cache import cache_folder
from millrace.models.documents import FileError, read_document, write_bytes
from millrace.models.graph import to_json
from millrace.planner.cluster import Device

FORM = 9  # Raise it when what is measured changes.
SECONDS = 11.0  # A profile takes about so long where rounds agree at once,
LONGEST = 3.0  # and at most so many times as long.
KERNEL_SHARE = 0.65  # Kernels take this share of the time; collectives and starting take the rest.
# A profile that is kept is held against the machine so often, at most, and a doubtful one so often.
RECHECK_S, DOUBTFUL_S = 600.0, 120.0
ARENA_BYTES = 2**24  # Registers of the largest messages need so much.
PROBE_COUNT = 200  # `millrace.executor.probes` lists about so many kernels and sizes.


class _Cached(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A profile in the cache and what it holds for.

    `probed` is the profile as it was measured, where costs of a run were folded into `device`.
    """

    key: str
    device: Device
    probed: Device | None = None


def profile(
    ranks: int, *, seconds: float = SECONDS, progress: Callable[[str], None] | None = None
) -> Device:
    """Measure one of `ranks` processes on this machine.

    Kernels are timed in as many processes as there are cores (or ranks, where they are fewer) at
    once, one share of the cores' BLAS threads each; collectives and transfers between all ranks.
    What the driver adds to a kernel is in every kernel's time, and in `launch_ns`. Other programs
    are waited for a little; all is timed in rounds, until they agree.

    Parameters
    ----------
    ranks
        Number of processes in use.
    seconds
        About how long it takes where rounds agree at once, and a third of how long it may take.
    progress
        Told what is waited for.

    Returns
    -------
    Device
        `kernels` and `collectives` as measured; efficiencies are 1, for the rates are measured.

    Raises
    ------
    ExecutorError
        A process failed.
    InfeasibleError
        This machine cannot hold so many processes.
    """
    check_capacity([ARENA_BYTES] * ranks)
    cores = usable_cores()
    order = ProbeRequest(
        cores=min(ranks, cores),
        kernel_ns=round(seconds * KERNEL_SHARE / PROBE_COUNT / ROUNDS_MIN * 1e9),
        limit_s=seconds * LONGEST,
    )
    if seconds >= SECONDS:
        wait_for_quiet(progress)
    return _device(ranks, timed_ranks(ranks, order))


def cached_profile(
    ranks: int,
    *,
    refresh: bool = False,
    seconds: float = SECONDS,
    progress: Callable[[str], None] | None = None,
    unkept: Callable[[str], None] | None = None,
    refine: Callable[[Device], Device] | None = None,
) -> Device:
    """Profile of this machine with `ranks` processes, measured once and then kept.

    It is kept in the user's cache folder (`$XDG_CACHE_HOME` or `~/.cache`, `millrace/`) and is
    measured anew when the host, its cores, NumPy, the kernels or the way of measuring change, and
    when the machine contradicts it, which is tried every ten minutes at most; `progress` is told
    when it is; `unkept` (else `progress`) where it cannot be kept, and why. `refine` makes what is
    kept of what was measured.
    """
    return kept_profile(
        _key(ranks),
        lambda: profile(ranks, seconds=seconds, progress=progress or unkept),
        refresh=refresh,
        told=f"measuring this machine with {ranks} ranks, once (ten to forty seconds) …",
        progress=progress,
        unkept=unkept,
        contradiction=lambda device: contradiction(ranks, usable_cores(), device),
        refine=refine,
    )


def kept_profile(
    key: str,
    measure: Callable[[], Device],
    *,
    refresh: bool,
    told: str,
    progress: Callable[[str], None] | None,
    unkept: Callable[[str], None] | None = None,
    contradiction: Callable[[Device], str] | None = None,
    refine: Callable[[Device], Device] | None = None,
) -> Device:
    """Profile that is kept for a key; where there is none, it is measured and kept.

    Parameters
    ----------
    key
        All that the profile holds for.
    measure
        Measures it.
    refresh
        Measure it in any case.
    told, progress
        The text that `progress` is told before that.
    unkept
        Told why the profile cannot be kept; `progress` by default.
    contradiction
        Says why a profile that was kept no longer holds; asked every ten minutes at most.
    refine
        Makes what is kept, and returned, of what was measured; that is kept beside it.
    """
    path = _path(key)
    if not refresh and (cached := _read(path, key)) is not None:
        reason = _contradiction(path, cached.probed or cached.device, contradiction)
        if not reason:
            return cached.device
        told = f"{reason}: {told}"
    if progress is not None:
        progress(told)
    probed = measure()
    device = probed if refine is None else refine(probed)
    cached = _Cached(key=key, device=device, probed=None if refine is None else probed)
    _keep(path, cached, unkept or progress)
    return device


def keep_profile(
    ranks: int, device: Device, *, unkept: Callable[[str], None] | None = None
) -> None:
    """Keep a profile with a run's costs folded in, for plans on `ranks` processes that come next.

    Parameters
    ----------
    ranks
        Number of processes.
    device
        The profile. Whether it still holds is told by the one that was measured before it.
    unkept
        Told why it cannot be kept.
    """
    key = _key(ranks)
    cached = _read(_path(key), key)
    probed = None if cached is None else cached.probed or cached.device
    _keep(_path(key), _Cached(key=key, device=device, probed=probed), unkept)


def profile_in_keep(ranks: int) -> Device | None:
    """Profile that is kept of this machine with `ranks` processes; None where there is none.

    Parameters
    ----------
    ranks
        Number of processes that share this machine.
    """
    cached = _read(_path(_key(ranks)), _key(ranks))
    return None if cached is None else cached.device


def _path(key: str) -> Path:
    """File of the profile that is kept for a key."""
    return cache_folder() / f"device-{sha256(key.encode()).hexdigest()[:16]}.json"


def _read(path: Path, key: str) -> _Cached | None:
    """Profile that is kept for a key; None where there is none, or nothing that we have written."""
    with suppress(FileError):
        cached = read_document(path, _Cached, "kept profile")
        if cached.key == key:
            return cached
    return None


def _keep(path: Path, cached: _Cached, unkept: Callable[[str], None] | None) -> None:
    """Write a profile, or say why it cannot be kept."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, to_json(cached))
    except (OSError, FileError) as error:
        if unkept is not None:
            unkept(
                f"the measurement is not kept: {error}; it is made every time until the folder can "
                f"be written to, or XDG_CACHE_HOME names another"
            )


def _contradiction(
    path: Path, device: Device, contradiction: Callable[[Device], str] | None
) -> str:
    """Reason why a profile no longer holds, where it is time to ask for it; else empty.

    When it was last asked is the time of a file beside the profile's, or of the profile itself.
    """
    checked = path.with_suffix(".checked")
    is_doubtful = device.measured is not None and device.measured.is_doubtful
    if contradiction is None or _age_s(path, checked) < (DOUBTFUL_S if is_doubtful else RECHECK_S):
        return ""
    try:
        checked.touch()
    except OSError:  # a measurement could not be kept either
        return ""
    return contradiction(device)


def _age_s(*paths: Path) -> float:
    """Seconds since the last of these files was written."""
    return time() - max((path.stat().st_mtime for path in paths if path.exists()), default=0.0)


def _key(ranks: int) -> str:
    parts = {
        "form": FORM,
        "host": platform.node(),
        "processor": _processor(),
        "cores": usable_cores(),
        "ranks": ranks,
        "numpy": np.__version__,
        "kernels": native_version(),
        "oneDNN": dnnl_path() is not None,
        "python": platform.python_version(),
    }
    return "; ".join(f"{name} {value}" for name, value in parts.items())


def _processor() -> str:
    """Name of the processor; `platform.processor()` is empty on many systems."""
    path = Path("/proc/cpuinfo")
    if path.exists():
        for line in path.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _device(ranks: int, rank_timings: list[Timings]) -> Device:
    timed = [timings for timings in rank_timings if timings.kernels]
    if not timed:
        raise ExecutorError("no process timed its kernels")
    launch_ns = round(fmean(timings.launch_ns for timings in timed))
    kernels = {
        kind: tuple((work, duration_ns + launch_ns) for work, duration_ns in points)
        for kind, points in merged([timings.kernels for timings in timed]).items()
    }
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // ranks
    return Device(
        name=f"{_processor()}, one of {ranks} ranks",
        memory_bytes=memory_bytes,
        flops_per_s={"fp32": _peak(kernels), "fp64": _peak(kernels) / 2},
        memory_bandwidth_bytes_per_s=fmean(t.memory_bandwidth_bytes_per_s for t in timed),
        matmul_efficiency=1.0,
        memory_efficiency=1.0,
        launch_ns=launch_ns,
        source=f"measured by millrace profile: {_key(ranks)}",
        kernels=kernels,
        collectives=merged([timings.collectives for timings in rank_timings]),
        measured=quality_of(rank_timings),
        jitter=fmean(timings.jitter for timings in timed),
    )


def _peak(kernels: dict[str, tuple[tuple[int, int], ...]]) -> float:
    """FLOPs per second of the fastest matrix product that was timed."""
    return max(flops * 1e9 / duration_ns for flops, duration_ns in kernels["matmul"])
