"""Paths: the steady step without events, as the longest paths through what waits for what.

Comes in: a compiled plan, or the actor graph of its chunks. Goes out: the step's time, bubbles and
exposed communication, as events would show them.

Read first `steady.py`, then `firings.py` (one step of chunks as nodes) and `contention.py`.
"""

from millrace.simulator.critical_path.steady import (
    SteadyStep,
    steady_chunks,
    steady_ops,
    steady_step,
)

__all__ = ["SteadyStep", "steady_chunks", "steady_ops", "steady_step"]
