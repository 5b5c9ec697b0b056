"""Simulator: what a compiled plan would do on a cluster, without the cluster.

Comes in: an ActorGraph and a Cluster, or a Plan. Goes out: a Trace in simulated nanoseconds, the
steady step time, bubbles, exposed communication and memory.

Read first `kernel.py` (SimPy drives the same protocol as the executor does), then `simulate.py`
(what is measured from a run), `stage_fidelity.py` (large plans), `prediction.py` and
`fast_prediction.py`.
"""

from millrace.simulator.errors import SimulationError
from millrace.simulator.fast_prediction import FastPrediction, predict_fast
from millrace.simulator.prediction import predict
from millrace.simulator.simulate import Simulated, simulate

__all__ = ["FastPrediction", "Simulated", "SimulationError", "predict", "predict_fast", "simulate"]
