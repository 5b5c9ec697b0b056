"""Native kernels, in C for float32: passes fused into one, on all cores of a rank.

The sources are compiled once on the machine that runs them, by its own C compiler; where there is
none, or for another dtype, the NumPy kernels of the folders beside this one serve, which define
what both compute. Read `c_library.py` first, then a file of factories, then `sources/`.
"""
