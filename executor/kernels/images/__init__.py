"""Image kernels: convolution, pooling and batch norm.

Read `windows.py` first (which input a window's taps read), then `convolution.py` and `pooling.py`;
`batch_norm.py` works on any array with a dim of channels.
"""
