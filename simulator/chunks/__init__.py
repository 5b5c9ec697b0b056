"""Chunks: a plan as a graph of its chunks, and what a part of each chunk costs.

Comes in: a Plan and its Graph. Goes out: an ActorGraph whose size does not depend on the model's
depth, and the times of its actors, measured on pieces: a chunk with few of its equal blocks.

Read first `plan_blocks.py` (which blocks are equal, what crosses), then `chunk_sample.py` and
`phase_measurement.py` (what a chunk's parts cost), then `chunk_graph.py` (the graph of chunks).
"""
