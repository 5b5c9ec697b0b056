"""Comparison page: one self-contained HTML document, drawn by a script that it holds.

Comes in: a plan and its two traces. Goes out: a file that needs nothing else and asks no network
for anything, so that it can be mailed or archived. Read first `comparison_html.py` (what the page
is made of), then `firing_columns.py` (its data) and `browser/` (its script).
"""

from millrace.comparison_page.comparison_html import comparison_page, write_page
from millrace.comparison_page.static_page import document, legend
from millrace.comparison_page.static_timeline import time_axis, timeline_svg

__all__ = [
    "comparison_page",
    "document",
    "legend",
    "time_axis",
    "timeline_svg",
    "write_page",
]
