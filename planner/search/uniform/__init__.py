"""Uniform: spaces in which blocks of one kind are alike, and layers are dealt out equally.

In come candidates, out come the best plan of each that is worth it, and bounds of all. Read first
`uniform_loop.py`; `pricing.py` has what block programs prove.
"""
