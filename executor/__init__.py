"""Executor: plans run for real, one process per rank, on CPUs (NumPy) or GPUs (CuPy and NCCL).

In comes a Plan; `millrace.executor.launch.execute` compiles it, starts one process per rank and
gives back `Measured`: step times, losses and a Trace. `millrace.executor.measure.cached_profile`
times this machine's kernels and collectives in such processes and gives a Device.

Read `threaded.py` first (one rank's protocol on threads), then `rank.py` (its memory and kernels),
`transport/` (how ranks meet), `launch.py` and `training/` (a run and its restarts), `hosts/` (the
processes, here and on other hosts) and `supervision/` (who holds a run up). For GPUs: `streams/`
(the protocol as command buffers), `cuda/` (what each command launches) and `gpu/` (the device that
carries it out).
"""
