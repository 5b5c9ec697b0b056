"""Probes that `millrace profile` runs: kernels at several sizes, and chains of meetings.

In comes a number of ranks; out come tables of (work, duration) that `millrace.executor.measure`
makes a Device of. `cases.py` lists the kernels, `graphs.py` the chains, `timing.py` times both in
ranks.

Read `timing.py` first.
"""
