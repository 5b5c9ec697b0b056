"""Transfer: a plan as it would be on another cluster, by another framework, in another precision.

In comes a Plan, out goes one with the same mesh, stages, schedule and layouts, and without the
figures and the evidence of the first: they were those of another question. No search is made.

Read `cluster_transfer.py` first (what a cluster must have), then `precision_transfer.py` (layouts
of the ops that another precision adds).
"""

from millrace.transfer.cluster_transfer import on_cluster, software_kept
from millrace.transfer.precision_transfer import in_precision

__all__ = ["in_precision", "on_cluster", "software_kept"]
