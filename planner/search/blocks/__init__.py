"""Blocks: one signature per op, at the least cost, for many meshes and microbatches at once.

Comes in: a folded graph, a cluster, rows of mesh sizes and microbatches, prices. Goes out: options
of every choice, what they sum up to and the proven bound.

Read first `strategies.py` (what there is to choose), `strategy_costs.py` and `cost_tables.py` (what
it costs), `dual_ascent.py` with `duals/` (bounds and solutions of all rows) and `solver.py` (one
row to its optimum).
"""
