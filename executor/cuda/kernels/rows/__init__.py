"""Row calls, row by row over the last dim: norms, softmax and losses.

A row is what the last dim holds; all dims before it are merged. A block of threads has a row, but
for sums over rows. Read `layer_norm.py` first, then `vectorized_rows.py`, which says how rows are
launched.
"""
