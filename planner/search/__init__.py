"""Search: from a model, a cluster and pins to a Plan with its evidence.

Comes in: a `SearchRequest`. Goes out: a `Plan` (or an InfeasibleError that names what binds).

Read first `outer.py` (the candidates and how they are compared), then `folding.py` and `tables.py`
(what there is to choose, and what it costs), `block_program.py` (one signature per op) and
`stages.py` (blocks over pipeline stages).
"""

from planner.search.outer import search
from planner.search.pins import Pins
from planner.search.request import SearchRequest

__all__ = ["Pins", "SearchRequest", "search"]
