"""Choosing: which of the best ranked plans is returned.

In come ranked plans, out comes one that is laid out, fits and is simulated. Read first
`checked_plans.py`; `simplest.py` prefers a simpler plan that is about as fast.
"""

from millrace.planner.search.choosing.checked_plans import (
    Checked,
    Progress,
    Pure,
    Simulate,
    check_plans,
    fastest,
)

__all__ = ["Checked", "Progress", "Pure", "Simulate", "check_plans", "fastest"]
