"""Checkpoints: how often to write them, and what they and failures leave of a run's time.

All devices of a run stop when one fails; the run then restarts from its last checkpoint. Failures
come at random with a constant rate, also while a checkpoint is written or the run restarts.

Notes
-----
The expected time is that of J. T. Daly, "A higher order estimate of the optimum checkpoint interval
for restart dumps", Future Generation Computer Systems 22 (2006), equation 20; his optimum is that
of equation 37. The first-order optimum is that of J. W. Young, "A first order approximation to the
optimum checkpoint interval", Communications of the ACM 17 (1974).
"""

from dataclasses import dataclass
from math import exp, expm1, inf, isfinite, sqrt

from millrace.simulator.errors import SimulationError

SECONDS_PER_HOUR = 3600

# One H100 with its share of host and network: 419 unexpected interruptions in 54 days on 16,384 of
# them ("The Llama 3 Herd of Models", 2024, section 3.3.4).
MTBF_HOURS = 54 * 24 * 16384 / 419


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Share of a run's time that failures leave, and the checkpoints that it takes.

    Attributes
    ----------
    fraction
        Useful time / wall time: 1 where nothing fails and no checkpoint is written.
    interval_s
        Useful time from one checkpoint to the next: the optimum, in whole steps.
    checkpoint_s
        Time that writing one takes.
    mtbf_s
        Mean time between failures of all devices together.
    """

    fraction: float
    interval_s: float
    checkpoint_s: float
    mtbf_s: float


def goodput(
    step_time_s: float,
    devices: int,
    mtbf_hours: float,
    checkpoint_bytes: float,
    checkpoint_bytes_per_s: float,
    restart_s: float,
) -> Goodput:
    """Expected share of time spent on steps that count, at the best interval.

    Parameters
    ----------
    step_time_s
        Of one training step; a checkpoint is written between steps.
    devices
        Of the run.
    mtbf_hours
        Mean time between failures of one device, with its share of host and network.
    checkpoint_bytes, checkpoint_bytes_per_s
        Of the whole run's state, and the bandwidth with which all devices together write it; the
        run stands still meanwhile.
    restart_s
        From a failure to the first step after it: noticing, replacing, reading the checkpoint.

    Raises
    ------
    SimulationError
        A value is out of its range.

    Examples
    --------
    >>> round(goodput(4.0, 16384, 50_000, 5.7e12, 2e11, 600).fraction, 3)
    0.88
    """
    _positive(step_time_s=step_time_s, devices=devices, mtbf_hours=mtbf_hours)
    _positive(checkpoint_bytes_per_s=checkpoint_bytes_per_s)
    _not_negative(checkpoint_bytes=checkpoint_bytes, restart_s=restart_s)
    mtbf_s = mtbf_hours * SECONDS_PER_HOUR / devices
    checkpoint_s = checkpoint_bytes / checkpoint_bytes_per_s
    best_s = best_interval_s(mtbf_s, checkpoint_s)
    if best_s == inf:
        return Goodput(fraction=1.0, interval_s=inf, checkpoint_s=checkpoint_s, mtbf_s=mtbf_s)
    interval_s = max(1, round(best_s / step_time_s)) * step_time_s
    wall_s = expected_s(interval_s, interval_s, mtbf_s, checkpoint_s, restart_s)
    return Goodput(
        fraction=interval_s / wall_s,
        interval_s=interval_s,
        checkpoint_s=checkpoint_s,
        mtbf_s=mtbf_s,
    )


def expected_s(
    useful_s: float, interval_s: float, mtbf_s: float, checkpoint_s: float, restart_s: float
) -> float:
    """Expected wall time of a run of `useful_s`, a checkpoint after every interval.

    The last interval may be shorter; the run ends with its checkpoint. Infinite where an interval
    is so much longer than the time between failures that the run hardly ever gets through one.

    Parameters
    ----------
    useful_s
        Seconds of training without failures or checkpoints.
    interval_s
        Seconds of training between checkpoints.
    mtbf_s
        Mean time between failures; infinite: there are none.
    checkpoint_s, restart_s
        Seconds that writing a checkpoint takes, and going on from one.
    """
    _positive(useful_s=useful_s, interval_s=interval_s, mtbf_s=mtbf_s)
    _not_negative(checkpoint_s=checkpoint_s, restart_s=restart_s)
    full_intervals = int(useful_s / interval_s + 1e-9)
    rest_s = max(useful_s - full_intervals * interval_s, 0.0)
    if mtbf_s == inf:
        return useful_s + (full_intervals + (rest_s > 1e-9 * interval_s)) * checkpoint_s
    try:
        segments = full_intervals * expm1((interval_s + checkpoint_s) / mtbf_s)
        if rest_s > 1e-9 * interval_s:
            segments += expm1((rest_s + checkpoint_s) / mtbf_s)
        return mtbf_s * exp(restart_s / mtbf_s) * segments
    except OverflowError:
        return inf


def best_interval_s(mtbf_s: float, checkpoint_s: float) -> float:
    """Useful time between checkpoints that makes the expected wall time shortest.

    Daly's estimate, within a thousandth of the exact optimum's wall time. It tends to Young's
    sqrt(2 · checkpoint · mtbf) where checkpoints are short, and is the time between failures where
    one checkpoint takes twice that or more. Checkpoints that take no time are written all the time.

    Parameters
    ----------
    mtbf_s
        Mean time between failures, in seconds; infinite: there are none.
    checkpoint_s
        Seconds that writing a checkpoint takes.
    """
    _positive(mtbf_s=mtbf_s)
    _not_negative(checkpoint_s=checkpoint_s)
    if mtbf_s == inf:
        return inf
    if checkpoint_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = checkpoint_s / (2 * mtbf_s)
    young_s = sqrt(2 * checkpoint_s * mtbf_s)
    return young_s * (1 + sqrt(ratio) / 3 + ratio / 9) - checkpoint_s


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not value > 0 or (name not in ("mtbf_hours", "mtbf_s") and not isfinite(value)):
            raise SimulationError(f"{name} is {value}: expected a number above 0")


def _not_negative(**values: float) -> None:
    for name, value in values.items():
        if not (isfinite(value) and value >= 0):
            raise SimulationError(f"{name} is {value}: expected 0 or more")
