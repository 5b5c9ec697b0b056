"""Fusion: which ops become one actor, so that what passes between them is not written down.

Comes in: ops as nodes, of a graph that is searched or of a stage that is compiled. Goes
out: groups of them, and what each op of a group moves and pays.

Read first `rules.py` (what may be fused), then `fusion_graph.py` (when it is allowed) and
`fused_traffic.py` (shares of a group). `millrace.planner.compile.fused` makes actors of the groups.
"""

from millrace.planner.fusion.fused_traffic import Share, shares_of, shares_of_graph, written
from millrace.planner.fusion.fusion_graph import FusionGraph, FusionNode, FusionTensor
from millrace.planner.fusion.rules import fused_groups

__all__ = [
    "FusionGraph",
    "FusionNode",
    "FusionTensor",
    "Share",
    "fused_groups",
    "shares_of",
    "shares_of_graph",
    "written",
]
