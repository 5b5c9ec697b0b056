"""Fused: a stage's ops that one kernel can compute, made one actor each.

Comes in: drafts with one actor per op. Goes out: the same with fewer actors and registers. Read
`fuse_actors.py` first (groups that `millrace.planner.fusion` finds), then `multi_tensor.py` (many
small updates).
"""

from millrace.planner.compile.fused.fusion_pass import fused_stages

__all__ = ["fused_stages"]
