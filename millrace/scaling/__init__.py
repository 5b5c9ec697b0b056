"""Scaling: one model on many clusters: what more devices bring, cost, and what holds them back.

In come a model, clusters, sizes, networks and batches; out goes a row for every combination, in the
order asked. Every point is planned by the search and simulated, as `millrace plan` does it.

Read `sweep.py` first (points and rows), then `bottlenecks.py` (which resource binds), `series.py`
(what sizes of one line say of each other) and `scaling_tables.py` (the table and the CSV file).
"""

from millrace.scaling.series import WORTH
from millrace.scaling.sweep import Failures, Sweep, sweep

__all__ = ["WORTH", "Failures", "Sweep", "sweep"]
