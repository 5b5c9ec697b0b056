"""Failures: how much of its time a long run of many devices spends on steps that count.

Comes in: a step's time, how often a device fails, what a checkpoint and a restart take. Goes out:
how often to write checkpoints, the expected time to train and the goodput, in closed form.

Read `checkpoints.py`.
"""

from millrace.simulator.failures.checkpoints import (
    MTBF_HOURS,
    Goodput,
    best_interval_s,
    expected_s,
    goodput,
)

__all__ = [
    "MTBF_HOURS",
    "Goodput",
    "best_interval_s",
    "expected_s",
    "goodput",
]
