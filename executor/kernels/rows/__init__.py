"""Row kernels, row by row over the last dim: norms, softmax and losses.

A row is what the last dim holds; all dims before it are merged. Rows go in chunks that stay in the
cache (`millrace.executor.kernels.chunks`). Read `layer_norm.py` first.
"""
