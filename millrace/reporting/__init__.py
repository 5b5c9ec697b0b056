"""Reporting: the report of one simulated step, as rows for `--json` and as a page.

Comes in: a plan, what was simulated and its account (`millrace.simulator.account`). Goes out: a
document of rows, a self-contained HTML page, and memory counters for a trace. Read first `rows.py`.
"""

from millrace.reporting.counters import memory_counters
from millrace.reporting.rows import report_rows
from millrace.reporting.step_page import report_page

__all__ = ["memory_counters", "report_page", "report_rows"]
