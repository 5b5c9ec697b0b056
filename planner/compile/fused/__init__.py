"""Fused: a stage's ops that one kernel can compute, made one actor each.

Comes in: a draft with one actor per op. Goes out: the same with fewer actors and registers. Read
`drafts.py` first (groups that `planner.fusion` finds), then `launches.py` (many small updates).
"""

from planner.compile.fused.drafts import fused_draft
from planner.compile.fused.launches import joined_launches

__all__ = ["fused_draft", "joined_launches"]
