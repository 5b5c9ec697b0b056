"""Comparison: predicted against measured, and the causes of the difference.

Two traces of one plan come in, a `Comparison` comes out. Read first
`millrace/comparison/trace_join.py`, which joins the traces actor by actor.
"""

from millrace.comparison.comparison import ActorRow, CauseRow, Comparison, ErrorCause
from millrace.comparison.trace_join import exposed_ns_by_kind, join
from millrace.comparison.trace_steps import step_of, step_time_ns, traced_steps, unmarked_share

__all__ = [
    "ActorRow",
    "CauseRow",
    "Comparison",
    "ErrorCause",
    "exposed_ns_by_kind",
    "join",
    "step_of",
    "step_time_ns",
    "traced_steps",
    "unmarked_share",
]
