"""What `millrace profile --device gpu` runs: kernels, copies and collectives, timed on a GPU.

In comes a device; out comes what `millrace profile` writes. `arena.py` gives the kernels of
`millrace.executor.probes.cases` their memory, `stopwatch.py` times calls as captured graphs,
`transfers.py` copies and collectives; `timing.py` goes through them all, `worker.py` does so in
every rank, and `measuring.py` starts the ranks and keeps what they found.

Read `timing.py` first.
"""
