"""Transports: the meetings of an ActorGraph, carried out between processes.

In come firings of meeting actors, in launch order; out comes a call when the data has moved.
`communicator.py` says what a transport does, and what the members of a meeting receive. A meeting
goes by a route of steps (`routes.py`, over what `meeting_pieces.py` cuts), which
`meeting_protocol.py` puts in order, without any I/O, and `rank_communicator.py` carries out: in
shared memory between ranks of one host (`shared.py`, with `doorbell.py` to wake each other), by
messages between hosts. `mpi.py` joins the processes and is the only door to mpi4py.

Read `communicator.py` first, then `routes.py`, then `rank_communicator.py`.
"""
