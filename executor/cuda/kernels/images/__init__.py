"""Image calls: convolution, pooling and batch norm.

Read `windows.py` first (what a window at a place reads), then `convolution.py` and `pooling.py`;
`batch_norm.py` works on any array with a dim of channels.
"""
