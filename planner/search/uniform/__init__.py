"""Uniform: spaces in which blocks of one kind are alike, and layers are dealt out equally.

In come candidates, out come the best plan of each that is worth it, and bounds of all. Read first
`branches.py`; `pricing.py` has what block programs prove. The search does not call it yet
(docs/decisions/0021-uniform-spaces.md).
"""
