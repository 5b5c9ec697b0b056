"""Probes that `millrace profile` runs: kernels at several sizes, and chains of meetings.

In comes a number of ranks; out come tables of (work, duration) that `millrace.executor.measure`
makes a Device of. `profiled_kernels.py` lists the kernels, `probe_graphs.py` the chains,
`probe_timing.py` times both in ranks.

Read `probe_timing.py` first.
"""
