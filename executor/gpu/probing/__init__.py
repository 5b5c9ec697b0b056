"""Probing of a GPU for `millrace profile --device gpu`: kernels, copies and collectives.

In comes a device; out comes what `millrace profile` writes. `probe_arena.py` gives the kernels of
`millrace.executor.probes.profiled_kernels` their memory, `stopwatch.py` times calls as captured
graphs, `transfers.py` copies and collectives, `device_state.py` asks how busy others have the GPU
and at what clocks it runs; `gpu_timing.py` goes through them all,
`probe_worker.py` does so in every rank, and `measuring.py` starts the ranks and keeps what they
found.

Read `gpu_timing.py` first.
"""
