"""Enumeration: every solution of a block program within a budget, or those that none dominates.

In come tables of one row, prices and a budget; out come options and figures. A column of a better
integer plan has a reduced cost below the gap: with all of these the integer master is exact.

Read first `solutions.py`, then `prefixes.py` (the search), `completion.py` (its bounds) and
`dominance.py`; `restriction.py` makes tables of one block alone.
"""

from millrace.planner.search.blocks.enumeration.dominance import undominated
from millrace.planner.search.blocks.enumeration.restriction import block_tables
from millrace.planner.search.blocks.enumeration.solutions import Enumeration, solutions_within

__all__ = ["Enumeration", "block_tables", "solutions_within", "undominated"]
