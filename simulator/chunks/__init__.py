"""Chunks: a plan as a graph of its chunks, and what a part of each chunk costs.

Comes in: a Plan and its Graph. Goes out: an ActorGraph whose size does not depend on the model's
depth, and the times of its actors, measured on pieces: a chunk with few of its equal blocks.

Read first `wiring.py` (which blocks are equal, what crosses), then `pieces.py` and `parts.py` (what
a chunk's parts cost), then `coarse.py` (the graph of chunks).
"""
