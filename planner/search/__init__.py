"""Search: from a model, a cluster and pins to a Plan with its evidence.

Comes in: a `SearchRequest`. Goes out: a `Plan` (or an InfeasibleError that names what binds).

Read first `outer.py`, then `ranking/` and its loops over candidates, in `uniform/` (equal layers)
and `decomposition/` (blocks that mix variants, by cuts and columns). Below lie `blocks/` (one
signature per op), `stages/` (blocks over pipeline stages) and `joint/` (both at once, where small).
"""

from millrace.planner.search.choosing import Pure
from millrace.planner.search.outer import SearchInterrupted, search
from millrace.planner.search.pins import Pins
from millrace.planner.search.request import SearchRequest

__all__ = ["Pins", "Pure", "SearchInterrupted", "SearchRequest", "search"]
