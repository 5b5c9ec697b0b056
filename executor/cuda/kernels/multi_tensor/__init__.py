"""Calls that work on many tensors in few launches; what they are given is plain, not a context.

A model has hundreds of variables, most of them small, and a launch for each leaves a GPU idle most
of the time. Read `tensor_chunks.py` first: it says how tensors are cut so that all blocks do as
much.
"""
