"""Probes that `millrace profile` runs: kernels at several sizes, and chains of meetings.

In comes a number of ranks; out come tables of (work, duration) that `millrace.executor.measure`
makes a Device of. `profiled_kernels.py` lists the kernels, `probe_graphs.py` the chains,
`probe_timing.py` times both in ranks, in as many rounds as `probe_rounds.py` asks for.
`machine_load.py` says what other programs take meanwhile, `recheck.py` whether a kept profile
still holds.

Read `probe_timing.py` first.
"""
