"""Drift: a run whose steps no longer take as long as they did, and the actor that moved.

Every rank writes, at the end of a step, what each of its actors has taken so far (`step_log.py`).
The process that started the ranks reads it and holds steps against a band (`drift_watch.py`); where
they leave it, `moved_actor.py` says which actor on which rank.
"""
