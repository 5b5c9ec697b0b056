"""What each traced call becomes: tables from an op's name to the function that drafts it.

In come a call's arguments (arrays, constants, numbers), out goes an array. `products.py` and
`attention.py` hold what costs time on a device; `shapes.py` emits almost nothing.
"""
