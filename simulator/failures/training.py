"""Training: one run through its failures, from a seed."""

from dataclasses import dataclass

import numpy as np

from millrace.simulator.errors import SimulationError
from millrace.simulator.failures.checkpoints import SECONDS_PER_HOUR

PATIENCE = 1_000_000  # failures in one run; it will hardly ever end


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeToTrain:
    """Wall time of a run and its parts, which add up to `wall_s`.

    Attributes
    ----------
    wall_s
        From its start to its last checkpoint.
    useful_s
        Steps that count.
    checkpoint_s
        Writing checkpoints that were finished.
    lost_s
        Steps that were done again, and checkpoints that a failure cut short.
    restart_s
        Restarts, those cut short by the next failure included.
    failures, checkpoints
        How many.
    """

    wall_s: float
    useful_s: float
    checkpoint_s: float
    lost_s: float
    restart_s: float
    failures: int
    checkpoints: int

    @property
    def goodput(self) -> float:
        """Useful time / wall time."""
        return self.useful_s / self.wall_s


def time_to_train(
    steps: int,
    step_time_s: float,
    *,
    devices: int,
    mtbf_hours: float,
    interval_steps: int,
    checkpoint_s: float,
    restart_s: float,
    seed: int = 0,
) -> TimeToTrain:
    """Simulate one run of `steps` steps, failure by failure.

    Parameters
    ----------
    steps, step_time_s
        What is to be done; a checkpoint ends every `interval_steps` steps, and the run.
    devices, mtbf_hours
        Every device fails once in `mtbf_hours` on average, at random; all stop when one does.
    checkpoint_s, restart_s
        What writing a checkpoint takes, and what passes from a failure to the next step.
    seed
        Of the failures: the same seed gives the same run.

    Raises
    ------
    SimulationError
        A value is out of its range, or failures come too fast for the run to end.
    """
    for name, value in {
        "steps": steps,
        "interval_steps": interval_steps,
        "devices": devices,
    }.items():
        if value < 1:
            raise SimulationError(f"{name} is {value}: expected 1 or more")
    for name, number in {"step_time_s": step_time_s, "mtbf_hours": mtbf_hours}.items():
        if not number > 0:
            raise SimulationError(f"{name} is {number}: expected a number above 0")
    for name, number in {"checkpoint_s": checkpoint_s, "restart_s": restart_s}.items():
        if not number >= 0:
            raise SimulationError(f"{name} is {number}: expected 0 or more")
    run = _Run(np.random.default_rng(seed), mtbf_hours * SECONDS_PER_HOUR / devices)
    checkpoints = 0
    for first in range(0, steps, interval_steps):
        useful_s = min(interval_steps, steps - first) * step_time_s
        while not run.lasts(useful_s + checkpoint_s):
            while not run.lasts(restart_s, lost=False):
                pass
        checkpoints += 1
    done_s, written_s = steps * step_time_s, checkpoints * checkpoint_s
    return TimeToTrain(
        wall_s=done_s + written_s + run.lost_s + run.restart_s,
        useful_s=done_s,
        checkpoint_s=written_s,
        lost_s=run.lost_s,
        restart_s=run.restart_s,
        failures=run.failures,
        checkpoints=checkpoints,
    )


class _Run:
    """The clock of the next failure, and what failures have cost so far."""

    def __init__(self, random: np.random.Generator, mtbf_s: float) -> None:
        self.random = random
        self.mtbf_s = mtbf_s
        self.lost_s = 0.0
        self.restart_s = 0.0
        self.failures = 0
        self._next_s = self._draw()

    def _draw(self) -> float:
        return float(self.random.exponential()) * self.mtbf_s

    def lasts(self, work_s: float, *, lost: bool = True) -> bool:
        """True if work ends before the next failure; what a failure cuts short is accounted for."""
        fits = work_s <= self._next_s
        spent_s = min(work_s, self._next_s)
        if not lost:
            self.restart_s += spent_s
        elif not fits:
            self.lost_s += spent_s
        if fits:
            self._next_s -= work_s
            return True
        self.failures += 1
        if self.failures > PATIENCE:
            raise SimulationError(
                f"{PATIENCE} failures and no end: all devices together fail every "
                f"{self.mtbf_s:.3g} s, but {work_s:.3g} s have to pass without a failure; take "
                "shorter checkpoint intervals"
            )
        self._next_s = self._draw()
        return False
