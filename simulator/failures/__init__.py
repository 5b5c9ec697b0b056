"""Failures: how much of its time a long run of many devices spends on steps that count.

Comes in: a step's time, how often a device fails, what a checkpoint and a restart take. Goes out:
how often to write checkpoints, the expected time to train and the goodput, and the same from a seed
by simulation.

Read first `checkpoints.py` (closed forms), then `training.py` (one run, failure by failure).
"""

from millrace.simulator.failures.checkpoints import (
    MTBF_HOURS,
    Goodput,
    best_interval_s,
    expected_s,
    goodput,
)
from millrace.simulator.failures.training import TimeToTrain, time_to_train

__all__ = [
    "MTBF_HOURS",
    "Goodput",
    "TimeToTrain",
    "best_interval_s",
    "expected_s",
    "goodput",
    "time_to_train",
]
