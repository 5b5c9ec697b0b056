"""The runtime: CuPy, NCCL, CUDA graphs.

Comes in: calls whose operands are addresses, in the order of each stream. Goes out: work on a GPU.
Nothing outside this package imports CuPy, and no module of it does so before it is asked to work,
so that all of them can be read, checked and imported where there is no GPU.

Read `device.py` first: what a driver asks of a device. `cupy_device.py` asks it of a real one.
"""
