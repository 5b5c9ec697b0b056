"""Ranking: candidates closed by loops, the best plan of each that is worth it, and bounds of all.

Read first `ranker.py`: one round over the candidates; `lockstep.py` has the two processes of a
loop. `outcomes.py` has what comes of candidates by themselves.
"""
