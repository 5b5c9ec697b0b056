"""Load of this machine: what other programs take of the cores that this process may use.

Linux counts the time of every core in `/proc/stat`; what is busy and is not ours is others'. Where
that cannot be read, nothing is known of them.
"""

import os
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from time import monotonic, process_time, sleep

import msgspec

STAT = Path("/proc/stat")
CORES = Path("/sys/devices/system/cpu")
BUSY_SHARE = 0.1  # others that take less hardly show beside what rounds differ by
STEAL_SHARE = 0.05
WATCHED_S, PATIENCE_S = 0.4, 5.0


class CoreTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds that the usable cores have spent since the machine started."""

    busy_s: float
    steal_s: float  # taken by the host of a virtual machine
    idle_s: float


class MachineLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of the usable cores' time that other programs took, and that the host took."""

    others: float
    steal: float

    @property
    def is_busy(self) -> bool:
        """True where others take so much that measurements suffer."""
        return self.others > BUSY_SHARE or self.steal > STEAL_SHARE


def core_times(numbers: Collection[int] | None = None, *, stat: Path = STAT) -> CoreTimes | None:
    """Times of some cores, or those that this process may use; None where none says."""
    cores = {f"cpu{core}" for core in numbers or os.sched_getaffinity(0)}
    busy = steal = idle = 0
    with suppress(OSError, ValueError):
        for line in stat.read_text().splitlines():
            name, *counts = line.split()
            if name in cores:
                user, nice, system, idles, waits, interrupts, soft, stolen = map(int, counts[:8])
                busy += user + nice + system + interrupts + soft
                idle += idles + waits
                steal += stolen
    if busy + idle == 0:
        return None
    ticks = os.sysconf("SC_CLK_TCK")
    return CoreTimes(busy_s=busy / ticks, steal_s=steal / ticks, idle_s=idle / ticks)


def load_between(
    before: CoreTimes | None, after: CoreTimes | None, ours_s: float
) -> MachineLoad | None:
    """Load between two readings, between which our processes computed for so long in all."""
    if before is None or after is None:
        return None
    busy_s, steal_s = after.busy_s - before.busy_s, after.steal_s - before.steal_s
    total_s = busy_s + steal_s + after.idle_s - before.idle_s
    if total_s <= 0:
        return None
    return MachineLoad(others=max(0.0, busy_s - ours_s) / total_s, steal=steal_s / total_s)


def load_now(watched_s: float = WATCHED_S) -> MachineLoad | None:
    """Load of this moment, watched for so long while this process does nothing."""
    before, ours_s = core_times(), process_time()
    if before is None:
        return None
    sleep(watched_s)
    return load_between(before, core_times(), process_time() - ours_s)


def wait_for_quiet(
    progress: Callable[[str], None] | None, patience_s: float = PATIENCE_S
) -> MachineLoad | None:
    """Load once other programs are quiet, or after so many seconds in which they were not."""
    end_s = monotonic() + patience_s
    load = load_now()
    if load is None or not load.is_busy:
        return load
    if progress is not None:
        taken = 100 * (load.others + load.steal)
        progress(
            f"other programs take {taken:.0f} % of the cores: waiting at most {patience_s:g} s for "
            f"them …"
        )
    while load is not None and load.is_busy and monotonic() < end_s:
        load = load_now()
    return load


def frequency_share() -> float | None:
    """Share of their highest frequency at which the cores run now; None where it is not said."""
    shares = []
    for core in os.sched_getaffinity(0):
        with suppress(OSError, ValueError, ZeroDivisionError):
            folder = CORES / f"cpu{core}" / "cpufreq"
            now, most = (
                int((folder / name).read_text())
                for name in ("scaling_cur_freq", "cpuinfo_max_freq")
            )
            shares.append(now / most)
    return sum(shares) / len(shares) if shares else None
