"""Transports: the meetings of an ActorGraph, carried out between processes.

In come firings of meeting actors, in launch order; out comes a call when the data has moved.
`communicator.py` says what a transport does, and what the members of a meeting receive. Ranks of
one host meet in shared memory (`shared.py`, with `doorbell.py` to wake each other), others by
messages (`messages.py`). `mpi.py` joins the processes and is the only door to mpi4py.

Read `communicator.py` first, then `shared.py`.
"""
