"""Multi-tensor calls, of many tensors in few launches; they are given plain values, no context.

A model has hundreds of variables, most of them small, and a launch for each leaves a GPU idle most
of the time. Read `tensor_chunks.py` first: it says how tensors are cut so that all blocks do as
much.
"""
