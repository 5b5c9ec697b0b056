"""Report: what a search did, why it chose as it did, and what would make room where nothing fits.

Comes in: a search while it runs (`search_log.py`), or what it chose (`explain.py`, `breakdown.py`),
or a question without an answer (`suggestions.py`). Goes out: counts per layer, and sentences.
"""

from millrace.planner.search.report.search_log import SearchLog

__all__ = ["SearchLog"]
