"""Runs plans for real: kernels on NumPy arrays, one process per rank, MPI between them.

In comes a Plan; `executor.launch.execute` compiles it to an ActorGraph, starts one process per rank
and gives back `Measured`: step times, losses and a Trace. `executor.measure.cached_profile` times
this machine's kernels and collectives in the same processes and gives a Device.

Read `threaded.py` first (one rank's protocol on threads), then `rank.py` (memory and kernels of a
rank), `communicator.py` (what a transport does) and `launch.py` (the processes). `in_process.py`
holds the same ranks in one process, for tests.
"""
