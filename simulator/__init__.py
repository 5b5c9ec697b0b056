"""Simulator: what a compiled plan would do on a cluster, without the cluster.

Comes in: an ActorGraph (or a Plan, which is compiled first) and a Cluster. Goes out: a Trace in
simulated nanoseconds, the steady step time, bubbles, exposed communication and memory.

Read first `kernel.py` (SimPy drives the same protocol as the executor does), then `simulate.py`
(what is measured from a run), `sharing.py` (ranks that share cores) and `noise.py` (jitter).
"""

from simulator.errors import SimulationError
from simulator.simulate import Simulated, predict, simulate

__all__ = ["Simulated", "SimulationError", "predict", "simulate"]
