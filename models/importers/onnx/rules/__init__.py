"""Rules: what every kind of node becomes.

In come a `Lowering` and a node, out goes what is known of the node's outputs, ops having been added
to the graph. Read `table.py` first (one rule per kind), then `layout.py`; `patterns.py` and
`attention.py` recognise what exporters spell out in several nodes.
"""
