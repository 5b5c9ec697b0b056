"""Search: from a model, a cluster and pins to a Plan with its evidence.

Comes in: a `SearchRequest`. Goes out: a `Plan` (or an InfeasibleError that names what binds).

Read first `outer.py` (candidates, and how they are compared), then `space.py` and `pricing.py`
(what there is to choose, and what it costs), `ascent.py` and `block_program.py` (one signature per
op) and `stages/` (blocks over pipeline stages).
"""

from planner.search.outer import search
from planner.search.pins import Pins
from planner.search.request import SearchRequest

__all__ = ["Pins", "SearchRequest", "search"]
