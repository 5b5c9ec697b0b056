"""Improvement: what a job that runs today would gain from single changes, and from a free plan.

In comes the `TrainingJob` that settings describe, out goes what it takes, what binds it, and its
changes ranked by the simulated step. Read `improved_job.py` first, then `single_changes.py` (which
changes there are).
"""

from millrace.improvement.improved_job import Improvement, improved

__all__ = ["Improvement", "improved"]
