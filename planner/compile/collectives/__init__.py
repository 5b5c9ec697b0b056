"""Collectives: when those of a stage begin, and which of them are one message.

Comes in: a stage's draft, its ops in their order. Goes out: the same, with early collectives held
back (`prefetch`) and those of state joined in buckets (`buckets`). Read `prefetch.py` first.
"""

from millrace.planner.compile.collectives.buckets import bucketed
from millrace.planner.compile.collectives.prefetch import hold_back

__all__ = ["bucketed", "hold_back"]
