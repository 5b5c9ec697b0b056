"""Predictions from a profile that was taken beside busy processes, and from one without.

Run `python -m benchmarks.compare.busy [SECONDS]` from the root of the repository, with nothing else
running.

This machine is measured twice, with as many ranks as it has cores: by itself, and while a process
on every core does nothing but count. A few plans are predicted from both profiles. Predictions
within 20 %, or a warning that says why they are not, pass; the exit code is 1 otherwise.
"""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from statistics import median
from time import monotonic

import millrace
from millrace.executor.measure import SECONDS, profile
from millrace.planner.cluster import Device
from millrace.planner.clusters import machine_cores, parse_cluster
from millrace.planner.clusters.doubts import profile_warning
from millrace.units import format_percent, format_seconds

Tables = Mapping[str, tuple[tuple[int, int], ...]]

TOLERANCE = 0.2
BUSY = "while True: pass"
# Model, samples of a step, pins.
QUESTIONS: tuple[tuple[str, int, dict[str, str | int | bool]], ...] = (
    ("gpt-demo", 16, {"dp": 2}),
    ("gpt-demo", 16, {"tp": 2}),
    ("gpt-demo", 16, {"pp": 2}),
    ("resnet-demo", 16, {"dp": 2}),
    ("mixtral-demo", 8, {"dp": 2}),
    ("mlp", 64, {"dp": 2}),
)


@contextmanager
def busy_cores(processes: int) -> Iterator[None]:
    """So many processes that count, ended when the block is left."""
    counting = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in counting:
            process.kill()
            process.wait()


def measured(ranks: int, seconds: float) -> Device:
    """Profile of this machine, with a line on how it was taken."""
    from millrace.commands.profiling import quality_text

    began_s = monotonic()
    device = profile(ranks, seconds=seconds, progress=print)
    assert device.measured is not None
    print(f"{quality_text(device.measured)}, {monotonic() - began_s:.0f} s", flush=True)
    return device


def main(seconds: float) -> int:
    """Print both predictions of every plan, and the warning; the exit code."""
    ranks = machine_cores()
    quiet = parse_cluster(f"local:{ranks}", measured(ranks, seconds))
    with busy_cores(ranks):
        busy = parse_cluster(f"local:{ranks}", measured(ranks, seconds))
    alone, beside = quiet.device, busy.device
    print(f"kernels: busy over quiet {_ratios(alone.kernels, beside.kernels)}")
    print(f"collectives: busy over quiet {_ratios(alone.collectives, beside.collectives)}")
    ratios = []
    for model, batch, pins in QUESTIONS:
        planned = millrace.plan(model, quiet, global_batch=batch, pins=millrace.Pins.of(pins))
        quiet_s, busy_s = (
            millrace.simulate(planned, cluster=on).step_time_s for on in (quiet, busy)
        )
        ratios.append(busy_s / quiet_s)
        text = " ".join(f"{name} {size}" for name, size in pins.items())
        print(
            f"{model:14} {text:6} quiet {format_seconds(quiet_s):>8}  busy "
            f"{format_seconds(busy_s):>8}  {format_percent(ratios[-1] - 1, signed=True):>9}",
            flush=True,
        )
    within = sum(abs(ratio - 1) <= TOLERANCE for ratio in ratios)
    print(
        f"{within} of {len(ratios)} within {TOLERANCE:.0%}; busy over quiet in the median "
        f"{median(ratios):.2f}, at most {max(ratios):.2f}"
    )
    for name, on in (("quiet", quiet), ("busy", busy)):
        print(f"{name}: {profile_warning(on) or 'no warning'}")
    return 0 if within == len(ratios) or profile_warning(busy) else 1


def _ratios(before: Tables, after: Tables) -> str:
    """Ratios of the durations of all points, in words."""
    pairs = (
        (duration_ns, later_ns)
        for table, points in before.items()
        for (_, duration_ns), (_, later_ns) in zip(points, after[table], strict=True)
    )
    ratios = sorted(later_ns / duration_ns for duration_ns, later_ns in pairs)
    return f"{median(ratios):.2f} in the median, {ratios[0]:.2f} to {ratios[-1]:.2f}"


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS))
