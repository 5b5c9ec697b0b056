"""Runs through their failures, one by one: what the closed form of goodput is compared with."""

from typing import NamedTuple

import numpy as np


class FailingRun(NamedTuple):
    """Wall time from the start to the last checkpoint, and failures on the way."""

    wall_s: float
    failures: int


def failing_run(
    steps: int,
    step_time_s: float,
    *,
    mtbf_s: float,
    interval_steps: int,
    checkpoint_s: float,
    restart_s: float,
    seed: int = 0,
) -> FailingRun:
    """Run of some steps, with a checkpoint after every interval and at the end.

    All devices together fail every `mtbf_s` on average, at random; a restart may be cut short too.
    """
    rng = np.random.default_rng(seed)
    wall_s, failures = 0.0, 0
    next_s = rng.exponential() * mtbf_s
    for first in range(0, steps, interval_steps):
        work_s = min(interval_steps, steps - first) * step_time_s + checkpoint_s
        pending = [work_s]
        while pending:
            if pending[-1] <= next_s:
                spent_s = pending.pop()
                next_s -= spent_s
            else:
                spent_s, failures, pending = next_s, failures + 1, [work_s, restart_s]
                next_s = rng.exponential() * mtbf_s
            wall_s += spent_s
    return FailingRun(wall_s, failures)
