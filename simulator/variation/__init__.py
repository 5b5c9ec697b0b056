"""Variation: how ranks differ from each other, and how few of them show it.

Comes in: an actor graph, jitter, named stragglers. Goes out: factors on durations
(`noise.py`) and the ranks that have to be simulated (`representatives.py`); how much later the rest
of them come to a meeting is found from these (`millrace.simulator.order_statistics`).
"""
