"""Scaling: one model on many clusters: what more devices bring, cost, and what holds them back.

In come a model, clusters, sizes, networks and batches; out goes a row for every combination, in the
order asked. Every point is planned by the search and simulated, as `millrace plan` does it.

Read `sweep.py` first (points and rows), then `parts.py` (which resource binds), `lines.py` (what
sizes of one line say of each other) and `drawing.py` (the table and the CSV file).
"""

from millrace.scaling.lines import WORTH
from millrace.scaling.sweep import Failures, Sweep, sweep

__all__ = ["WORTH", "Failures", "Sweep", "sweep"]
