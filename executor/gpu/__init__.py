"""GPU runtime: CuPy, NCCL, CUDA graphs and the vendor's library of products.

Comes in: `Calls` (`millrace.executor.cuda`), which name their operands, and where those lie on a
device. Goes out: what a rank's stream does. A library is opened when something is made with it, so
that every module imports where there is no GPU.

Read `driver.py` first: how the calls of a step are issued. `gemm/` holds the library of
products.
"""
