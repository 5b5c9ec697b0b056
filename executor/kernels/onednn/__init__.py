"""oneDNN kernels, where the package `onednn-cpu-gomp` is installed: float32 alone.

`dnnl_library.py` is the door to the library, `dnnl_convolution.py` makes kernels of its primitives,
`dnnl_product.py` products of matrices.

Without the package, and for float64, the NumPy kernels serve, which define what both compute.
"""
