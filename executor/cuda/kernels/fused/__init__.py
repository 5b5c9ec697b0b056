"""Calls of fused actors: one kernel, or one product with its epilogue, in place of several.

Comes in: the context of an actor with parts. Goes out: its calls. Read `table.py` first (which form
computes which parts), then `products.py`; what no form computes runs part by part (`in_turn.py`).
"""
