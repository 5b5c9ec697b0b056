"""Supervision of the ranks of a run: what each is doing, and who holds the others up.

Every rank keeps a board, which counts the firings that it has begun and completed
(`rank_board.py`). The parent reads the boards (`stall_watch.py`); where a rank has come no further
for too long, what the boards say of all ranks tells which of them it is, and in which actor
(`standstill.py`).
"""
